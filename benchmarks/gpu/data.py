"""The data: shards of random rows, known byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import gdsload
from gdsload.shards.files import Files
from gdsload.shards.reads import Extents
from gdsload.shards.shard_table import ShardTable

__all__ = ["ROW_BYTES", "Data"]

ROW_BYTES = 4096
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Data:
    """Shards of rows of 4 KiB.

    Attributes:
        folder: where they are.
        dataset: the same, opened.
        reference: all rows, on the device, shape ``[rows, ROW_BYTES]``.
    """

    folder: Path
    dataset: gdsload.ShardDataset
    reference: torch.Tensor

    @classmethod
    def write(cls, folder: Path, nbytes: int, device: torch.device) -> Data:
        """Write random rows, and keep them on the device."""
        count, step = nbytes // ROW_BYTES, 2**16
        reference = torch.empty((count, ROW_BYTES), dtype=torch.uint8, device=device)
        random = np.random.default_rng(20240229)
        with gdsload.ShardWriter(folder) as writer:
            for low in range(0, count, step):
                rows = random.integers(0, 2**64, (min(step, count - low), ROW_BYTES // 8), dtype=np.uint64)
                writer.write_batch({"x": rows.view(np.uint8)})
                reference[low : low + len(rows)] = torch.from_numpy(rows.view(np.uint8)).to(device)
        return cls(folder, gdsload.ShardDataset(folder), reference)

    @property
    def paths(self) -> list[Path]:
        """The shards."""
        return [Path(source.path) for source in self.dataset.sources]

    @property
    def names(self) -> list[str]:
        """The shards' paths as texts."""
        return [source.path for source in self.dataset.sources]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.reference.numel()

    def table(self, *, mapped: bool) -> ShardTable:
        """The shards' rows, each shard open."""
        table = ShardTable.of(self.dataset.sources, self.dataset.stored, mapped=mapped)
        table.ensure_open(np.arange(len(self.dataset.sources)))
        return table

    def files(self, *, mapped: bool) -> Files:
        """The shards as backends are opened on them, each of them open."""
        return self.table(mapped=mapped).files

    def begins(self) -> IntArray:
        """Byte offset of the rows in each shard."""
        table = self.table(mapped=False)
        table.files.close()
        return table.begin["x"]

    def rows(self) -> Extents:
        """The bytes of every row, in order."""
        counts = self.dataset.counts
        file = np.repeat(np.arange(len(counts)), counts)
        row = np.arange(len(file)) - np.repeat(np.cumsum(counts) - counts, counts)
        return Extents(file, self.begins()[file] + row * ROW_BYTES, np.full(len(file), ROW_BYTES))

    def pieces(self, piece_bytes: int) -> Extents:
        """All bytes of the rows, in order, in pieces of this length or less."""
        parts, begins = [], self.begins()
        for file, count in enumerate(self.dataset.counts.tolist()):
            offset = np.arange(0, count * ROW_BYTES, piece_bytes)
            nbytes = np.minimum(piece_bytes, count * ROW_BYTES - offset)
            parts.append((np.full(len(offset), file), begins[file] + offset, nbytes))
        return Extents(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
