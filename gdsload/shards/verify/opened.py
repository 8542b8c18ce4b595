"""A shard that is open for verification: its bytes piece by piece, and the samples that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import Problem
from gdsload.shards.format.checksum import BLOCK_BYTES, DIGEST_CHARS, block_digest
from gdsload.shards.format.header import TensorEntry
from gdsload.shards.format.shard import OFFSETS_PREFIX, Shard

PIECE_BYTES = 32 * BLOCK_BYTES
"""Bytes that are read at once: whole blocks of checksums, and so whole elements."""


@dataclass(slots=True)
class OpenShard:
    """An open shard.

    Attributes:
        source: fills memory with its bytes from an offset on.
        path: its path.
        shard: its header.
        first: the dataset's number of its first sample.
    """

    source: Callable[[int, memoryview], None]
    path: str
    shard: Shard
    first: int
    _offsets: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def read(self, into: memoryview, offset: int) -> None:
        """Fill memory with the bytes at an offset."""
        self.source(offset, into)

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """Offset and bytes of each piece from `begin` to `end` - 1. A piece is overwritten by the next one."""
        buffer = bytearray(min(PIECE_BYTES, max(end - begin, 1)))
        for offset in range(begin, end, len(buffer)):
            view = memoryview(buffer)[: min(len(buffer), end - offset)]
            self.read(view, offset)
            yield offset, view

    def damage(self, entry: TensorEntry, offset: int, piece: memoryview) -> Iterator[Problem]:
        """The blocks of a piece of a tensor that differ from those written; none where there are no checksums."""
        digests = self.shard.digests.get(entry.name, "")
        for low in range(0, len(piece) if digests else 0, BLOCK_BYTES):
            block, first = piece[low : low + BLOCK_BYTES], (offset + low - entry.begin) // BLOCK_BYTES * DIGEST_CHARS
            if block_digest(block) != digests[first : first + DIGEST_CHARS]:
                message = f"{len(block)} bytes differ from what was written"
                yield self.problem(message, entry, offset + low, len(block))

    def offsets(self, begin: int) -> NDArray[np.int64]:
        """The offsets of a ragged field, which are at byte `begin`; shape ``[samples + 1]``."""
        if begin not in self._offsets:
            found = np.empty(self.shard.samples + 1, np.int64)
            self.read(found.data.cast("B"), begin)
            self._offsets[begin] = found
        return self._offsets[begin]

    def problem(self, message: str, entry: TensorEntry, offset: int, nbytes: int, field: str | None = None) -> Problem:
        """The problem of bytes of a tensor: of one of its fields, or of all that are in it."""
        low, high = self._samples_at(entry, offset - entry.begin, nbytes)
        column = entry.name.removeprefix(OFFSETS_PREFIX)
        inside = self.shard.stored.places.get(column, (column,))
        return Problem(
            message, self.path, offset, field or ", ".join(inside), (self.first + low, self.first + high), nbytes
        )

    def _samples_at(self, entry: TensorEntry, begin: int, nbytes: int) -> tuple[int, int]:
        """The half-open range of the shard's samples to which bytes from a tensor's byte `begin` on belong."""
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
