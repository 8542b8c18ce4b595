"""Columns of Arrow tables, as `ShardWriter.write_batch` takes them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.source import Item
from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError

__all__ = ["check_columns", "column_values", "table_items", "validate"]


def check_columns(schema: Any, file: str) -> None:
    """Refuse columns of types that no field can have.

    Args:
        schema: an Arrow schema.
        file: what it is the schema of, for the error.

    Raises:
        FormatError: naming the first such column.
    """
    arrow = need("pyarrow")
    for column in schema:
        _values(
            arrow.array([], column.type) if not _extended(column.type) else _nothing(column.type), column.name, file
        )


def _extended(kind: Any) -> bool:
    return isinstance(kind, need("pyarrow").BaseExtensionType)


def _nothing(kind: Any) -> Any:
    arrow = need("pyarrow")
    return arrow.ExtensionArray.from_storage(kind, arrow.array([], kind.storage_type))


def table_items(table: Any, first_row: int, file: str) -> Iterator[Item]:
    """The rows of a table: one item, or one for each row if some have no value, so that those alone are at fault.

    Args:
        table: an Arrow table or record batch.
        first_row: the number of its first row, for errors.
        file: where it comes from, for errors.
    """
    validate(table, file)
    count = table.num_rows
    if count and not any(_has_nulls(column) for column in _columns(table)):
        yield Item(f"rows {first_row} to {first_row + count - 1}", partial(_batch, table, first_row, file), count)
        return
    for row in range(count):
        yield Item(f"row {first_row + row}", partial(_row, table.slice(row, 1), first_row + row, file))


def validate(table: Any, file: str) -> None:
    """Refuse a table whose offsets or indices lead out of it: Arrow believes what a file says until it is asked.

    Raises:
        FormatError: if there are such, or texts that are not UTF-8.
    """
    try:
        table.validate(full=True)
    except need("pyarrow").ArrowException as error:
        raise FormatError(f"the table is damaged: {str(error)[:200]}", file=file) from None


def column_values(array: Any, name: str, first_row: int, file: str) -> Any:
    """The values of a column: an array, a pair (values, offsets), or a list of `str` or `bytes`.

    Raises:
        FormatError: if a value is missing, naming its row, or the column's type is none that a field can have.
    """
    if _has_nulls(array):
        row = next(row for row in range(len(array)) if _has_nulls(array.slice(row, 1)))
        raise FormatError(
            f"column {name!r} has no value, or one with a hole, in row {first_row + row}",
            file=file,
            remedy="Fill such values before (fill_null), leave the column out, or skip such rows: on_error='skip'.",
        )
    return _values(array, name, file)


def _batch(table: Any, first_row: int, file: str) -> dict[str, Any]:
    named = zip(table.schema.names, _columns(table), strict=True)
    return {name: column_values(column, name, first_row, file) for name, column in named}


def _row(table: Any, row: int, file: str) -> dict[str, Any]:
    # The one sample of a ragged field is all of its values.
    return {name: values[0] for name, values in _batch(table, row, file).items()}


def _columns(table: Any) -> list[Any]:
    """The columns, each in one piece."""
    return [_whole(table.column(position)) for position in range(table.num_columns)]


def _whole(column: Any) -> Any:
    arrow = need("pyarrow")
    if not isinstance(column, arrow.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if not column.num_chunks:
        return _nothing(column.type) if _extended(column.type) else arrow.array([], column.type)
    return arrow.concat_arrays(column.chunks)


def _is_list(kind: Any) -> bool:
    types = need("pyarrow").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _has_nulls(array: Any) -> bool:
    """Whether a value is missing, in the array or in the lists that are its values."""
    if _extended(array.type):
        array = array.storage
    if need("pyarrow").types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        return True
    return _is_list(array.type) and _has_nulls(array.flatten())


def _values(array: Any, name: str, file: str) -> Any:
    types = need("pyarrow").types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or _is_binary(types, kind):
        return array.to_pylist()
    if types.is_list(kind) or types.is_large_list(kind):
        edges = np.asarray(array.offsets).astype(np.int64)
        return _fixed(array.flatten(), kind, name, file), edges - edges[0] if len(edges) else np.zeros(1, np.int64)
    return _fixed(array, kind, name, file)


def _is_binary(types: Any, kind: Any) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _fixed(array: Any, of: Any, name: str, file: str) -> NDArray[Any]:
    """Numbers, or lists of them that are all of one length, as an array."""
    types = need("pyarrow").types
    shape: list[int] = [len(array)]
    if _extended(array.type):
        # That of Arrow's own tensors, and of those of `datasets`, where None stands for a size that varies.
        inner = list(getattr(array.type, "shape", None) or ())
        if None in inner:
            raise FormatError(f"column {name!r} has tensors of shape {inner}, which vary", file=file)
        array = array.storage
        while _is_list(array.type):
            array = array.flatten()
        return _shaped(_numbers(array, of, name, file), [*shape, *inner], name, file)
    while types.is_fixed_size_list(array.type):
        shape.append(array.type.list_size)
        array = array.flatten()
    return _shaped(_numbers(array, of, name, file), shape, name, file)


def _shaped(numbers: NDArray[Any], shape: list[int], name: str, file: str) -> NDArray[Any]:
    try:
        return numbers.reshape(shape)
    except ValueError:
        raise FormatError(f"column {name!r} has values that are not of shape {shape[1:]}", file=file) from None


def _numbers(array: Any, of: Any, name: str, file: str) -> NDArray[Any]:
    types = need("pyarrow").types
    kind = array.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise FormatError(
            f"column {name!r} is of type {of!s:.200}, which no field can have",
            file=file,
            remedy="Fields are numbers, lists of numbers, text and bytes: cast it before, or choose other columns.",
        )
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers
