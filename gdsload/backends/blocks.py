"""Blocks of a slot: which reads fill each, and what it takes to fill one.

Reads are laid out in a slot one behind the other, and the slot is cut into blocks of pinned memory's size. A read that
goes over the edge of a block is cut there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.backends.copier import Copier
from gdsload.backends.files import ShardFiles
from gdsload.backends.residency import looks_resident
from gdsload.pinned import PinnedRing
from gdsload.plan import Extents

__all__ = ["PAGE", "Coldness", "Means", "Segments", "Task", "cut"]

PAGE = 4096
"""What O_DIRECT wants of offsets, lengths and memory, everywhere but on few devices (statx, STATX_DIOALIGN)."""
_BELIEVED_S = 0.01
"""How long a shard that was found in the page cache is taken to be there."""


@dataclass(frozen=True, slots=True)
class Segments:
    """The reads that fill a block; arrays of one length, in the order of `begin`.

    Attributes:
        file: the shard.
        offset: byte offset in it, a multiple of a page.
        begin: byte position in the slot.
        nbytes: length, a multiple of a page; it may go beyond the end of the file.
    """

    file: NDArray[np.int64]
    offset: NDArray[np.int64]
    begin: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    def part(self, low: int, high: int) -> Segments:
        """Segments `low` to `high` - 1."""
        return Segments(self.file[low:high], self.offset[low:high], self.begin[low:high], self.nbytes[low:high])

    @property
    def extents(self) -> Extents:
        """What they read."""
        return Extents(self.file, self.offset, self.nbytes)


class Task(NamedTuple):
    """A block to be filled and copied, in plain numbers: who fills it should have nothing to work out.

    Attributes:
        reads: for each read its shard, byte offset there, byte position in the block, and length.
        direct: whether they are made with O_DIRECT.
        slot: where the block is copied to.
        low: byte position of the block in the slot.
        nbytes: bytes of the block.
    """

    reads: list[tuple[int, int, int, int]]
    direct: bool
    slot: torch.Tensor
    low: int
    nbytes: int

    @classmethod
    def of(cls, segments: Segments, slot: torch.Tensor, *, direct: bool) -> Task:
        """The task of filling a block with its segments."""
        low = int(segments.begin[0])
        columns = segments.file, segments.offset, segments.begin - low, segments.nbytes
        reads = list(zip(*(column.tolist() for column in columns), strict=True))
        return cls(reads, direct, slot, low, reads[-1][2] + reads[-1][3])


class Coldness:
    """Whether blocks are to be read with O_DIRECT.

    Args:
        files: the shards.
        always: the answer; None: whether some of a block's bytes are not in the page cache.
    """

    def __init__(self, files: ShardFiles, always: bool | None) -> None:
        self.files, self.always = files, always
        self._believed: dict[int, float] = {}

    def __call__(self, segments: Segments) -> bool:
        """Whether a block is.

        A shard that was found in the page cache is believed for a moment. Wrongly believed, it is read all the same.
        """
        if self.always is not None:
            return self.always
        first, now = int(segments.file[0]), time.monotonic()
        if now < self._believed.get(first, 0.0):
            return False
        if not looks_resident(self.files, segments.extents):
            return True
        self._believed[first] = now + _BELIEVED_S
        return False


@dataclass(frozen=True, slots=True)
class Means:
    """What it takes to fill blocks.

    Attributes:
        files: the shards.
        ring: pinned memory.
        copier: what copies it.
        count: is told how many bytes were read with O_DIRECT and how many through the page cache.
    """

    files: ShardFiles
    ring: PinnedRing
    copier: Copier
    count: Callable[[int, int], None]


def cut(reads: Extents, starts: NDArray[np.int64], total: int, block: int) -> list[Segments]:
    """Cut reads that lie one behind the other at the multiples of a block; the segments of each block that has any.

    Args:
        reads: the reads.
        starts: where each begins in the slot.
        total: bytes of the slot.
        block: bytes of a block.
    """
    filled = np.flatnonzero(reads.nbytes)
    starts = starts[filled]
    begin = np.concatenate([starts, np.arange(0, total, block)])
    begin.sort(kind="stable")  # two that are sorted, merged
    begin = begin[np.diff(begin, prepend=-1) > 0]
    end = np.append(begin[1:], total) if len(begin) else begin
    read = np.searchsorted(starts, begin, side="right") - 1
    offset = reads.offset[filled][read] + begin - starts[read]
    segments = Segments(reads.file[filled][read], offset, begin, end - begin)
    edges = np.searchsorted(begin, np.arange(0, total + block, block)).tolist()
    return [segments.part(low, high) for low, high in pairwise(edges) if low < high]
