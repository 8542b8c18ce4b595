"""Which bytes of which files a sample is: the table between positions and extents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import FormatError, Problem
from gdsload.shards.files import ShardFiles
from gdsload.shards.format.schema import Schema
from gdsload.shards.reads import Extents

__all__ = ["Located", "SampleTable"]

IntArray = NDArray[np.int64]

_RUN_BYTES = 4 * 2**20
"""Bytes of consecutive samples that make one extent: so many that few extents are to be planned."""


@dataclass(frozen=True, slots=True)
class Located:
    """Where samples are; arrays of one length.

    Attributes:
        file: index of each sample's shard.
        row: number of the sample in its shard.
    """

    file: IntArray
    row: IntArray


class SampleTable:
    """The samples of some shards.

    Args:
        files: the shards.
        counts: number of samples of each shard, shape ``[shards]``.
        names: what the first sample of each shard is called in errors, where other shards are left out; None for its
            number among those of all shards.
    """

    def __init__(self, files: ShardFiles, counts: IntArray, names: IntArray | None = None) -> None:
        self.files = files
        self.ends = np.cumsum(counts)
        self.starts = self.ends - counts
        self._names = self.starts if names is None else names
        self.samples = int(self.ends[-1]) if len(counts) else 0
        self._each = _each(counts)

    @property
    def schema(self) -> Schema:
        """The fields of each sample."""
        return self.files.schema

    def locate(self, ids: IntArray) -> Located:
        """Find samples, and open their shards.

        Args:
            ids: sample ids, each from 0 to `samples` - 1, in any order.

        Raises:
            FormatError: if a shard is damaged.
            ReadError: if one cannot be opened.
        """
        file = ids // self._each if self._each else np.searchsorted(self.ends, ids, side="right")
        self.files.ensure_open(file)
        return Located(file, ids - self.starts[file])

    def extents(self, name: str, found: Located) -> tuple[Extents, IntArray | None]:
        """The bytes of one field of samples, and for a ragged field how many rows each sample has.

        Raises:
            FormatError: if a shard's offsets are damaged.
        """
        field = self.schema[name]
        begin = self.files.begin[name][found.file]
        if not field.ragged:
            nbytes = np.full(len(found.row), field.row_bytes, np.int64)
            return Extents(found.file, begin + found.row * field.row_bytes, nbytes), None
        first, lengths = self._rows(name, found)
        return Extents(found.file, begin + first * field.row_bytes, lengths * field.row_bytes), lengths

    def runs(self, name: str, bounds: Sequence[tuple[int, int]]) -> tuple[Extents, list[int]]:
        """The bytes of a field of one shape of consecutive samples, those of many samples in one extent.

        Args:
            name: the field; not a ragged one.
            bounds: for each run the first sample id, and the one behind the last.

        Returns:
            Extents of one sample or 4 MiB at the most, and how many samples each has.

        Raises:
            FormatError: if a shard is damaged.
            ReadError: if one cannot be opened.
        """
        row_bytes = self.schema[name].row_bytes
        most = max(_RUN_BYTES // max(row_bytes, 1), 1)
        last = np.array(bounds, np.int64).reshape(-1, 2) - [0, 1]
        shards = np.searchsorted(self.ends, last, side="right").tolist()
        files: list[int] = []
        rows: list[int] = []
        counts: list[int] = []
        for (first, stop), (low, high) in zip(bounds, shards, strict=True):
            for file in range(low, high + 1):
                start = int(self.starts[file])
                end = min(stop, int(self.ends[file])) - start
                for row in range(max(first - start, 0), end, most):
                    files.append(file)
                    rows.append(row)
                    counts.append(min(most, end - row))
        found = Located(np.array(files, np.int64), np.array(rows, np.int64))
        self.files.ensure_open(found.file)
        offset = self.files.begin[name][found.file] + found.row * row_bytes
        return Extents(found.file, offset, np.array(counts, np.int64) * row_bytes), counts

    def _rows(self, name: str, found: Located) -> tuple[IntArray, IntArray]:
        """First row and number of rows of each sample, from the shards' offsets."""
        pairs = self.files.rows_of(name, found.file, found.row)
        first, last = pairs[:, 0], pairs[:, 1]
        rows = self.files.rows[name][found.file]
        wrong = (first < 0) | (last < first) | (last > rows)
        wrong |= (found.row == 0) & (first != 0)
        wrong |= (self.starts[found.file] + found.row == self.ends[found.file] - 1) & (last != rows)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            path = self.files.sources[int(found.file[at])].path
            sample = int(self._names[found.file[at]] + found.row[at])
            raise FormatError(
                "the offsets of a ragged field are damaged",
                file=path,
                problems=[Problem(f"offsets {first[at]} to {last[at]}", path, None, name, (sample, sample + 1))],
                remedy="Run ShardDataset.verify() and restore the shard, or write the dataset again.",
            )
        return first, last - first


def _each(counts: IntArray) -> int:
    """Samples of every shard but the last, which has no more; 0 if they differ. To divide takes less than to look."""
    if not len(counts) or (counts[:-1] != counts[0]).any() or counts[-1] > counts[0]:
        return 0
    return int(counts[0])
