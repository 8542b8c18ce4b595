"""Positions of reads in a slot, and which of them fill each block.

Reads are laid out one after the other, and the slot is cut into blocks of the pinned ring's size. A read that crosses
the edge of a block is cut there.

Few long reads are laid out one by one. With arrays it takes a dozen calls of numpy however few there are, and
meanwhile every thread that has filled a block waits for the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gdsload.shards.reads import MAX_GAP_BYTES, PAGE_BYTES, Extents, coalesce
from gdsload.system.arrays import IntArray

__all__ = ["BlockFill", "Layout", "ManyReads", "Read", "lay_out"]

Read = tuple[int, int, int, int]
"""A shard, byte offset there, byte position in the block, and length, at most to the shard's end."""

_FEW_READS = 4
"""Up to so many reads of a block are a call each: preparing one call for all takes as long as a few calls."""
_FEW = 64
_WORKED_OUT_FROM_BYTES = 64 * 1024
"""Mean length of few extents from which they are laid out one by one: of shorter ones, numpy may merge many."""


class ManyReads(NamedTuple):
    """Reads that are made by one call of the system.

    Attributes:
        extents: what is read, at most to the shards' ends.
        begin: int64, the byte position of each in the block.
    """

    extents: Extents
    begin: IntArray

    def part(self, low: int, high: int) -> list[Read] | ManyReads:
        """Reads `low` to `high` - 1; a list if they are few."""
        extents, begin = self.extents[low:high], self.begin[low:high]
        if high - low > _FEW_READS:
            return ManyReads(extents, begin)
        columns = (column.tolist() for column in (extents.file, extents.offset, begin, extents.nbytes))
        return list(zip(*columns, strict=True))


class BlockFill(NamedTuple):
    """What fills a block.

    Attributes:
        reads: the reads, in the order of their positions in the block; a list if they are few.
        low: byte position of the block in the slot.
        nbytes: bytes of the block.
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
            return _one_by_one(*runs, sizes, block_of)
    reads = coalesce(wanted, max_gap_bytes=MAX_GAP_BYTES, max_read_bytes=longest, alignment=PAGE_BYTES)
    starts = np.cumsum(reads.extents.nbytes) - reads.extents.nbytes
    total = int(reads.extents.nbytes.sum())
    parts = _cut(reads.extents, starts, total, sizes, block_of(total))
    return Layout(parts, starts[reads.read_of] + reads.delta, total)


def _in_order(wanted: Extents) -> tuple[list[tuple[int, int, int]], list[int]] | None:
    """Runs of pages (shard, begin, end) that cover extents, and where those lie in a slot of the runs.

    None if the extents are not in the order of shard and offset.
    """
    runs: list[tuple[int, int, int]] = []
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
    return runs, places


def _one_by_one(
    runs: list[tuple[int, int, int]], places: list[int], sizes: IntArray, block_of: Callable[[int], int]
) -> Layout:
    total = sum(end - begin for _, begin, end in runs)
    block = block_of(total)
    parts: list[BlockFill] = []
    reads: list[Read] = []
    low = at = 0
    for file, begin, end in runs:
        offset, size = begin, int(sizes[file])
        while offset < end:
            until = min(end, offset + low + block - at)
            reads.append((file, offset, at - low, min(until, size) - offset))
            at, offset = at + until - offset, until
            if at == low + block:
                parts.append(BlockFill(reads, low, block))
                reads, low = [], at
    if reads:
        parts.append(BlockFill(reads, low, total - low))
    return Layout(parts, np.array(places, np.int64), total)


def _cut(reads: Extents, starts: IntArray, total: int, sizes: IntArray, block: int) -> list[BlockFill]:
    """Cut reads that lie one behind the other at the multiples of a block.

    Args:
        reads: the reads.
        starts: where each begins in the slot.
        total: bytes of the slot.
        sizes: bytes of each shard.
        block: bytes of a block.
    """
    filled = np.flatnonzero(reads.nbytes)
    starts = starts[filled]
    begin = np.concatenate([starts, np.arange(0, total, block)])
    begin.sort(kind="stable")  # two that are sorted, merged
    begin = begin[np.diff(begin, prepend=-1) > 0]
    end = np.append(begin[1:], total) if len(begin) else begin
    read = np.searchsorted(starts, begin, side="right") - 1
    file, offset = reads.file[filled][read], reads.offset[filled][read] + begin - starts[read]
    there = np.minimum(end - begin, sizes[file] - offset)
    edges = np.searchsorted(begin, np.arange(0, total + block, block)).tolist()
    many = ManyReads(Extents(file, offset, there), begin % block)
    return [
        BlockFill(many.part(low, high), at, min(block, total - at))
        for at, (low, high) in zip(range(0, total, block), pairwise(edges), strict=True)
    ]
