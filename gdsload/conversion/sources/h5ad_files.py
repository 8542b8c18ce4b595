"""AnnData files (`.h5ad`), by h5py: a row for each cell, sparse or dense, and what is known of the cell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import FileOptions, FileSource
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import batches, check_fields, choice_of, filled, row_parts
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.arrow_columns import table_items
from gdsload.conversion.sources.arrow_types import Leaf, TableForm
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.hdf5_files import opened_hdf5, own_child
from gdsload.errors import FormatError, OptionError

_MAX_BYTES = 2**31
_VARYING_BYTES = 32
_OF_MATRIX = {"X", "indices", "values"}


class H5adSource(FieldChoice, FileSource):
    """The cells of AnnData files.

    Of a sparse matrix (CSR) a cell has the fields ``indices`` and ``values``, ragged, as they are stored; of a dense
    one, or with `dense`, ``X``, ``[genes]``. Columns of ``obs`` are fields of their names: numbers and texts; of
    categories the codes, whose names `categories` has. A cell in which a value is missing is an error of that cell, but
    for floating-point numbers, which are NaN. Links to other files are never followed.

    Args:
        path: a `.h5ad` file, or a folder of them, whose cells follow each other.
        matrix: which one: ``"X"``, ``"raw/X"``, ``"layers/counts"``.
        dense: whether sparse rows become dense ones.
        with_key: add a text field ``key``, the name that the cell has in ``obs``.
        fill: what stands for a missing value, by field; of categories a code: ``{"kind": -1}``.
    """

    kind = "AnnData files"
    threads = False
    suffixes = (".h5ad",)
    decisive = ("matrix", "dense", "with_key", "fill")

    def __init__(
        self,
        path: str,
        *,
        matrix: str = "X",
        dense: bool = False,
        with_key: bool = False,
        fill: Mapping[str, Any] | None = None,
        **files: Unpack[FileOptions],
    ) -> None:
        super().__init__(path, **files)
        self.matrix, self.dense, self.with_key = matrix, dense, with_key
        self.fill = dict(fill or {})

    @property
    def genes(self) -> list[str]:
        """The names of the matrix' columns, which ``indices`` are positions in: of the first file."""
        file = self.all_files()[0]
        with opened_hdf5(file) as opened:
            var = _at(opened, "raw/var" if self.matrix.startswith("raw/") else "var", file)
            return _texts(_column(var, _index_of(var), file).values, 0, None)

    @property
    def categories(self) -> dict[str, list[str]]:
        """The names of the codes in each column of categories: of the first file."""
        file, found = self.all_files()[0], {}
        with opened_hdf5(file) as opened:
            obs = _at(opened, "obs", file)
            for name in self._cells(opened, file).of_obs:
                child = own_child(obs, name, file)
                if _encoding(child) == "categorical":
                    found[name] = [str(one) for one in _texts(_column(child, "categories", file).values, 0, None)]
        return found

    def metadata(self) -> dict[str, Any]:
        return {"genes": self.genes, "classes": self.categories}

    def parts(self, target_bytes: int) -> list[Part]:
        found: list[Part] = []
        genes: dict[int, str] = {}
        for file in self.all_files():
            with opened_hdf5(file) as opened:
                cells = self._cells(opened, file)
                genes.setdefault(cells.width, file)
                prefix = f"{os.path.basename(file)}, rows"
                found += row_parts(cells.count, cells.row_bytes, target_bytes, prefix=prefix, where=(file,))
        if len(genes) > 1:
            listed = ", ".join(f"{count} in {os.path.basename(file)}" for count, file in genes.items())
            raise FormatError(f"the files have different numbers of genes: {listed[:300]}", file=self.path)
        return filled(found, "cell", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`. Items are made while the file is open: before the next one is asked for."""
        file, low, high = str(part.where[0]), int(part.where[1]), int(part.where[2])
        with opened_hdf5(file) as opened:
            cells = self._cells(opened, file)
            for begin, end in batches(low, high, cells.row_bytes):
                yield from cells.items(begin, end)

    def _names(self, order: list[str], cells: _Cells, file: str) -> list[str]:
        """The columns of obs that are wanted, of those that there are."""
        own = [*cells.matrix, *(["key"] if self.with_key else [])]
        if self.fields is None:
            if both := sorted(set(own) & set(order)):
                others = [name for name in order if name not in own]
                remedy = f"Leave it out: {choice_of([*own, *others])}."
                raise FormatError(f"a column of obs is called {both[0]!r}, too", file=file, remedy=remedy)
            return order
        wanted = check_fields(self.fields, [*own, *(name for name in order if name not in own)], file)
        return [name for name in wanted if name not in own]

    def _cells(self, opened: Any, file: str) -> _Cells:
        obs = _at(opened, "obs", file)
        if _encoding(obs) != "dataframe":
            raise FormatError("obs is no table as anndata 0.8 and later write it", file=file, remedy="Write it again.")
        order = [str(name) for name in np.asarray(obs.attrs.get("column-order", [])).tolist()]
        if self.fields is None or not set(self.fields) <= {*order, "key"} - _OF_MATRIX:
            cells = _matrix(_at(opened, self.matrix, file), self.dense, file)
        else:
            cells = _Cells(file, len(_column(obs, _index_of(obs), file).values), 0, 1, {})
        cells.of_obs = self._names(order, cells, file)
        columns = {name: name for name in cells.of_obs} | ({"key": _index_of(obs)} if self.with_key else {})
        for name, stored in columns.items():
            column = _column(obs, stored, file)
            shapes = {one.shape for one in (column.values, column.mask) if one is not None}
            for shape in shapes - {(cells.count,)}:
                raise FormatError(f"column {name!r} has shape {shape}, not {(cells.count,)}", file=file)
            cells.obs[name] = column
            cells.row_bytes += _VARYING_BYTES if column.values.dtype.kind == "O" else column.values.dtype.itemsize
        check_fields([*self.fill], order, file)
        fill = {name: value for name, value in self.fill.items() if name in cells.obs}
        cells.leaves = TableForm(None, fill).leaves(cells.table(0, 0).schema, file)
        return cells


@dataclass(slots=True)
class _Cells:
    """Rows of a file: how each field of the matrix is read from one to another, and the columns of obs."""

    file: str
    count: int
    width: int
    row_bytes: int
    matrix: dict[str, Callable[[int, int], Any]]
    obs: dict[str, _Column] = field(default_factory=dict)
    of_obs: list[str] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)

    def table(self, begin: int, end: int) -> Any:
        return need("pyarrow").table({name: column.array(begin, end) for name, column in self.obs.items()})

    def items(self, begin: int, end: int) -> Iterator[Item]:
        if not self.obs:
            yield Item(f"rows {begin} to {end - 1}", partial(self.rows, begin, end), end - begin)
            return
        for item in table_items(self.table(begin, end), self.leaves, begin, self.file):
            count = item.count or 1
            yield Item(item.key, partial(self._joined, item, begin, begin + count), count)
            begin += count

    def rows(self, begin: int, end: int) -> dict[str, Any]:
        """The fields of the matrix."""
        with reading(f"rows {begin} to {end - 1} cannot be read", self.file, OSError, RuntimeError, ValueError):
            return {name: read(begin, end) for name, read in self.matrix.items()}

    def _joined(self, item: Item, begin: int, end: int) -> dict[str, Any]:
        return {**self.rows(begin, end), **item.make()}


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of obs, and, of one that may have holes, where it has none: a mask, or the codes, negative ones."""

    values: Any
    mask: Any = None

    def array(self, begin: int, end: int) -> Any:
        """Some rows as an array of Arrow's."""
        arrow, mask = need("pyarrow"), None if self.mask is None else self.mask[begin:end]
        lost = mask < 0 if mask is not None and mask.dtype.kind == "i" else mask
        if need("h5py").check_string_dtype(self.values.dtype):
            return arrow.array(np.array(_texts(self.values, begin, end), object), arrow.string(), mask=lost)
        values = self.values[begin:end]
        return arrow.array(values.astype(values.dtype.newbyteorder("="), copy=False), mask=lost)


def _matrix(found: Any, dense: bool, file: str) -> _Cells:
    h5py = need("h5py")
    if isinstance(found, h5py.Dataset):
        if found.ndim != 2 or found.dtype.kind not in "biuf":
            raise FormatError(f"the matrix is of type {found.dtype!s:.100} and shape {found.shape}", file=file)
        count, width = found.shape
        row_bytes = _bounded(width * found.dtype.itemsize, file)
        return _Cells(file, count, width, row_bytes, {"X": lambda begin, end: found[begin:end]})
    if _encoding(found) != "csr_matrix":
        raise FormatError(
            f"the matrix is a {_encoding(found) or 'group'!s:.100}, which has no rows one by one",
            file=file,
            remedy="Save it with rows together: adata.X = adata.X.tocsr().",
        )
    count, width = (int(size) for size in np.asarray(found.attrs["shape"]).tolist())
    starts, indices, values = (own_child(found, name, file) for name in ("indptr", "indices", "data"))
    sparse = _Sparse(starts, indices, values, width, file)
    sparse.check(count)
    itemsizes = sparse.values.dtype.itemsize, sparse.indices.dtype.itemsize
    row_bytes = len(sparse.values) * sum(itemsizes) // max(count, 1) + 16
    if dense:
        row_bytes = _bounded(width * itemsizes[0], file)
        return _Cells(file, count, width, row_bytes, {"X": sparse.dense})
    return _Cells(file, count, width, row_bytes, {"indices": sparse.indices_of, "values": sparse.values_of})


@dataclass(frozen=True, slots=True)
class _Sparse:
    """A matrix of rows of pairs: the position and the value of what is not zero."""

    starts: Any
    indices: Any
    values: Any
    width: int
    file: str

    def check(self, count: int) -> None:
        h5py = need("h5py")
        for one, kinds in ((self.starts, "iu"), (self.indices, "iu"), (self.values, "biuf")):
            if not isinstance(one, h5py.Dataset) or one.ndim != 1 or one.dtype.kind not in kinds:
                raise FormatError("the sparse matrix lacks an array", file=self.file)
        if count < 0 or len(self.starts) != count + 1 or len(self.indices) != len(self.values):
            raise FormatError("the arrays of the sparse matrix have other lengths than its shape", file=self.file)

    def edges(self, begin: int, end: int) -> NDArray[np.int64]:
        edges: NDArray[np.int64] = self.starts[begin : end + 1].astype(np.int64)
        if edges[0] < 0 or edges[-1] > len(self.values) or (np.diff(edges) < 0).any():
            raise FormatError(f"rows {begin} to {end - 1} are outside of the sparse matrix' values", file=self.file)
        _bounded(int(edges[-1] - edges[0]) * self.values.dtype.itemsize, self.file)
        return edges

    def indices_of(self, begin: int, end: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        edges = self.edges(begin, end)
        indices = self.indices[edges[0] : edges[-1]]
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < self.width:
            raise FormatError(f"rows {begin} to {end - 1} have values outside of {self.width} columns", file=self.file)
        return indices, edges - edges[0]

    def values_of(self, begin: int, end: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        edges = self.edges(begin, end)
        return self.values[edges[0] : edges[-1]], edges - edges[0]

    def dense(self, begin: int, end: int) -> NDArray[Any]:
        indices, edges = self.indices_of(begin, end)
        values, _ = self.values_of(begin, end)
        found = np.zeros((end - begin, self.width), values.dtype)
        rows = np.repeat(np.arange(end - begin), np.diff(edges))
        np.add.at(found, (rows, indices), values)  # what stands there twice is added, as scipy does
        return found


def _bounded(nbytes: int, file: str) -> int:
    if nbytes > _MAX_BYTES:
        raise FormatError(f"a row has {nbytes} bytes; the most is {_MAX_BYTES}", file=file)
    return max(nbytes, 1)


def _column(group: Any, name: str, file: str) -> _Column:
    child = own_child(group, name, file)
    h5py, encoding, mask = need("h5py"), _encoding(child), None
    if encoding == "categorical":
        child = own_child(child, "codes", file)
        mask = child if isinstance(child, h5py.Dataset) and child.dtype.kind == "i" else None
    elif encoding.startswith("nullable-"):
        mask, child = own_child(child, "mask", file), own_child(child, "values", file)
        if not isinstance(mask, h5py.Dataset) or mask.dtype.kind != "b":
            raise FormatError(f"column {name!r} does not say which values it has", file=file)
    if isinstance(child, h5py.Dataset) and (child.dtype.kind in "biuf" or h5py.check_string_dtype(child.dtype)):
        return _Column(child, mask)
    raise FormatError(
        f"column {name!r} of obs is a {encoding or type(child).__name__!s:.100}, which no field can have",
        file=file,
        remedy="Choose other columns: `fields=[...]`.",
    )


def _texts(values: Any, begin: int, end: int | None) -> list[Any]:
    return [one.decode() if isinstance(one, bytes) else one for one in values[begin:end].tolist()]


def _index_of(frame: Any) -> str:
    return str(frame.attrs.get("_index", "_index"))


def _encoding(child: Any) -> str:
    return str(getattr(child, "attrs", {}).get("encoding-type", ""))


def _at(opened: Any, path: str, file: str) -> Any:
    here = opened
    for name in path.strip("/").split("/"):
        here = own_child(here, name, file) if hasattr(here, "keys") else None
        if here is None:
            raise OptionError(f"there is no {path!r:.100}", file=file)
    return here
