"""The types of keys in lines of JSON, which Arrow finds: large whole numbers stay whole, and none is rounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from gdsload.conversion.reasons import as_pasted
from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError, OptionError

__all__ = ["check_rounded", "has_large_float", "named_type", "settled_type"]

_EXACT = 2**53  # up to which float64 has all whole numbers


def settled_type(column: Any, values: Sequence[Any], key: str, file: str) -> Any:
    """The type that Arrow has found of a key, but texts that look like times are texts, and large whole numbers uint64.

    The values as Python has them are needed only if a float in the column is large.

    Raises:
        OptionError: if whole numbers of a key are in no type, for as floats different ones would become the same; or if
            it has no value.
    """
    arrow, kind, there = need("pyarrow"), column.type, [value for value in values if value is not None]
    if arrow.types.is_timestamp(kind):
        return arrow.string()
    if arrow.types.is_null(kind) and len(column):
        raise OptionError(
            f"the key {key!r:.100} has no value in the first lines",
            file=file,
            remedy=f"Say of what type it is, `types={{{as_pasted(key)}: 'float64'}}`, say; or choose other fields: "
            "`fields=[...]`.",
        )
    if arrow.types.is_list(kind):
        return arrow.list_(settled_type(column.flatten(), [one for value in there for one in value], key, file))
    if arrow.types.is_struct(kind):
        inner = zip(kind, column.flatten(), strict=True)
        settled = (
            (one, settled_type(part, [value.get(one.name) for value in there], key, file)) for one, part in inner
        )
        return arrow.struct([(one.name, found) for one, found in settled])
    if not there or not arrow.types.is_floating(kind):
        return kind
    if all(type(value) is int for value in there):
        if min(there) >= 0 and max(there) < 2**64:
            return arrow.uint64()
        beyond: int | None = next(value for value in there if not -(2**63) <= value < 2**63)
    else:
        beyond = next(_rounded(there, kind), None)
    if beyond is None:
        return kind
    raise OptionError(_beyond(key, beyond), file=file, remedy=_kept_or_rounded(key))


def check_rounded(column: Any, values: Sequence[Any], key: str, where: str) -> None:
    """Refuse a column of a table in which a whole number of a line, of these values, has been rounded.

    Raises:
        FormatError: naming the first one.
    """
    for number in _rounded(list(values), column.type):
        raise FormatError(_beyond(key, number), file=where, remedy=_kept_or_rounded(key))


def _rounded(value: Any, kind: Any) -> Iterator[int]:
    """The whole numbers in a value, of this type to Arrow, that floating-point ones of the type do not have."""
    if isinstance(value, list):
        inner = kind.value_type if hasattr(kind, "value_type") else kind
        for one in value:
            yield from _rounded(one, inner)
    elif isinstance(value, dict):
        for one in kind:
            yield from _rounded(value.get(one.name), one.type)
    elif (
        type(value) is int and need("pyarrow").types.is_floating(kind) and Decimal(value) != Decimal(float(str(value)))
    ):
        yield value


def has_large_float(column: Any) -> bool:
    """Return whether a float of a column is beyond the whole numbers that all floats are."""
    types = need("pyarrow").types
    if isinstance(column, need("pyarrow").ChunkedArray):
        return any(map(has_large_float, column.chunks))
    if types.is_list(column.type) or types.is_struct(column.type):
        inner = column.flatten()
        return any(map(has_large_float, inner if isinstance(inner, list) else [inner]))
    return types.is_floating(column.type) and bool((np.abs(column.to_numpy(zero_copy_only=False)) >= _EXACT).any())


def _beyond(key: str, number: int) -> str:
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
