"""Samples of a dataset read without gdsload's readers: what a person writes, for `read`, kvikio and torch's loader."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from gdsload.engine.codecs import codecs_of
from gdsload.loader.dataset import ShardDataset
from gdsload.shards.local_files import pread_exact
from gdsload.shards.reads import Extents
from gdsload.shards.shard_table import ShardTable
from gdsload.shards.values import torch_dtype
from gdsload.system.arrays import IntArray

_ALIGNED_BYTES = 64
_AHEAD = 4
"""Batches that kvikio reads beside the one that is waited for."""


class _Column(NamedTuple):
    """A column of some samples: its place in the batch's memory, its bytes in files, and the rows of each sample."""

    name: str
    begin: int
    extents: Extents
    lengths: IntArray | None


class StoredRows:
    """Reads samples with one `preadv` for each run of neighbours, in the calling thread; pickled by its path.

    Args:
        path: the dataset.
        shared: whether batches are made in memory that processes share, as torch's own collate does in workers.
    """

    def __init__(self, path: str, *, shared: bool = False) -> None:
        self._path, self._shared = path, shared
        dataset = ShardDataset(path, mmap=False)
        self._stored, self._sources = dataset.stored, dataset.sources
        self._table = ShardTable.of(dataset.sources, dataset.stored, mapped=False)
        self._codecs = codecs_of(dataset.stored, tuple(dataset.schema), "offsets")
        self._fds: dict[int, int] = {}

    def __reduce__(self) -> tuple[Callable[..., StoredRows], tuple[str, bool]]:
        return _remade, (self._path, self._shared)

    def __getitems__(self, ids: IntArray) -> dict[str, Any]:
        """A batch, as torch's loader asks for it."""
        return self.batch(ids)

    def batch(self, ids: IntArray) -> dict[str, Any]:
        """Samples by id, as `gdsload.DataLoader` gives them with ``ragged="offsets"``."""
        columns, nbytes = self.columns(ids)
        memory = _shared_memory(nbytes) if self._shared else torch.empty(nbytes, dtype=torch.uint8)
        view = memory.numpy().data
        for column in columns:
            position = column.begin
            for file, offset, length in runs(column.extents):
                pread_exact(self._open(file), view[position : position + length], offset, self.source(file))
                position += length
        return self.fields(columns, memory)

    def columns(self, ids: IntArray) -> tuple[list[_Column], int]:
        """The columns of some samples, and the bytes of memory that they take."""
        found, columns, end = self._table.locate(ids), [], 0
        for name in self._stored.columns:
            extents, lengths = self._table.extents(name, found)
            columns.append(_Column(name, end, extents, lengths))
            end += -(-extents.total_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
        return columns, end

    def fields(self, columns: Sequence[_Column], memory: torch.Tensor) -> dict[str, Any]:
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

    def _open(self, file: int) -> int:
        if file not in self._fds:
            self._fds[file] = os.open(self.source(file), os.O_RDONLY | os.O_CLOEXEC)
        return self._fds[file]

    def close(self) -> None:
        """Close the files."""
        while self._fds:
            os.close(self._fds.popitem()[1])
        self._table.files.close()


class KvikioRows:
    """Reads samples into a GPU's memory with one `pread` of kvikio's for each run of neighbours, 5 batches at once.

    Raises:
        Exception: whatever kvikio raises where it cannot be used.
    """

    def __init__(self, rows: StoredRows, device: torch.device) -> None:
        self._kvikio: Any = importlib.import_module("kvikio")
        importlib.import_module("kvikio.defaults").set(
            {"num_threads": 16, "task_size": 4 * 2**20, "compat_mode": self._kvikio.CompatMode.AUTO}
        )
        self._rows, self._device = rows, device
        self._files: dict[int, Any] = {}

    def batches(self, ids: Iterator[IntArray]) -> Iterator[dict[str, Any]]:
        """A batch for each of these lists of samples."""
        under_way: list[tuple[list[_Column], torch.Tensor, list[Any]]] = []
        try:
            for some in ids:
                under_way.append(self._begin(some))
                if len(under_way) > _AHEAD:
                    yield self._finish(*under_way.pop(0))
            while under_way:
                yield self._finish(*under_way.pop(0))
        finally:  # a read that goes on would write into memory that another batch has by then
            for _, _, reads in under_way:
                for read, _ in reads:
                    read.get()

    def _begin(self, ids: IntArray) -> tuple[list[_Column], torch.Tensor, list[Any]]:
        columns, nbytes = self._rows.columns(ids)
        memory, reads = torch.empty(nbytes, dtype=torch.uint8, device=self._device), []
        for column in columns:
            position = column.begin
            for file, offset, length in runs(column.extents):
                if file not in self._files:
                    self._files[file] = self._kvikio.CuFile(self._rows.source(file), "r")
                into = memory[position : position + length]
                reads.append((self._files[file].pread(into, length, offset), length))
                position += length
        return columns, memory, reads

    def _finish(self, columns: list[_Column], memory: torch.Tensor, reads: list[Any]) -> dict[str, Any]:
        for read, length in reads:
            if (count := read.get()) != length:
                raise RuntimeError(f"kvikio has read {count} of {length} bytes")
        return self._rows.fields(columns, memory)

    def close(self) -> None:
        """Close the files."""
        while self._files:
            self._files.popitem()[1].close()


def runs(extents: Extents) -> Iterator[tuple[int, int, int]]:
    """File, offset and length of each run of extents that follow one another in a file; empty ones are left out."""
    some = extents[extents.nbytes > 0]
    if not len(some):
        return iter(())
    ends = some.offset + some.nbytes
    first = np.flatnonzero(np.r_[True, (some.file[1:] != some.file[:-1]) | (some.offset[1:] != ends[:-1])])
    nbytes = np.add.reduceat(some.nbytes, first)
    return zip(some.file[first].tolist(), some.offset[first].tolist(), nbytes.tolist(), strict=True)


def _shared_memory(nbytes: int) -> torch.Tensor:
    # As torch's default_collate does it: no copy is made when the batch leaves the worker.
    storage = torch.empty(0, dtype=torch.uint8).untyped_storage()._new_shared(max(nbytes, 1))  # noqa: SLF001
    return torch.empty(0, dtype=torch.uint8).set_(storage)[:nbytes]


def _remade(path: str, shared: bool) -> StoredRows:
    return StoredRows(path, shared=shared)
