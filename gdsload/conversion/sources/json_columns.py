"""The values of a key in lines of JSON as a column of Arrow's: of one type, and whole numbers are never rounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from gdsload.conversion.reasons import as_pasted
from gdsload.conversion.sources.arrow_types import inner_type
from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError, OptionError

CONSTANTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The constants of JSON lines, as Python writes them; any other infinite number was too large."""

_USUAL: dict[type | tuple[type, ...], tuple[str, object]] = {bool: ("bool", False), (str, list, dict): ("string", "")}
"""The type that a value has, and what may stand for one that is missing; lists and objects as texts of JSON."""


def key_type(values: Sequence[Any], named: Any, key: str, file: str) -> Any:
    """The type of a key with these values; where they are lists, `named` is that of their elements.

    Raises:
        FormatError: if they are of several types.
        OptionError: if no type has all whole numbers, for as floats different ones would become the same; or if the key
            has no value.
    """
    arrow, there = need("pyarrow"), [value for value in values if value is not None]
    kinds = set(map(type, there))
    if kinds == {list}:
        return arrow.list_(key_type(list(chain.from_iterable(there)), named, key, file))
    if named is not None:
        zoned = arrow.timestamp(named.unit, "UTC") if arrow.types.is_timestamp(named) else named
        return zoned if kinds == {str} and _all_have(zoned, there) and not _all_have(named, there) else named
    if not there:
        raise OptionError(
            f"the key {key!r:.100} has no value in the first lines",
            file=file,
            remedy=f"Say of what type it is, `types={{{as_pasted(key)}: 'float64'}}`, say; or choose other fields: "
            "`fields=[...]`.",
        )
    if kinds == {int}:
        if found := next((kind for kind in (arrow.int64(), arrow.uint64()) if _all_have(kind, there)), None):
            return found
        beyond = _beyond(there, arrow.int64())
    elif kinds <= {int, float}:
        if (beyond := _rounded(there)) is None:
            return arrow.float64()
    elif len(kinds) == 1:
        return {bool: arrow.bool_(), str: arrow.string(), dict: arrow.struct([])}[kinds.pop()]
    else:
        other = next(one for one in there if type(one) is not type(there[0]))
        raise mixed(key, None, f"{there[0]!r:.50} and {other!r:.50}", file)
    reason, remedy = _rounding(key, beyond)
    raise OptionError(reason, file=file, remedy=remedy)


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
    arrow, inner = need("pyarrow"), inner_type(kind)
    elements = _elements(values, kind, key, where)
    try:
        if arrow.types.is_temporal(inner):
            return arrow.array(values, _of_texts(kind)).cast(kind)
        found = arrow.array(values, kind)
    except (arrow.ArrowException, ValueError, TypeError, OverflowError) as error:
        if not arrow.types.is_floating(inner):
            beyond = _beyond(elements, inner) if arrow.types.is_integer(inner) else None
            reason = str(error)[:200] if beyond is None else f"{inner} does not have {beyond}"
            raise mixed(key, _wider(beyond, inner), reason, where) from None
        if not rounds and (beyond := _rounded(elements)) is not None:
            reason, remedy = _rounding(key, beyond)
            raise FormatError(reason, file=where, remedy=remedy) from None
        found = arrow.array(_floated(values), kind)  # a large whole number, which is a float, too
    if arrow.types.is_floating(inner):
        numbers = found
        while arrow.types.is_list(numbers.type):
            numbers = numbers.flatten()
        infinite = int(np.isinf(numbers.to_numpy(zero_copy_only=False)).sum())
        if infinite and infinite > sum(any(one is known for known in CONSTANTS.values()) for one in elements):
            raise FormatError(
                f"the key {key!r:.100} has a number beyond those of {np.dtype(inner.to_pandas_dtype())}", file=where
            )
    return found


def _elements(values: Sequence[Any], kind: Any, key: str, where: str) -> Sequence[Any]:
    """The values that are in no list; or an error, as Arrow takes some of other types: it makes 1.0 of true."""
    types = need("pyarrow").types
    while True:
        odd = set(map(type, values)) - _held(kind)
        if odd:
            value = next(one for one in values if type(one) in odd)
            raise mixed(key, _wider(value, kind), f"{kind!s:.100} does not have {value!r:.100}", where)
        if not types.is_list(kind):
            return values
        values, kind = list(chain.from_iterable(one for one in values if one is not None)), kind.value_type


def _held(kind: Any) -> set[type]:
    """The types of JSON's values that a type of Arrow's has."""
    types = need("pyarrow").types
    if types.is_integer(kind) or types.is_floating(kind):
        return {type(None), int} if types.is_integer(kind) else {type(None), int, float}
    return {type(None), list if types.is_list(kind) else bool if types.is_boolean(kind) else str}


def _of_texts(kind: Any) -> Any:
    arrow = need("pyarrow")
    return arrow.list_(_of_texts(kind.value_type)) if arrow.types.is_list(kind) else arrow.string()


def _all_have(kind: Any, values: Sequence[Any]) -> bool:
    arrow = need("pyarrow")
    try:
        arrow.array(values).cast(kind) if arrow.types.is_temporal(kind) else arrow.array(values, kind)
    except (arrow.ArrowException, ValueError, OverflowError):
        return False
    return True


def _beyond(values: Sequence[int | None], kind: Any) -> int | None:
    """A whole number that a type does not have; None if there is none."""
    limits = np.iinfo(kind.to_pandas_dtype())
    return next((value for value in values if value is not None and not limits.min <= value <= limits.max), None)


def _rounded(values: Sequence[Any]) -> int | None:
    """A whole number that float64 does not have; None if there is none."""
    return next((value for value in values if type(value) is int and float(str(value)) != value), None)


def _floated(value: Any) -> Any:
    if isinstance(value, Sequence):
        return [_floated(one) for one in value]
    return value if value is None else float(str(value))


def _wider(value: Any, kind: Any) -> str | None:
    """The type that has a number which a type has not; None if there is none."""
    types, limits = need("pyarrow").types, np.iinfo(np.int64)
    if type(value) is float and types.is_integer(kind):
        return "float64"
    if type(value) is not int or not (types.is_integer(kind) or types.is_temporal(kind)):
        return None
    is_signed = (limits.min <= value <= limits.max and kind.bit_width < 64) or types.is_temporal(kind)
    return "int64" if is_signed else "uint64" if limits.max < value < 2**64 else None


def mixed(key: str, kind: str | None, reason: str, where: str) -> FormatError:
    """The error of a key that has a value of another type, and maybe of a kind that has all."""
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


def _rounding(key: str, number: int | None) -> tuple[str, str]:
    """The fault of a number that no type of numbers has, and the way out."""
    what = f"the key {key!r:.100} has the whole number {number!s:.100}, which would be rounded"
    rounded = f"or say of what type it is, which may round it, `types={{{as_pasted(key)}: 'float64'}}`, say."
    way = f"Keep it as a text, `as_json=[{as_pasted(key)}]`; {rounded}"
    return f"{what}: int64 and uint64 do not hold all numbers of the key", way


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
