"""The values of a key in lines of JSON as a column of Arrow's: of one type, and whole numbers are never rounded."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from gdsload.conversion.reasons import as_pasted
from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError, OptionError

__all__ = ["CONSTANTS", "column_of", "inferred_type", "late_key", "named_type"]

CONSTANTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The constants of JSON lines, as Python writes them; any other infinite number was too large."""

_USUAL: dict[type | tuple[type, ...], tuple[str, object]] = {bool: ("bool", False), (str, list, dict): ("string", "")}
"""The type that a value has, and what may stand for one that is missing; lists and objects as texts of JSON."""


def inferred_type(values: Sequence[Any], key: str, file: str) -> Any:
    """The type of a key with these values.

    Raises:
        FormatError: if they are of several types.
        OptionError: if no type has all whole numbers, for as floats different ones would become the same; or if the key
            has no value.
    """
    arrow, there = need("pyarrow"), [value for value in values if value is not None]
    kinds = set(map(type, there))
    if not there and len(values):
        raise OptionError(
            f"the key {key!r:.100} has no value in the first lines",
            file=file,
            remedy=f"Say of what type it is, `types={{{key!r:.100}: 'float64'}}`, say; or choose other fields: "
            "`fields=[...]`.",
        )
    if not there:  # of empty lists
        return arrow.null()
    if kinds == {list}:
        return arrow.list_(inferred_type(list(chain.from_iterable(there)), key, file))
    if kinds == {dict}:
        names = dict.fromkeys(chain.from_iterable(there))
        return arrow.struct([(name, inferred_type([one.get(name) for one in there], key, file)) for name in names])
    if kinds == {int}:
        for kind in (arrow.int64(), arrow.uint64()):
            if _beyond(there, kind) is None:
                return kind
        beyond = _beyond(there, arrow.int64())
    elif kinds <= {int, float}:
        if (beyond := _rounded(there)) is None:
            return arrow.float64()
    elif len(kinds) == 1:
        return arrow.bool_() if kinds == {bool} else arrow.string()
    else:
        other = next(one for one in there if type(one) is not type(there[0]))
        raise _mixed(key, None, f"{there[0]!r:.50} and {other!r:.50}", file)
    raise OptionError(_would_be_rounded(key, beyond), file=file, remedy=_kept_or_rounded(key))


def column_of(values: Sequence[Any], kind: Any, key: str, where: str, *, rounds: bool) -> Any:
    """The values of a key as a column.

    Args:
        values: what the lines have.
        kind: the type of the key.
        key: its name, for errors.
        where: where the lines are, likewise.
        rounds: whether floating-point numbers may be others than the whole ones in the lines, as the user has named the
            type.

    Raises:
        FormatError: if the type does not have one of the values.
    """
    arrow = need("pyarrow")
    _check(values, kind, key, where, rounds=rounds)
    try:
        if arrow.types.is_temporal(kind) and any(isinstance(one, str) for one in values):
            return arrow.array(values, arrow.string()).cast(kind)
        try:
            return arrow.array(values, kind)
        except arrow.ArrowInvalid:  # a large whole number, which is a float, too
            return arrow.array([_floated(one, kind) for one in values], kind)
    except (arrow.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise _mixed(key, None, str(error)[:200], where) from None


def _check(values: Sequence[Any], kind: Any, key: str, where: str, *, rounds: bool) -> None:
    """Refuse a value that a type does not have; Arrow makes 1 of 1.5, and 1.0 of true."""
    types, there = need("pyarrow").types, [value for value in values if value is not None]
    kinds, value = set(map(type, there)), None
    if odd := kinds - _held(kind):
        value = next(one for one in there if type(one) in odd)
    elif types.is_struct(kind):
        names = {one.name for one in kind}
        value = next((one for one in there if one.keys() - names), None)
    elif types.is_integer(kind):
        value = _beyond(there, kind)
    if value is not None:
        raise _mixed(key, _wider(value, kind), f"{kind!s:.100} does not have {value!r:.100}", where)
    if types.is_list(kind):
        _check(list(chain.from_iterable(there)), kind.value_type, key, where, rounds=rounds)
    elif types.is_struct(kind):
        for one in kind:
            _check([value.get(one.name) for value in there], one.type, key, where, rounds=rounds)
    elif int in kinds and types.is_floating(kind) and not rounds and (beyond := _rounded(there)) is not None:
        raise FormatError(_would_be_rounded(key, beyond), file=where, remedy=_kept_or_rounded(key))
    elif types.is_floating(kind) and not all(_is_known(one) for one in there if abs(one) > sys.float_info.max):
        raise FormatError(f"the key {key!r:.100} has a number beyond those of float64", file=where)


def _is_known(infinite: float) -> bool:
    return any(infinite is known for known in CONSTANTS.values())


def _held(kind: Any) -> set[type]:
    """The types of JSON's values that a type of Arrow's has."""
    types = need("pyarrow").types
    if types.is_list(kind) or types.is_struct(kind):
        return {list} if types.is_list(kind) else {dict}
    if types.is_integer(kind) or types.is_floating(kind):
        return {int} if types.is_integer(kind) else {int, float}
    return {bool} if types.is_boolean(kind) else {str, int} if types.is_temporal(kind) else {str}


def _beyond(values: Sequence[int], kind: Any) -> int | None:
    """A whole number that a type does not have; None if there is none."""
    limits = np.iinfo(kind.to_pandas_dtype())
    if not values or (limits.min <= min(values) and max(values) <= limits.max):
        return None
    return next(value for value in values if not limits.min <= value <= limits.max)


def _rounded(values: Sequence[Any]) -> int | None:
    """A whole number that float64 does not have; None if there is none."""
    return next((value for value in values if type(value) is int and float(str(value)) != value), None)


def _floated(value: Any, kind: Any) -> Any:
    """A value with the whole numbers of a type of floating-point ones as such."""
    if isinstance(value, list):
        return [_floated(one, kind.value_type) for one in value]
    if isinstance(value, dict):
        return {one.name: _floated(value.get(one.name), one.type) for one in kind}
    return float(str(value)) if type(value) is int and need("pyarrow").types.is_floating(kind) else value


def _wider(value: Any, kind: Any) -> str | None:
    """The type that has a number which a type of whole ones has not; None if there is none."""
    if not need("pyarrow").types.is_integer(kind) or type(value) not in (int, float):
        return None
    return "float64" if isinstance(value, float) else "uint64" if 2**63 <= value < 2**64 else None


def _mixed(key: str, kind: str | None, reason: str, where: str) -> FormatError:
    name = as_pasted(key)
    rounds = ", which rounds whole numbers beyond 2**53" if kind == "float64" else ""
    way = f"Say of what type it is, `types={{{name}: {kind!r}}}`{rounds}; or keep it" if kind else "Keep it"
    return FormatError(
        f"the key {key!r:.100} has values of several types: {reason}",
        file=where,
        remedy=f"{way} as a text of JSON, `as_json=[{name}]`; or choose other fields: `fields=[...]`.",
    )


def late_key(key: str, value: Any, where: str) -> FormatError:
    """The error of a line with a key that the first lines do not have."""
    name = as_pasted(key)
    kind, usual = next((how for what, how in _USUAL.items() if isinstance(value, what)), ("float64", 0))
    text = f" and `as_json=[{name}]`" if isinstance(value, list | dict) else ""
    return FormatError(
        f"the first lines have no key {key!r:.100}",
        file=where,
        remedy="Say of what type it is and what stands for it where it is missing, "
        f"`types={{{name}: {kind!r}}}` and `fill={{{name}: {usual!r}}}`{text}, say; "
        "or choose other fields: `fields=[...]`.",
    )


def _would_be_rounded(key: str, number: int | None) -> str:
    return (
        f"the key {key!r:.100} has the whole number {number!s:.100}, which would be rounded: int64 and uint64 do not "
        "hold all numbers of the key"
    )


def _kept_or_rounded(key: str) -> str:
    return (
        f"Keep it as a text, `as_json=[{as_pasted(key)}]`; or say of what type it is, which may round it, "
        f"`types={{{as_pasted(key)}: 'float64'}}`, say."
    )


def named_type(name: str, given: object) -> Any:
    """The type that a user names for a key.

    Raises:
        OptionError: if there is none of that name.
    """
    try:
        return need("pyarrow").type_for_alias(given)
    except (ValueError, TypeError):
        raise OptionError(
            f"the type of {name!r} is {given!r:.100}", remedy="Pass int64, uint64, float64, bool or string, say."
        ) from None
