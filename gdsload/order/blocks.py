"""The block order: blocks permuted, then samples within a window."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import OptionError
from gdsload.order.hashing import Purpose, derive_key
from gdsload.order.lanes import LaneRun, Order, lane_offset
from gdsload.order.permutation import Permutation
from gdsload.order.recent import Recent

MAX_BLOCKS: Final = 1 << 27
"""Most blocks of a dataset: the block sequence holds 16 bytes for each of them, 2 GiB at this limit."""

_CHUNK: Final = 65_536
"""Positions of a window that are computed together. Affects speed and memory only."""
_SPREAD: Final = 4 * _CHUNK
"""Places of a window that are worth writing out for each of its pieces."""
# All lanes cross into their next windows at about the same batch: keep the old and the new piece of each.
_PIECES_PER_LANE: Final = 2


@dataclass(frozen=True, slots=True)
class BlockSequence:
    """All blocks of a dataset in permuted order, laid end to end.

    Attributes:
        starts: id of the first sample of each block; int64, shape [blocks].
        cuts: position of the first sample of each block, then the number of samples; shape [blocks + 1].
    """

    starts: NDArray[np.int64]
    cuts: NDArray[np.int64]

    @classmethod
    def permuted(cls, run_lengths: NDArray[np.int64], block: int, key: int) -> BlockSequence:
        """Cut each run (a shard's samples) into blocks, its last one maybe shorter, and permute all blocks.

        Raises OptionError if that makes more than MAX_BLOCKS blocks.
        """
        counts = -(-run_lengths // block)
        blocks = int(counts.sum())
        if blocks > MAX_BLOCKS:
            raise OptionError(
                f"is {block}, which makes {blocks} blocks, but only {MAX_BLOCKS} are supported",
                option="block",
                remedy='Pass a larger `block`, or `shuffle="full"`.',
            )
        ends = np.cumsum(run_lengths)
        number_in_run = np.arange(blocks, dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = np.repeat(ends - run_lengths, counts) + number_in_run * block
        lengths = np.minimum(np.repeat(ends, counts) - starts, block)
        order = Permutation(blocks, key)(0, blocks)
        cuts = np.zeros(blocks + 1, dtype=np.int64)
        np.cumsum(lengths[order], out=cuts[1:])
        return cls(starts[order], cuts)

    def extents(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the runs of consecutive ids at positions [start, stop), a non-empty range, in order.

        They are given by first id and length, int64, shape [runs]. A block cut by an edge gives a part.
        """
        first = int(self.cuts.searchsorted(start, side="right")) - 1
        last = int(self.cuts.searchsorted(stop, side="left"))
        edges = self.cuts[first : last + 1].copy()
        edges[0], edges[-1] = start, stop
        return self.starts[first:last] + (edges[:-1] - self.cuts[first:last]), edges[1:] - edges[:-1]


class BlockOrder(Order):
    """Blocks permuted over the whole dataset, shared out to lanes, and samples permuted within windows.

    The permuted blocks, laid end to end, are one sequence of positions. Lanes are equal ranges (+- 1) of it;
    a window is `window` consecutive positions of a lane (the last one maybe shorter). Both are cut by
    position and not between blocks, so that their sizes never depend on how full blocks are.

    The block sequence is built on first use, and the ids of the windows used last are kept: at most two pieces
    of 512 KiB for each lane. Safe to share between threads. Methods check no positions: a lane, or for `sorted_ids` one
    window of it, has them.

    Args:
        run_lengths: samples of each shard, in dataset order; `samples` are all of them.
        block: samples of a block; the last block of each shard may be shorter.
        window: samples shuffled together: lane positions of a window.
        lanes: number of lanes.
        key: 64-bit key, from `derive_key`.
    """

    def __init__(self, run_lengths: Sequence[int], *, block: int, window: int, lanes: int, key: int) -> None:
        self._run_lengths = np.array(run_lengths, np.int64)
        self.samples = int(self._run_lengths.sum())
        self._block, self.window, self.lanes, self.key = block, window, lanes, key
        self._lock = threading.Lock()
        self._sequence: BlockSequence | None = None
        self._pieces: Recent[tuple[int, int, int], NDArray[np.int64]] = Recent(_PIECES_PER_LANE * self.lanes)

    @property
    def blocks(self) -> int:
        """Number of blocks; known without making their sequence."""
        return int((-(-self._run_lengths // self._block)).sum())

    def window_at(self, lane: int, position: int) -> tuple[int, int]:
        """Return the positions [start, stop) of the window of `lane` that holds `position`."""
        return self._window_bounds(lane, self._window_number(lane, position))

    def _first_window(self, lane: int) -> int:
        """Length of a lane's first window: each lane's is longer than the last one's, so that lanes change by turns.

        A reader that keeps windows in memory then reads one at a time ahead, and not one for every lane at once.
        """
        length = self.lane_length(lane)
        return length if length <= self.window else max(1, self.window * (lane + 1) // self.lanes)

    def _window_number(self, lane: int, position: int) -> int:
        first = self._first_window(lane)
        return 0 if position < first else 1 + (position - first) // self.window

    def _window_bounds(self, lane: int, window: int) -> tuple[int, int]:
        stop = self._first_window(lane) + window * self.window
        return max(stop - self.window, 0) if window else 0, min(stop, self.lane_length(lane))

    def lane_ids(self, lane: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions [start, stop) of `lane`, read-only, shape [stop - start]."""
        parts = []
        while start < stop:
            window = self._window_number(lane, start)
            chunk, skipped = divmod(start - self._window_bounds(lane, window)[0], _CHUNK)
            piece = self._pieces.get((lane, window, chunk), self._make_piece)
            parts.append(piece[skipped : skipped + stop - start])
            start += parts[-1].size
        if len(parts) == 1:
            return parts[0]
        ids = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        ids.flags.writeable = False
        return ids

    def sorted_ids(self, lane: int, runs: Sequence[LaneRun]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sample ids at positions of one window, in rising order, without sorting them.

        The runs are the positions: one at least, none of them twice. Beside the ids comes, for each position in the
        order of the runs, the index of its id among them.
        """
        window = self._window_number(lane, runs[0].start)
        first, last = self._window_bounds(lane, window)
        starts, lengths = self.sequence().extents(*self._window_range(lane, window))
        permutation = self._permutation(lane, window, last - first)
        parts = [permutation(run.start - first, run.stop - first) for run in runs]
        drawn = parts[0] if len(parts) == 1 else np.concatenate(parts)
        by_id = starts.argsort()
        counts = lengths[by_id]
        begins = counts.cumsum() - counts  # of each block, among all ids of the window in rising order
        ids = (starts[by_id] - begins).repeat(counts)
        ids += np.arange(last - first)
        shifts = lengths - lengths.cumsum()
        shifts[by_id] += begins
        places = shifts.repeat(lengths)[drawn]
        places += drawn
        if len(drawn) == last - first:
            return ids, places
        wanted = np.zeros(last - first, bool)
        wanted[places] = True
        return ids[wanted], (np.cumsum(wanted) - 1)[places]

    def runs_between(self, lane: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the runs of consecutive ids that are at positions [start, stop) of `lane`, if those are whole windows.

        They are given by first id and the one after the last; int64, shape [runs, 2], in rising order.
        """
        base = lane_offset(self.samples, lane, self.lanes)
        starts, lengths = self.sequence().extents(base + start, base + stop)
        by_id = starts.argsort()
        runs = np.empty((len(starts), 2), np.int64)
        runs[:, 0] = starts[by_id]
        runs[:, 1] = runs[:, 0] + lengths[by_id]
        return runs

    def _permutation(self, lane: int, window: int, length: int) -> Permutation:
        return Permutation(length, derive_key(self.key, Purpose.WINDOW, lane, window))

    def _window_range(self, lane: int, window: int) -> tuple[int, int]:
        base = lane_offset(self.samples, lane, self.lanes)
        start, stop = self._window_bounds(lane, window)
        return base + start, base + stop

    def _make_piece(self, place: tuple[int, int, int]) -> NDArray[np.int64]:
        lane, window, chunk = place
        start, stop = self._window_range(lane, window)
        starts, lengths = self.sequence().extents(start, stop)
        ends = np.cumsum(lengths)
        places = self._permutation(lane, window, stop - start)(chunk * _CHUNK, min((chunk + 1) * _CHUNK, stop - start))
        shifts = starts - (ends - lengths)
        if stop - start <= _SPREAD:
            # Written out for every place, shifts are looked up sooner than blocks are searched for.
            ids = np.take(np.repeat(shifts, lengths), places)
        else:
            ids = shifts[np.searchsorted(ends, places, side="right")]
        ids += places
        ids.flags.writeable = False
        return ids

    def sequence(self) -> BlockSequence:
        """Return all blocks in permuted order; made once. Raises OptionError if there are more than MAX_BLOCKS."""
        with self._lock:
            if self._sequence is None:
                self._sequence = BlockSequence.permuted(self._run_lengths, self._block, self.key)
            return self._sequence
