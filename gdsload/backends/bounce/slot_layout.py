"""Positions of reads in a slot, and which of them fill each block.

Reads are laid out one after the other, and each block of the pinned ring has as many of them as it has room for. A read
that is longer than a block is cut.

Few long reads are merged one by one. With arrays it takes a dozen calls of numpy however few there are, and meanwhile
every thread that has filled a block waits for the interpreter lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gdsload.shards.drive_order import DriveOrder
from gdsload.shards.reads import MAX_GAP_BYTES, PAGE_BYTES, Extents, coalesce, cut
from gdsload.system.arrays import IntArray

_FEW = 64
_WORKED_OUT_FROM_BYTES = 64 * 1024
"""Mean length of few extents from which they are merged one by one: of shorter ones, numpy may merge many."""


class BlockFill(NamedTuple):
    """The reads `first` to `stop` that fill a block, and its bytes that are copied to the slot, from byte `low` on."""

    first: int
    stop: int
    low: int
    nbytes: int


class Layout(NamedTuple):
    """A slot.

    Attributes:
        reads: what is read, in the order of positions in the slot, at most to the shards' ends.
        within: int64, the byte position of each read in its block.
        parts: what fills the slot, a block at a time.
        places: int64, for each wanted extent the byte position of its first byte in the slot.
    """

    reads: Extents
    within: IntArray
    parts: list[BlockFill]
    places: IntArray
    nbytes: int


def lay_out(
    wanted: Extents, sizes: IntArray, longest: int, block_of: Callable[[int], int], drives: DriveOrder | None = None
) -> Layout:
    """Plan a slot.

    Offsets and lengths of all reads are multiples of a page, but for lengths that end with a shard. The extents are of
    open shards, in any order; they may repeat and overlap. For `longest` see `coalesce`, max_read_bytes; of few long
    extents, those that touch are one read however long it is. `block_of` gives the bytes of a block, a multiple of a
    page, for a slot of so many bytes. A block is filled from one drive; without `drives` all shards are on one.
    """
    if drives is not None and drives.alone(wanted.file):
        drives = None
    if drives is None and len(wanted) <= _FEW and wanted.total_bytes >= len(wanted) * _WORKED_OUT_FROM_BYTES:
        runs = _in_order(wanted)
        if runs is not None:
            return _cut(*runs, sizes, block_of)
    turns = drives.turns if drives else None
    reads = coalesce(wanted, max_gap_bytes=MAX_GAP_BYTES, max_read_bytes=longest, alignment=PAGE_BYTES, turns=turns)
    starts = np.cumsum(reads.extents.nbytes) - reads.extents.nbytes
    return _cut(reads.extents, reads.places(starts), sizes, block_of, drives)


def _in_order(wanted: Extents) -> tuple[Extents, IntArray] | None:
    """Runs of pages that cover extents, and where those are in a slot of the runs.

    None if the extents are not in the order of shard and offset.
    """
    runs: list[tuple[int, int, int]] = []  # shard, offset, and its end
    places: list[int] = []
    last, low, begin, end, place = -1, 0, 0, 0, 0  # the run that may still grow, and where in the slot it is
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


def _cut(
    reads: Extents, places: IntArray, sizes: IntArray, block_of: Callable[[int], int], drives: DriveOrder | None = None
) -> Layout:
    """A slot of some reads. Each block has as many, in order, as it has room for; only longer ones are cut."""
    total = reads.total_bytes
    block = block_of(total)
    if not reads.nbytes.all():
        reads = reads[reads.nbytes > 0]
    if len(reads) and reads.nbytes.max() > block:
        reads = cut(reads, block).extents
    count = len(reads)
    ends = reads.nbytes.cumsum()
    end_of = ends.data  # numpy's own search gives the interpreter lock back, for each block
    changes: list[int] = [] if drives is None else (np.flatnonzero(np.diff(drives.of[reads.file])) + 1).tolist()
    edges = iter([*changes, count])  # up to where the reads of one drive go
    parts: list[BlockFill] = []
    first = begin = edge = 0
    while first < count:
        edge = next(edges) if first == edge else edge
        stop = bisect_right(end_of, begin + block, first, edge)
        end = end_of[stop - 1]
        parts.append(BlockFill(first, stop, begin, end - begin))
        first, begin = stop, end
    lows = np.array([part.low for part in parts], np.int64)
    within = ends - reads.nbytes - lows.repeat([part.stop - part.first for part in parts])
    there = np.minimum(reads.nbytes, sizes[reads.file] - reads.offset)
    return Layout(Extents(reads.file, reads.offset, there), within, parts, places, total)
