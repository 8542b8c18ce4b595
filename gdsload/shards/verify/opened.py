"""A shard that is open for verification: its bytes piece by piece, and the samples that they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import Problem
from gdsload.shards.format.checksum import BLOCK_BYTES
from gdsload.shards.format.header import TensorEntry
from gdsload.shards.format.shard import OFFSETS_PREFIX, Shard
from gdsload.shards.local_files import pread_exact
from gdsload.shards.shard_checksums import pieces, wrong_blocks

__all__ = ["OpenShard"]


@dataclass(slots=True)
class OpenShard:
    """An open shard.

    Attributes:
        fd: its descriptor.
        path: its path.
        shard: its header.
        first: the dataset's number of its first sample.
    """

    fd: int
    path: str
    shard: Shard
    first: int
    _offsets: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def read(self, into: memoryview, offset: int) -> None:
        """Fill memory with the bytes at an offset."""
        pread_exact(self.fd, into, offset, self.path)

    def pieces(self, entry: TensorEntry) -> Iterator[tuple[int, memoryview]]:
        """Offset and bytes of each piece of a tensor. A piece is overwritten by the next one."""
        return pieces(self.read, entry.begin, entry.end)

    def damage(self, entry: TensorEntry, offset: int, piece: memoryview) -> Iterator[Problem]:
        """The problems of a piece of a tensor that differs from the one written; none where there are no checksums."""
        sums = self.shard.checksums
        digests = "" if sums is None else sums.digests.get(entry.name, "")
        for low, nbytes in wrong_blocks(piece, (offset - entry.begin) // BLOCK_BYTES, digests) if digests else ():
            yield self.problem(f"{nbytes} bytes differ from what was written", entry, offset + low, nbytes)

    def offsets(self, begin: int) -> NDArray[np.int64]:
        """The offsets of a ragged field, which are at byte `begin`; shape ``[samples + 1]``."""
        if begin not in self._offsets:
            found = np.empty(self.shard.samples + 1, np.int64)
            self.read(found.data.cast("B"), begin)
            self._offsets[begin] = found
        return self._offsets[begin]

    def samples_at(self, entry: TensorEntry, offset: int, nbytes: int) -> tuple[int, int]:
        """The half-open range of samples to which bytes of a tensor belong.

        Args:
            entry: the tensor.
            offset: the first of the bytes, in the file.
            nbytes: how many they are.
        """
        low, high = self._rows_at(entry, offset - entry.begin, nbytes)
        return self.first + low, self.first + high

    def _rows_at(self, entry: TensorEntry, begin: int, nbytes: int) -> tuple[int, int]:
        samples = self.shard.samples
        if entry.name.startswith(OFFSETS_PREFIX):
            return max(begin // 8 - 1, 0), min((begin + nbytes) // 8, samples)
        row_bytes = self.shard.stored.columns[entry.name].row_bytes
        low, high = begin // row_bytes, -(-(begin + nbytes) // row_bytes)
        column = self.shard.columns[entry.name]
        if column.offsets_begin is None:
            return low, high
        offsets = self.offsets(column.offsets_begin)
        first = int(np.searchsorted(offsets, low, side="right")) - 1
        return max(first, 0), min(int(np.searchsorted(offsets, high, side="left")), samples)

    def problem(self, message: str, entry: TensorEntry, offset: int, nbytes: int, field: str | None = None) -> Problem:
        """The problem of bytes of a tensor: of one of its fields, or of all that are in it."""
        samples = self.samples_at(entry, offset, nbytes)
        inside = self.shard.stored.fields_of(entry.name.removeprefix(OFFSETS_PREFIX))
        return Problem(message, self.path, offset, field or ", ".join(inside), samples, nbytes)
