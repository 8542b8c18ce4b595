"""Sample ids to bytes: which rows of which files, and which reads contain them. Pure; no I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import ReadError
from gdsload.system.arrays import IntArray, argsort

MAX_GAP_BYTES = 16 * 1024
"""The largest gap that is read along with what is around it, by what reads from a drive. One that reads 117 k random
4 KiB blocks or 4.3 GB/s reads 36 KiB in the time of one more request; half of it, to be on the safe side with drives
that are better at random reads."""
PAGE_BYTES = 4096
"""The alignment of offsets, lengths and memory for reads around the page cache: of O_DIRECT everywhere but on few
devices (statx, STATX_DIOALIGN), and of nvidia-fs."""


@dataclass(frozen=True, slots=True)
class Extents:
    """Runs of bytes in files; three arrays of one length.

    Attributes:
        file: index of the file, in the table of files that a backend was opened on.
        offset: byte offset in that file.
        nbytes: length in bytes; may be 0.
    """

    file: IntArray
    offset: IntArray
    nbytes: IntArray

    def __len__(self) -> int:
        return len(self.file)

    def __getitem__(self, chosen: slice | NDArray[np.intp] | NDArray[np.bool_]) -> Extents:
        return Extents(self.file[chosen], self.offset[chosen], self.nbytes[chosen])

    @property
    def total_bytes(self) -> int:
        """Sum of the lengths."""
        return int(self.nbytes.sum())


def distinct(numbers: IntArray, limit: int) -> IntArray:
    """The distinct ones of `numbers`, which are all from 0 to `limit` - 1, in rising order.

    For the few thousand shards of a dataset this takes a tenth of the time of `numpy.unique`.
    """
    present = np.zeros(limit, bool)
    present[numbers] = True
    return present.nonzero()[0]


def concat_extents(parts: list[Extents]) -> Extents:
    """Several lists of extents as one."""
    if len(parts) == 1:
        return parts[0]
    return Extents(
        np.concatenate([part.file for part in parts]),
        np.concatenate([part.offset for part in parts]),
        np.concatenate([part.nbytes for part in parts]),
    )


def within(counts: IntArray) -> IntArray:
    """Positions within runs of so many each: 0, 1, 2, ..., and for the next run from 0 on."""
    return np.arange(int(counts.sum())) - (counts.cumsum() - counts).repeat(counts)


def _lengths(first: IntArray, total: int) -> IntArray:
    """The lengths of the runs that begin at `first` among `total` elements."""
    lengths = np.empty_like(first)
    lengths[:-1] = first[1:]
    lengths[-1:] = total
    lengths -= first
    return lengths


@dataclass(frozen=True, slots=True)
class Pieces:
    """Reads, cut.

    Attributes:
        extents: the pieces, in the order of the reads.
        read_of: for each piece the index of the read that it is of.
        delta: for each piece its byte position inside that read.
    """

    extents: Extents
    read_of: IntArray
    delta: IntArray


def cut(reads: Extents, most_bytes: int) -> Pieces:
    """Cut reads into pieces of so many bytes at most: a long one should not be one thread's. Empty ones have none."""
    counts = -(-reads.nbytes // most_bytes)
    read_of = np.arange(len(reads)).repeat(counts)
    delta = within(counts) * most_bytes
    nbytes = np.minimum(reads.nbytes[read_of] - delta, most_bytes)
    return Pieces(Extents(reads.file[read_of], reads.offset[read_of] + delta, nbytes), read_of, delta)


def shares(nbytes: IntArray, about: int, apart: IntArray | None = None) -> list[range]:
    """Runs of reads of these lengths, of about so many bytes each: few pieces of work for many small reads.

    Args:
        nbytes: the lengths.
        about: bytes of a run.
        apart: a number for each read; those of different numbers are in different runs.
    """
    turn = nbytes.cumsum() // about
    cut = turn[1:] != turn[:-1]
    cuts = (cut if apart is None else cut | (apart[1:] != apart[:-1])).nonzero()[0] + 1
    return [range(low, high) for low, high in pairwise([0, *cuts.tolist(), len(nbytes)]) if low < high]


@dataclass(frozen=True, slots=True)
class Reads:
    """The reads that cover every wanted extent.

    Attributes:
        extents: the reads, in order of files and offsets. Two overlap in nothing but what alignment adds: a page that
            both need.
        offset: for each wanted extent its offset in its file.
        order: indices that sort what the reads cover, which is the wanted extents, or runs of them.
        counts: how many of those each read covers, in that order.
        runs: how many wanted extents each run has; None: they are covered each by itself.
    """

    extents: Extents
    offset: IntArray
    order: IntArray
    counts: IntArray
    runs: IntArray | None = None

    def places(self, begins: IntArray) -> IntArray:
        """The place of each wanted extent, if the reads begin at these places."""
        found = np.empty(len(self.order), np.int64)
        found[self.order] = (begins - self.extents.offset).repeat(self.counts)
        if self.runs is not None:
            found = found.repeat(self.runs)
        found += self.offset
        return found


def coalesce(
    wanted: Extents, *, max_gap_bytes: int, max_read_bytes: int, alignment: int = 1, turns: IntArray | None = None
) -> Reads:
    """Plan the reads that cover the wanted extents.

    Neighbours are read together if the gap between them costs less than another read. A read contains extents that
    begin within `max_read_bytes` of its begin, or within twice that if there are no gaps between them; it grows further
    only for extents that overlap.

    Args:
        wanted: the extents, in any order; they may repeat and overlap.
        max_gap_bytes: largest gap that is read along.
        max_read_bytes: length from which a read takes no further neighbour.
        alignment: begin and end of each read are rounded outwards to a multiple of it, which is a power of two. The end
            may so be after the file's end; reads are cut there by the caller.
        turns: each file's place in the order of files; None: they come in the order of their numbers.

    Raises:
        ReadError: if the last byte wanted of any file, times the number of files, is beyond 62 bits.
    """
    if not len(wanted):
        empty = np.zeros(0, np.int64)
        return Reads(Extents(empty, empty, empty), empty, empty, empty)
    first = _runs(wanted, max_read_bytes)
    if 2 * len(first) > len(wanted):
        return _coalesce(wanted, max_gap_bytes, max_read_bytes, alignment, turns)
    # In order, as a rule: what is adjacent anyway is one extent, and there are few.
    counts = _lengths(first, len(wanted))
    begin, last = wanted.offset[first], first + counts - 1
    few = Extents(wanted.file[first], begin, wanted.offset[last] + wanted.nbytes[last] - begin)
    found = _coalesce(few, max_gap_bytes, max_read_bytes, alignment, turns)
    return replace(found, offset=wanted.offset, runs=counts)


def _runs(wanted: Extents, longest: int) -> IntArray:
    """First extent of each run of adjacent ones; no run begins more than `longest` earlier."""
    broken = np.ones(len(wanted), bool)
    np.not_equal(wanted.offset[1:], wanted.offset[:-1] + wanted.nbytes[:-1], out=broken[1:])
    if 2 * int(np.count_nonzero(broken)) > len(wanted):  # more runs than that, whatever their files are
        return broken.nonzero()[0]
    broken[1:] |= wanted.file[1:] != wanted.file[:-1]
    first: IntArray = broken.nonzero()[0]
    if 2 * len(first) > len(wanted):
        return first
    piece = (wanted.offset - wanted.offset[first].repeat(_lengths(first, len(wanted)))) // longest
    broken[1:] |= piece[1:] != piece[:-1]
    return broken.nonzero()[0]


def _coalesce(
    wanted: Extents, max_gap_bytes: int, max_read_bytes: int, alignment: int, turns: IntArray | None
) -> Reads:
    """See `coalesce`.

    Planning of many rows is bound by the number of passes over arrays. So files are laid out one after the other, as if
    all were one, and long or nested extents are only considered if there are any.
    """
    turn = wanted.file if turns is None else turns[wanted.file]
    span = int(wanted.offset.max()) + int(wanted.nbytes.max()) + max_gap_bytes + 2 * alignment & -alignment
    last_turn = int(turn.max())
    most = span * (last_turn + 1)
    if last_turn and most >= 1 << 62:
        raise ReadError(f"{last_turn + 1} files, the longest of {span} bytes, are too much for 62 bits")
    line = turn * span + wanted.offset if last_turn else wanted.offset
    order = argsort(line.view(np.uint64), most.bit_length())
    line = line[order]
    stop = line + wanted.nbytes[order]
    if not (stop[1:] >= stop[:-1]).all():  # nested: the furthest end so far is another extent's
        stop = np.maximum.accumulate(stop)
    begin, reach = line & -alignment, stop + (alignment - 1) & -alignment
    broken = np.ones(len(line), bool)
    np.greater(begin[1:], reach[:-1] + max_gap_bytes, out=broken[1:])
    first, counts = _groups(broken)
    start, nbytes = begin[first], reach[first + counts - 1] - begin[first]
    if nbytes.max() >= max_read_bytes:
        # Extents that overlap must have one read; those that only share a page must not, or a long run of rows that end
        # anywhere would be one read however long it is.
        piece = (begin - start.repeat(counts)) // max_read_bytes
        broken[1:] |= (piece[1:] != piece[:-1]) & (line[1:] >= stop[:-1])
        first, counts = _groups(broken)
        start, nbytes = begin[first], reach[first + counts - 1] - begin[first]
    if not last_turn:
        return Reads(Extents(wanted.file[:1].repeat(len(first)), start, nbytes), wanted.offset, order, counts)
    turn = start // span
    file = turn if turns is None else turns.argsort()[turn]
    return Reads(Extents(file, start - turn * span, nbytes), wanted.offset, order, counts)


def _groups(broken: NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
    """The first element of each group, and how many it has."""
    first: IntArray = broken.nonzero()[0]
    return first, _lengths(first, len(broken))
