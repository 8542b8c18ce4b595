"""Samples of a dataset read as a person writes it, for `read`, kvikio and torch's loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from gdsload.engine.codecs import codecs_of
from gdsload.loader.dataset import ShardDataset
from gdsload.shards.reads import Extents
from gdsload.shards.shard_table import ShardTable
from gdsload.shards.values import torch_dtype
from gdsload.system.arrays import IntArray

_ALIGNED_BYTES = 64


class Column(NamedTuple):
    """A column of some samples: its place in the batch's memory, its bytes in files, and the rows of each sample."""

    name: str
    begin: int
    extents: Extents
    lengths: IntArray | None


class StoredRows:
    """Reads samples with one `preadv` for each run of neighbours, in the calling thread; pickled by its path.

    With `shared`, batches are made in memory that processes share, as torch's own collate does in workers.
    """

    def __init__(self, path: str, *, shared: bool = False) -> None:
        self._path, self._shared = path, shared
        dataset = ShardDataset(path, mmap=False)
        self._stored, self._sources = dataset.stored, dataset.sources
        self._table = ShardTable.of(dataset.sources, dataset.stored, mapped=False)
        self._codecs = codecs_of(dataset.stored, tuple(dataset.schema), "offsets")

    def __reduce__(self) -> tuple[Callable[[], StoredRows], tuple[()]]:
        return partial(StoredRows, self._path, shared=self._shared), ()

    def __getitems__(self, ids: IntArray) -> dict[str, Any]:
        """A batch, as torch's loader asks for it."""
        return self.batch(ids)

    def batch(self, ids: IntArray) -> dict[str, Any]:
        """Samples by id, as `gdsload.DataLoader` gives them with ``ragged="offsets"``."""
        columns, nbytes = self.columns(ids)
        memory = torch.empty(0 if self._shared else nbytes, dtype=torch.uint8)
        if self._shared:  # as torch's default_collate does it: no copy is made when the batch leaves the worker
            storage = memory.untyped_storage()._new_shared(max(nbytes, 1))  # noqa: SLF001
            memory = memory.set_(storage)[:nbytes]
        view = memory.numpy().data
        for column in columns:
            position = column.begin
            for file, offset, length in runs(column.extents):
                self._table.files.read_into(file, offset, view[position : position + length])
                position += length
        return self.fields(columns, memory)

    def columns(self, ids: IntArray) -> tuple[list[Column], int]:
        """The columns of some samples, and the bytes of memory that they take."""
        found, columns, end = self._table.locate(ids), [], 0
        for name in self._stored.columns:
            extents, lengths = self._table.extents(name, found)
            columns.append(Column(name, end, extents, lengths))
            end += -(-extents.total_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
        return columns, end

    def fields(self, columns: Sequence[Column], memory: torch.Tensor) -> dict[str, Any]:
        """The fields in the memory of a batch, which may be a device's; texts are in that of the host."""
        batch: dict[str, Any] = {}
        for column in columns:
            codec = self._codecs[column.name]
            field = codec.stored
            values = memory[column.begin : column.begin + column.extents.total_bytes]
            if column.lengths is None:
                codec.put(batch, values.view(torch_dtype(field.dtype)).view(len(column.extents), *field.row_shape))
                continue
            ends = np.concatenate([[0], np.cumsum(column.lengths)])
            if field.kind == "ragged":
                rows = values.view(torch_dtype(field.dtype)).view(int(ends[-1]), *field.row_shape)
                batch[column.name] = rows, torch.from_numpy(ends)
            else:
                data = values.cpu().numpy().tobytes()
                pieces = [data[low:high] for low, high in pairwise(ends.tolist())]
                batch[column.name] = [piece.decode() for piece in pieces] if field.kind == "str" else pieces
        return {name: batch[name] for name in self._stored.schema}

    def source(self, file: int) -> str:
        """The path of a shard."""
        return self._sources[file].path

    def close(self) -> None:
        """Close the files."""
        self._table.files.close()


def runs(extents: Extents) -> Iterator[tuple[int, int, int]]:
    """File, offset and length of each run of extents that follow one another in a file; empty ones are left out."""
    some = extents[extents.nbytes > 0]
    if not len(some):
        return iter(())
    ends = some.offset + some.nbytes
    first = np.flatnonzero(np.r_[True, (some.file[1:] != some.file[:-1]) | (some.offset[1:] != ends[:-1])])
    nbytes = np.add.reduceat(some.nbytes, first)
    return zip(some.file[first].tolist(), some.offset[first].tolist(), nbytes.tolist(), strict=True)
