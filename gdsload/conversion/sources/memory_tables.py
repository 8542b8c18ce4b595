"""Tables and arrays in memory: of pandas, polars and Arrow, of `datasets`, and mappings of arrays."""

from __future__ import annotations

from array import ArrayType as NumberArray
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Self, Unpack, cast

import numpy as np
import torch
import xxhash

from gdsload.conversion.row_source import (
    batches,
    bytes_notes,
    check_fields,
    common_length,
    filled,
    row_parts,
    rows_of,
)
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.arrow_columns import table_items
from gdsload.conversion.sources.arrow_types import ColumnOptions, Leaf, TableForm, TableSource, is_text
from gdsload.conversion.sources.extras import need
from gdsload.errors import OptionError, SchemaError
from gdsload.shards.pictures import is_picture
from gdsload.shards.values import check_dense, memory_of

_NAME, _MAPPING = "the table", "the mapping"


def is_table(found: object) -> bool:
    """Return whether Arrow takes an object as a table or a column: of pandas, polars, DuckDB or Arrow, say.

    Columns by name are one, too.
    """
    if is_mapping_of_arrays(found):
        return all(map(_is_column, cast("Mapping[object, object]", found).values()))
    marks = ("__arrow_c_stream__", "__arrow_c_array__")
    return not isinstance(found, type) and any(hasattr(found, mark) for mark in marks)


def is_mapping_of_arrays(found: object) -> bool:
    """Return whether an object maps names to arrays or columns; one from numbers to samples is a dataset of torch's."""
    return isinstance(found, Mapping) and any(isinstance(name, str) for name in found)


class TableInMemory(TableSource):
    """A table in memory, whose rows are samples and whose columns are fields, as those of Parquet files are.

    The index of a pandas table is a field if it has a name.

    Args:
        table: what Arrow can take as a table: of pandas, polars, DuckDB or Arrow itself.

    Raises:
        OptionError: if it is no table, or an option has no such value.
    """

    kind = "table in memory"
    threads = True

    def __init__(self, table: Any, **options: Unpack[ColumnOptions]) -> None:
        self.table_form = TableForm.of(options)
        self.table = self._taken(table)

    def _taken(self, table: Any) -> Any:
        arrow, shown = need("pyarrow"), f"{type(table).__module__}.{type(table).__qualname__}"
        if isinstance(table, arrow.RecordBatchReader):
            raise OptionError(
                "a RecordBatchReader can be read once only", remedy="Read it before: reader.read_all(), if it fits."
            )
        if isinstance(table, Mapping):
            _check_names(table)
            table, shown = {name: _column(name, one) for name, one in table.items()}, _MAPPING
        _refuse_objects(table, shown)
        try:
            if hasattr(table, "index") and hasattr(table, "columns"):
                named = any(name is not None for name in table.index.names)
                return arrow.Table.from_pandas(table, preserve_index=named or None)
            # polars' own way gives texts of a type that older pyarrow can read.
            return arrow.table(table.to_arrow() if hasattr(table, "to_arrow") else table)
        except (arrow.ArrowException, TypeError, ValueError) as error:
            raise OptionError(
                f"{shown} cannot be taken as a table: {str(error)[:300]}",
                remedy="A table has columns with names, each of one type. Pass a column by its name: {'x': column}.",
            ) from None

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`. The bytes of the table are identified by a checksum."""
        digest = xxhash.xxh3_128(self.table.schema.serialize())
        for batch in self.table.to_batches():
            digest.update(batch.serialize())
        form = self.table_form.to_json()
        return {"kind": self.kind, "xxh3_128": digest.hexdigest(), "rows": len(self.table), **form}

    def notes(self) -> list[str]:
        return [*self.table_form.index_notes(self.table.schema), *super().notes()]

    def parts(self, target_bytes: int) -> list[Part]:
        self._leaves()
        return filled(row_parts(len(self.table), self.row_bytes, target_bytes), "row", _NAME)

    def read(self, part: Part) -> Iterator[Item]:
        leaves = self._leaves()
        table = self.table.select(list(dict.fromkeys(leaf.path[0] for leaf in leaves)))
        low, high = (int(edge) for edge in part.where)
        for begin, end in batches(low, high, self.row_bytes):
            yield from table_items(table.slice(begin, end - begin), leaves, begin, _NAME)

    def _leaves(self) -> list[Leaf]:
        return self.table_form.leaves(self.table_form.without_index(self.table.schema), _NAME)

    @cached_property
    def row_bytes(self) -> int:
        """About how many bytes a row has."""
        return max(int(self.table.nbytes) // max(len(self.table), 1), 1)


class ArraysInMemory(FieldChoice):
    """Arrays, tensors and lists by name, which are fields; their first dimension counts the samples.

    A list has a value for each sample: a number, a text, or an array, whose first dimension may vary. A column of
    pandas, polars or Arrow is taken in its order, whatever its index, if it is of numbers or texts; if all are columns,
    they are a table. What else is a sequence, or an array to numpy, is taken as such: a `range`, an `array.array`.

    Args:
        arrays: them.

    Raises:
        OptionError: if a column cannot be taken.
    """

    kind = "arrays in memory"
    threads = True

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        _check_names(arrays)
        self.order = list(arrays)
        self.arrays = {name: _numbers(name, one) if _is_column(one) else _as_rows(one) for name, one in arrays.items()}

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`. The values are identified by a checksum."""
        digest = xxhash.xxh3_128()
        for name, array in self._chosen().items():
            digest.update(f"{name} {_shown(array)}".encode())
            for begin, end in batches(0, len(array), _row_bytes(array)) if _sized(array) else ():
                _digest(digest, array[begin:end])
        return {"kind": self.kind, "xxh3_128": digest.hexdigest(), "order": self.order}

    def notes(self) -> list[str]:
        return bytes_notes(self._chosen())

    def only(self, fields: Sequence[str]) -> Self:
        found = super().only(fields)
        found.arrays = {name: self.arrays[name] for name in check_fields(fields, self.order, _MAPPING)}
        return found

    def parts(self, target_bytes: int) -> list[Part]:
        arrays = self._chosen()
        lengths = {name: len(one) if _sized(one) else -1 for name, one in arrays.items()}
        count = common_length(lengths, "arrays", _MAPPING)
        return filled(row_parts(count, sum(map(_row_bytes, arrays.values())), target_bytes), "row", _MAPPING)

    def read(self, part: Part) -> Iterator[Item]:
        arrays = self._chosen()
        low, high = (int(edge) for edge in part.where)
        for begin, end in batches(low, high, max(map(_row_bytes, arrays.values()))):
            yield Item(f"rows {begin} to {end - 1}", partial(rows_of, arrays, begin, end), end - begin)

    def _chosen(self) -> dict[str, Any]:
        for name, array in self.arrays.items():
            _check(name, array)
        return self.arrays


def _is_column(found: object) -> bool:
    """Return whether an object is a column of pandas, polars or Arrow, which Arrow can take."""
    if isinstance(found, type | np.ndarray | torch.Tensor | list | tuple):
        return False
    marks = ("__arrow_c_stream__", "__arrow_c_array__", "__arrow_array__")
    return any(hasattr(found, mark) for mark in marks) or _is_of_pandas(found)


def _is_of_pandas(found: object) -> bool:
    return type(found).__module__.partition(".")[0] == "pandas" and hasattr(found, "__len__")


def _column(name: object, value: Any) -> Any:
    """A column of pandas, polars or Arrow as one of Arrow."""
    arrow, shown = need("pyarrow"), f"{type(value).__module__}.{type(value).__qualname__}"
    if hasattr(value, "columns"):
        raise OptionError(
            f"{name!r} is a table, {shown}, where columns by name are expected",
            remedy="Pass the table itself, or its columns by name.",
        )
    _refuse_objects(value, repr(name))
    try:
        if _is_of_pandas(value):
            return arrow.Array.from_pandas(value)  # by position, whatever the index
        value = value.to_arrow() if hasattr(value, "to_arrow") else value
        if isinstance(value, arrow.Array | arrow.ChunkedArray):
            return value
        return arrow.chunked_array(value) if hasattr(value, "__arrow_c_stream__") else arrow.array(value)
    except (arrow.ArrowException, TypeError, ValueError) as error:
        raise OptionError(
            f"{name!r}, a {shown}, cannot be taken as a column: {str(error)[:300]}",
            remedy="A column has values of one type. Pass it as an array: np.stack(x), say.",
        ) from None


def _numbers(name: str, value: Any) -> Any:
    """The values of a column that is beside arrays: numbers as an array, texts as a list."""
    column, types = _column(name, value), need("pyarrow").types
    if types.is_floating(column.type):
        return np.asarray(column)
    if not column.null_count and is_text(column.type):
        return column.to_pylist()
    if not column.null_count and (types.is_integer(column.type) or types.is_boolean(column.type)):
        return np.asarray(column)
    raise OptionError(
        f"{name!r} is a column of type {column.type!s:.100} beside arrays, or lacks a value",
        remedy="Pass it as an array or a list, with a value for each sample; or convert the columns alone, as a table.",
    )


def _check_names(arrays: Mapping[Any, Any]) -> None:
    if odd := [name for name in arrays if not isinstance(name, str)]:
        raise OptionError(f"the name {odd[0]!r:.100} is no text", remedy="Name all arrays by texts.")


def _refuse_objects(found: Any, shown: str) -> None:
    """Refuse Python's objects in a column of polars: Arrow gets their addresses."""
    is_polars = type(found).__module__.partition(".")[0] == "polars"
    if is_polars and "Object" in map(str, getattr(found, "dtypes", [getattr(found, "dtype", "")])):
        raise OptionError(
            f"{shown} has Python's objects, polars' type Object, which Arrow does not take",
            remedy="Pass them as a list by name: {'x': column.to_list()}.",
        )


def _as_rows(value: Any) -> Any:
    """A sequence, or an object that numpy takes as an array, as a list or an array; any other object as it is."""
    if isinstance(value, np.ndarray | np.generic | torch.Tensor | list | tuple | str | bytes) or is_picture(value):
        return value
    if isinstance(value, range | memoryview | NumberArray) or hasattr(value, "__array__"):
        return np.asarray(value)
    return list(value) if isinstance(value, Sequence) else value


def _sized(array: Any) -> bool:
    return isinstance(array, list | tuple) or (isinstance(array, np.ndarray | torch.Tensor) and array.ndim > 0)


def _check(name: str, array: Any) -> None:
    """Refuse a tensor that has no rows to be cut out of it, or no bytes. One in a list is its sample's fault."""
    if not isinstance(array, torch.Tensor):
        return
    if array.is_nested:
        raise SchemaError(
            "a nested tensor cannot be cut into parts", field=name, remedy="Pass its samples as a list: x.unbind()."
        )
    check_dense(array, name)


def _row_bytes(array: Any) -> int:
    if isinstance(array, list | tuple):
        first = array[0] if array else 0
        if isinstance(first, torch.Tensor):  # a sparse one refuses to tell its `nbytes`
            return max(first.numel() * first.element_size(), 8)
        return max(int(getattr(first, "nbytes", 0)) or len(first) if hasattr(first, "__len__") else 8, 8)
    return max(int(array.nbytes) // max(len(array), 1), 1)


def _shown(array: Any) -> str:
    return repr(array) if not _sized(array) else f"{getattr(array, 'dtype', '')} {getattr(array, 'shape', len(array))}"


def _digest(digest: Any, rows: Any) -> None:
    for one in rows if isinstance(rows, list | tuple) else [rows]:
        found = _memory(one)
        if found is None:
            digest.update(repr(one).encode("utf-8", "surrogatepass"))
        else:
            digest.update(f"{one.dtype} {tuple(one.shape)}".encode())
            digest.update(found)


def _memory(one: Any) -> Any:
    """The bytes of an array or tensor; None for what has none."""
    if isinstance(one, torch.Tensor):
        try:
            check_dense(one, "")
        except SchemaError:  # said when its sample's turn comes
            return None
        return memory_of(one)
    if isinstance(one, np.ndarray) and not one.dtype.hasobject:
        # Not `.data`: times, and types that numpy has from elsewhere, have no buffers.
        return np.ascontiguousarray(one).reshape(-1).view(np.uint8)
    return None
