"""The data: shards of random rows, known byte for byte, and whether they are in the page cache."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import gdsload
from benchmarks.residency import measure, warm
from gdsload.backends.files import ShardFiles
from gdsload.plan import Extents

__all__ = ["ROW_BYTES", "Data", "is_cold", "make_cold", "make_hot"]

ROW_BYTES = 4096
_COLD = 0.001
"""Share of resident pages up to which files are cold: opening a shard reads its header."""


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
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.reference.numel()

    def files(self, *, mapped: bool) -> ShardFiles:
        """The shards as backends are opened on them, each of them open."""
        files = ShardFiles(self.dataset.sources, self.dataset.schema, mapped=mapped)
        files.ensure_open(np.arange(len(files.sources)))
        return files

    def rows(self, files: ShardFiles) -> Extents:
        """The bytes of every row, in order."""
        counts = self.dataset.counts
        file = np.repeat(np.arange(len(counts)), counts)
        row = np.arange(len(file)) - np.repeat(np.cumsum(counts) - counts, counts)
        return Extents(file, files.begin["x"][file] + row * ROW_BYTES, np.full(len(file), ROW_BYTES))

    def pieces(self, files: ShardFiles, piece_bytes: int) -> Extents:
        """All bytes of the rows, in order, in pieces of this length or less."""
        parts = []
        for file, count in enumerate(self.dataset.counts.tolist()):
            offset = np.arange(0, count * ROW_BYTES, piece_bytes)
            nbytes = np.minimum(piece_bytes, count * ROW_BYTES - offset)
            parts.append((np.full(len(offset), file), files.begin["x"][file] + offset, nbytes))
        return Extents(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def make_cold(paths: Iterable[Path]) -> float:
    """Drop files from the page cache; returns the share of their pages that is still there."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    return measure(paths).fraction


def make_hot(paths: Iterable[Path]) -> float:
    """Read files; returns the share of their pages that is in the page cache."""
    warm(paths)
    return measure(paths).fraction


def is_cold(fraction: float) -> bool:
    """Whether files with this share of resident pages are cold."""
    return fraction <= _COLD
