"""Rows that are read many at once, of which a bad one is found by halves, so that it alone is at fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from gdsload.conversion.source import Item
from gdsload.errors import FormatError

Made = TypeVar("Made")


def halved(low: int, high: int, make: Callable[[int, int], Made]) -> Iterator[tuple[int, int, Made | FormatError]]:
    """Make something of rows, all at once; if that fails, of each half by itself, down to the error of a bad row."""
    if low == high:
        return
    try:
        made = make(low, high)
    except FormatError as error:
        if high - low == 1:
            yield low, high, error
            return
    else:
        yield low, high, made
        return
    middle = (low + high) // 2
    yield from halved(low, middle, make)
    yield from halved(middle, high, make)


def row_items(first: int, count: int, make: Callable[[int, int], dict[str, Any]]) -> Iterator[Item]:
    """As few items as there can be of rows, the first of which has this number.

    All are batches, also those of one row, so that a column of lists is seen to be ragged wherever it is cut.
    """
    for low, high, values in halved(0, count, make):
        key = f"row {first + low}" if high - low == 1 else f"rows {first + low} to {first + high - 1}"
        yield Item(key, partial(given, values), high - low)


def given(values: dict[str, Any] | FormatError) -> dict[str, Any]:
    """Values as they are, or the error in their place raised."""
    if isinstance(values, FormatError):
        raise values
    return dict(values)
