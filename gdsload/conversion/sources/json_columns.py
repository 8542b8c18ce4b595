"""The values of a key in lines of JSON as a column of Arrow's: of one type, and whole numbers are never rounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from gdsload.conversion.reasons import as_pasted, in_words
from gdsload.conversion.sources.arrow_types import inner_type
from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError, OptionError

CONSTANTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The constants of JSON lines, as Python writes them; any other infinite number was too large."""

_TYPES = ("int64", "uint64", "float64", "bool", "string")
"""The types that keys get: the first one that has all values. Whole numbers alone do not become floating-point ones."""


def key_type(values: Sequence[Any], named: Any, key: str, file: str) -> Any:
    """The type of a key with these values; where they are lists, `named` is that of their elements.

    Raises:
        FormatError: if no type has all of them.
        OptionError: if the key has no value.
    """
    arrow, there = need("pyarrow"), [value for value in values if value is not None]
    if there and all(type(value) is list for value in there):
        return arrow.list_(key_type(list(chain.from_iterable(there)), named, key, file))
    if named is not None:
        zoned = arrow.timestamp(named.unit, "UTC") if arrow.types.is_timestamp(named) else named
        return named if zoned is named or not _has_all(zoned, there, key, file) else zoned
    if not there:
        raise OptionError(
            f"the key {key!r:.100} has no value in the first lines",
            file=file,
            remedy=f"Say of what type it is, `types={{{as_pasted(key)}: 'float64'}}`, say; or choose other fields: "
            "`fields=[...]`.",
        )
    if set(map(type, there)) == {str}:  # one that is no UTF-8 is its line's fault
        return arrow.string()
    # So is one that is too large, which Python reads as infinite.
    there = [0.5 if type(value) is float and math.isinf(value) else value for value in there]
    one = float if float in map(type, there) else type(there[0])
    kinds = [kind for kind in map(arrow.type_for_alias, _TYPES) if one in _held(kind)]
    kinds = [kind for kind in kinds if one is float or not arrow.types.is_floating(kind)]
    if (found := next((kind for kind in kinds if _has_all(kind, there, key, file)), None)) is not None:
        return found
    if not kinds:
        raise _no_such(key, "a field", f"it has {there[0]!r:.100}", file)
    return column_of(there, kinds[-1], key, file, rounds=False).type  # raises what is wrong


def _has_all(kind: Any, values: Sequence[Any], key: str, file: str) -> bool:
    try:
        column_of(values, kind, key, file, rounds=False)
    except FormatError:
        return False
    return True


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
    try:
        elements = _elements(values, kind)
        if arrow.types.is_temporal(inner):
            return arrow.array(values, _of_texts(kind)).cast(kind)
        if not arrow.types.is_floating(inner):
            return arrow.array(values, kind)
        whole = [one for one in elements if type(one) is int]
        if not rounds and (odd := next((one for one in whole if float(one) != one), None)) is not None:
            raise ValueError(f"it would round {odd}")
        # Arrow refuses whole numbers beyond 2**53, also those that are floating-point ones.
        found = numbers = arrow.array(_floated(values) if whole else values, kind)
        while arrow.types.is_list(numbers.type):
            numbers = numbers.flatten()
        infinite = int(np.isinf(numbers.to_numpy(zero_copy_only=False)).sum())
        if infinite and infinite > sum(any(one is known for known in CONSTANTS.values()) for one in elements):
            raise ValueError("a number is too large")
        return found
    except (arrow.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise _no_such(key, str(kind), in_words(error), where) from None


def _elements(values: Sequence[Any], kind: Any) -> Sequence[Any]:
    """The values that are in no list; a ValueError if one is of another type, as Arrow would make 1 of 1.5."""
    while True:
        if odd := set(map(type, values)) - _held(kind):
            value = next(one for one in values if type(one) in odd)
            raise ValueError(f"it has {value!r:.100}")
        if not need("pyarrow").types.is_list(kind):
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


def _floated(value: Any) -> Any:
    if isinstance(value, Sequence):
        return [_floated(one) for one in value]
    return value if value is None else float(value)


def _no_such(key: str, kind: str, reason: str, where: str) -> FormatError:
    """The error of a key that has a value which its type does not have."""
    name = as_pasted(key)
    return FormatError(
        f"the key {key!r:.100} cannot be {kind}: {reason}",
        file=where,
        remedy=f"Keep it as a text of JSON, `as_json=[{name}]`; or name another type, `types={{{name}: 'float64'}}`, "
        "say, which rounds large whole numbers; or choose other fields: `fields=[...]`.",
    )


def late_key(key: str, where: str) -> FormatError:
    """The error of a line with a key that the first lines do not have."""
    name = as_pasted(key)
    return FormatError(
        f"the first lines have no key {key!r:.100}",
        file=where,
        remedy=f"Say of what type it is and what stands for it where it is missing, `types={{{name}: 'float64'}}` and "
        f"`fill={{{name}: 0}}`, say; or choose other fields: `fields=[...]`.",
    )


def not_an_object(key: str, where: str) -> FormatError:
    """The error of a line with a value in place of the object whose parts are fields."""
    return FormatError(
        f"the key {key!r:.100} is no object, as in other lines",
        file=where,
        remedy="Choose fields that are not of its parts: `fields=[...]`.",
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
