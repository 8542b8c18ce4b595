"""Positions of reads in a slot, and which of them fill each block.

Reads are laid out one after the other, and each block of the pinned ring has as many of them as it has room for. A read
that is longer than a block is cut.

Few long reads are merged one by one. With arrays it takes a dozen calls of numpy however few there are, and meanwhile
every thread that has filled a block waits for the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gdsload.shards.reads import MAX_GAP_BYTES, PAGE_BYTES, Extents, coalesce, cut
from gdsload.system.arrays import IntArray

__all__ = ["BlockFill", "Layout", "ManyReads", "Read", "lay_out"]

Read = tuple[int, int, int, int]
"""A shard, byte offset there, byte position in the block, and length, at most to the shard's end."""

_FEW_READS = 4
"""Up to so many reads of a block are a call each: preparing one call for all takes as long as a few calls."""
_FEW = 64
_WORKED_OUT_FROM_BYTES = 64 * 1024
"""Mean length of few extents from which they are merged one by one: of shorter ones, numpy may merge many."""


class ManyReads(NamedTuple):
    """Reads that are made by one call of the system.

    Attributes:
        extents: what is read, at most to the shards' ends.
        begin: int64, the byte position of each in the block.
    """

    extents: Extents
    begin: IntArray

    def few(self) -> list[Read] | ManyReads:
        """The same reads; as a list if they are few."""
        if len(self.begin) > _FEW_READS:
            return self
        extents = self.extents
        columns = (column.tolist() for column in (extents.file, extents.offset, self.begin, extents.nbytes))
        return list(zip(*columns, strict=True))


class BlockFill(NamedTuple):
    """What fills a block.

    Attributes:
        reads: the reads, in the order of their positions in the block; a list if they are few.
        low: byte position in the slot that it is copied to.
        nbytes: bytes to copy there.
    """

    reads: list[Read] | ManyReads
    low: int
    nbytes: int

    @property
    def first(self) -> int:
        """The shard of the first read."""
        return self.reads[0][0] if isinstance(self.reads, list) else int(self.reads.extents.file[0])

    def many(self) -> ManyReads:
        """The reads, as arrays."""
        if not isinstance(self.reads, list):
            return self.reads
        file, offset, begin, nbytes = np.array(self.reads, np.int64).T
        return ManyReads(Extents(file, offset, nbytes), begin)


class Layout(NamedTuple):
    """A slot.

    Attributes:
        parts: what fills it, a block at a time.
        places: int64, for each wanted extent the byte position of its first byte.
        nbytes: bytes of the slot.
    """

    parts: list[BlockFill]
    places: IntArray
    nbytes: int


def lay_out(wanted: Extents, sizes: IntArray, longest: int, block_of: Callable[[int], int]) -> Layout:
    """Plan a slot.

    Offsets and lengths of all reads are multiples of a page, but for lengths that end with a shard.

    Args:
        wanted: extents of open shards, in any order; they may repeat and overlap.
        sizes: bytes of each shard.
        longest: see `coalesce`, max_read_bytes; of few long extents, those that touch are one read however long it is.
        block_of: bytes of a block, for a slot of so many bytes; a multiple of a page.
    """
    if len(wanted) <= _FEW and wanted.total_bytes >= len(wanted) * _WORKED_OUT_FROM_BYTES:
        runs = _in_order(wanted)
        if runs is not None:
            return Layout(_blocks(runs[0], sizes, block_of), runs[1], runs[0].total_bytes)
    reads = coalesce(wanted, max_gap_bytes=MAX_GAP_BYTES, max_read_bytes=longest, alignment=PAGE_BYTES)
    starts = np.cumsum(reads.extents.nbytes) - reads.extents.nbytes
    places = starts[reads.read_of] + reads.delta
    return Layout(_blocks(reads.extents, sizes, block_of), places, reads.extents.total_bytes)


def _in_order(wanted: Extents) -> tuple[Extents, IntArray] | None:
    """Runs of pages that cover extents, and where those lie in a slot of the runs.

    None if the extents are not in the order of shard and offset.
    """
    runs: list[tuple[int, int, int]] = []  # shard, offset, and its end
    places: list[int] = []
    last, low, begin, end, place = -1, 0, 0, 0, 0  # the run that may still grow, and where in the slot it lies
    for file, offset, nbytes in zip(wanted.file.tolist(), wanted.offset.tolist(), wanted.nbytes.tolist(), strict=True):
        if (file, offset) < (last, low):
            return None
        if file != last or offset // PAGE_BYTES * PAGE_BYTES > end:
            place += end - begin
            begin = end = offset // PAGE_BYTES * PAGE_BYTES
            runs.append((file, begin, end))
        places.append(place + offset - begin)
        end = max(end, -(-(offset + nbytes) // PAGE_BYTES) * PAGE_BYTES)
        runs[-1] = (file, begin, end)
        last, low = file, offset
    files, begins, ends = np.array(runs, np.int64).reshape(-1, 3).T
    return Extents(files, begins, ends - begins), np.array(places, np.int64)


def _blocks(reads: Extents, sizes: IntArray, block_of: Callable[[int], int]) -> list[BlockFill]:
    """What fills each block: as many of the reads, in order, as it has room for; only longer ones are cut."""
    block = block_of(reads.total_bytes)
    if not reads.nbytes.all():
        reads = reads[reads.nbytes > 0]
    if len(reads) and reads.nbytes.max() > block:
        reads = cut(reads, block).extents
    ends = np.cumsum(reads.nbytes)
    there = np.minimum(reads.nbytes, sizes[reads.file] - reads.offset)
    filled = Extents(reads.file, reads.offset, there)
    parts: list[BlockFill] = []
    first = begin = 0
    while first < len(reads):
        stop = int(np.searchsorted(ends, begin + block, side="right"))
        end = int(ends[stop - 1])
        if end > begin:
            many = ManyReads(filled[first:stop], ends[first:stop] - reads.nbytes[first:stop] - begin)
            parts.append(BlockFill(many.few(), begin, end - begin))
        first, begin = stop, end
    return parts
