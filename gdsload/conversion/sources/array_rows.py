"""Arrays, or tensors, whose first dimension counts the samples: cut into parts, and parts into batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from gdsload.conversion.row_source import batches, common_length, row_parts
from gdsload.conversion.source import Item, Part

_SHORT = 2  # bytes: the number types that NumPy lacks are not longer


def array_parts(
    arrays: Mapping[str, Any], target_bytes: int, file: str, *, prefix: str = "rows", where: tuple[str, ...] = ()
) -> list[Part]:
    """Parts of about `target_bytes` of the arrays of fields; see `row_parts`.

    Raises:
        FormatError: if their lengths differ, or one has none.
    """
    lengths = {name: len(array) if array.ndim else -1 for name, array in arrays.items()}
    count = common_length(lengths, "arrays", file)
    row_bytes = sum(array.nbytes for array in arrays.values()) // max(count, 1)
    return row_parts(count, row_bytes, target_bytes, prefix=prefix, where=where)


def array_items(arrays: Mapping[str, Any], low: int, high: int, *, first: int = 0) -> Iterator[Item]:
    """The rows from `low` to `high` - 1, many at once; `first` is the number of the row that the arrays begin with."""
    row_bytes = sum(array.nbytes // max(len(array), 1) for array in arrays.values())
    for begin, end in batches(low, high, row_bytes):
        yield Item(f"rows {begin} to {end - 1}", partial(rows_of, arrays, begin - first, end - first), end - begin)


def rows_of(arrays: Mapping[str, Any], begin: int, end: int) -> dict[str, Any]:
    """Some rows of arrays, as fields take them."""
    return {name: plain_rows(array[begin:end]) for name, array in arrays.items()}


def plain_rows(rows: Any) -> Any:
    """Rows as a field takes them: a tuple, and texts and bytes of an array, as a list, all else as it is."""
    if isinstance(rows, tuple):
        return list(rows)
    if isinstance(rows, np.memmap):  # a subclass
        rows = np.asarray(rows)
    if not isinstance(rows, np.ndarray) or rows.ndim != 1:
        return rows
    return rows.tolist() if rows.dtype.kind in "US" or _is_raw(rows.dtype) else rows


def _is_raw(dtype: object) -> bool:
    """Return whether it is NumPy's type of raw bytes; bfloat16 and its like are of kind V, too."""
    return isinstance(dtype, np.dtype) and dtype.type is np.void and dtype.names is None


def bytes_notes(arrays: Mapping[str, Any]) -> list[str]:
    """Sentences on arrays, by field, of bytes of a fixed length: zeros are lost, or they are numbers."""
    found = [
        f"{name!r} has bytes of a fixed length ({array.dtype.itemsize}), of which zeros at the end are left out: where "
        "they are part of the value, store it as numpy's V type, or as rows of uint8"
        for name, array in arrays.items()
        if getattr(getattr(array, "dtype", None), "kind", None) == "S"
    ]
    return found + [
        f"{name!r} has raw bytes ({array.dtype.itemsize}), as which NumPy saves bfloat16 and float8, too: if they are "
        "numbers, save x.astype('float32')"
        for name, array in arrays.items()
        if _is_raw(getattr(array, "dtype", None)) and array.dtype.itemsize <= _SHORT
    ]
