"""Tables and arrays in memory: of pandas, polars and Arrow, of `datasets`, and mappings of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import torch
import xxhash

from gdsload.conversion.row_source import BATCH_BYTES, check_fields, common_length, row_parts, spans
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.arrow_columns import table_items
from gdsload.conversion.sources.arrow_types import Leaf, TableForm
from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError, OptionError, SchemaError
from gdsload.shards.values import check_dense, memory_of

__all__ = ["ArraysInMemory", "TableInMemory", "is_mapping_of_arrays", "is_table"]

_NAME = "the table"


def is_table(found: object) -> bool:
    """Whether Arrow can take it as a table or a column, without a copy where it is one: pandas, polars, DuckDB."""
    return not isinstance(found, type) and hasattr(found, "__arrow_c_stream__")


def is_mapping_of_arrays(found: object) -> bool:
    """Whether it has columns by name. A mapping from numbers to samples is a dataset of torch's."""
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        return False
    return any(_sized(value) for value in found.values())


class TableInMemory(FieldChoice):
    """A table in memory, whose rows are samples and whose columns are fields, as those of Parquet files are.

    The index of a pandas table is a field if it has a name.

    Args:
        table: what Arrow can take as a table: of pandas, polars, DuckDB or Arrow itself.
        fill: what stands for a missing value, by field.
        as_json: columns that become texts of JSON.
        decimals: what decimal numbers become, ``"float64"`` or ``"scaled"``.

    Raises:
        OptionError: if it is no table, or an option has no such value.
    """

    kind = "table in memory"
    threads = True

    def __init__(
        self,
        table: Any,
        *,
        fill: Mapping[str, Any] | None = None,
        as_json: Sequence[str] = (),
        decimals: str | None = None,
    ) -> None:
        self.form = TableForm(None, fill or {}, as_json, decimals)
        self._left_out: list[str] = []
        self.table = self._taken(table)

    def _taken(self, table: Any) -> Any:
        arrow, shown = need("pyarrow"), f"{type(table).__module__}.{type(table).__qualname__}"
        if isinstance(table, arrow.RecordBatchReader):
            raise OptionError(
                "a RecordBatchReader can be read once only", remedy="Read it before: reader.read_all(), if it fits."
            )
        try:
            if hasattr(table, "index") and hasattr(table, "columns"):
                named = any(name is not None for name in table.index.names)
                if not named and type(table.index).__name__ != "RangeIndex":
                    self._left_out.append("its index has no name and is left out: reset_index() makes a column of it")
                return arrow.Table.from_pandas(table, preserve_index=named)
            # polars' own way gives texts of a type that older pyarrow can read.
            return arrow.table(table.to_arrow() if hasattr(table, "to_arrow") else table)
        except (arrow.ArrowException, TypeError, ValueError) as error:
            raise OptionError(
                f"{shown} cannot be taken as a table: {str(error)[:300]}",
                remedy="A table has columns with names, each of one type: to_frame() makes one of a series.",
            ) from None

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`. The bytes of the table are told by a checksum."""
        digest = xxhash.xxh3_128(self.table.schema.serialize())
        for batch in self.table.to_batches():
            digest.update(batch.serialize())
        return {"kind": self.kind, "xxh3_128": digest.hexdigest(), "rows": len(self.table), **self.form.to_json()}

    def notes(self) -> list[str]:
        """What users should know of it."""
        return [*self._left_out, *self.form.index_notes(self.table.schema), *self.form.notes(self._leaves())]

    def metadata(self) -> dict[str, Any]:
        """What the dataset's metadata have of the table: units."""
        return self.form.metadata(self._leaves())

    def only(self, fields: Sequence[str]) -> Self:
        """See `Selective.only`."""
        found = super().only(fields)
        found.form = self.form.only(fields)
        return found

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`."""
        self._leaves()
        if not len(self.table):
            raise FormatError("the table has not one row")
        return row_parts(len(self.table), max(target_bytes // self._row_bytes, 1), self._row_bytes)

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        leaves = self._leaves()
        table = self.table.select(list(dict.fromkeys(leaf.path[0] for leaf in leaves)))
        low, high = (int(edge) for edge in part.where)
        for begin, end in spans(low, high, max(BATCH_BYTES // self._row_bytes, 1)):
            yield from table_items(table.slice(begin, end - begin), leaves, begin, _NAME)

    def _leaves(self) -> list[Leaf]:
        return self.form.leaves(self.form.without_index(self.table.schema), _NAME)

    @cached_property
    def _row_bytes(self) -> int:
        return max(int(self.table.nbytes) // max(len(self.table), 1), 1)


class ArraysInMemory(FieldChoice):
    """Arrays, tensors and lists by name, which are fields; their first dimension counts the samples.

    A list has a value for each sample: a number, a text, or an array, whose first dimension may vary.

    Args:
        arrays: them.
    """

    kind = "arrays in memory"
    threads = True

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.arrays = {str(name): value for name, value in arrays.items()}

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`. The values are told by a checksum."""
        digest = xxhash.xxh3_128()
        for name, array in self._chosen().items():
            digest.update(f"{name} {_shown(array)}".encode())
            for begin, end in spans(0, len(array), self._step(array)) if _sized(array) else ():
                _digest(digest, array[begin:end])
        return {"kind": self.kind, "xxh3_128": digest.hexdigest()}

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`."""
        arrays = self._chosen()
        count = common_length(
            {name: len(a) if _sized(a) else -1 for name, a in arrays.items()}, "arrays", "the mapping"
        )
        if not count:
            raise FormatError("the arrays have not one row")
        row_bytes = sum(_row_bytes(array) for array in arrays.values())
        return row_parts(count, max(target_bytes // row_bytes, 1), row_bytes)

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        arrays = self._chosen()
        low, high = (int(edge) for edge in part.where)
        for begin, end in spans(low, high, min(self._step(array) for array in arrays.values())):
            yield Item(f"rows {begin} to {end - 1}", partial(_rows, arrays, begin, end), end - begin)

    def _chosen(self) -> dict[str, Any]:
        found = {name: self.arrays[name] for name in check_fields(self.fields, self.arrays, "the mapping")}
        for name, array in found.items():
            _check(name, array)
        return found

    def _step(self, array: Any) -> int:
        return max(BATCH_BYTES // _row_bytes(array), 1)


def _rows(arrays: Mapping[str, Any], begin: int, end: int) -> dict[str, Any]:
    rows = {name: array[begin:end] for name, array in arrays.items()}
    return {name: list(value) if isinstance(value, tuple) else _texts(value) for name, value in rows.items()}


def _texts(value: Any) -> Any:
    """An array of texts or bytes as a list, as a field of them takes it."""
    return value.tolist() if isinstance(value, np.ndarray) and value.dtype.kind in "US" and value.ndim == 1 else value


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
