"""Windows of lanes, as steps take samples from them: opened where a step needs them first, held while it has more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from gdsload.engine.loaded_rows import LoadedRows, RowSlice, Slices
from gdsload.order import BlockOrder, Schedule
from gdsload.shards.reads import within
from gdsload.system.arrays import IntArray

_LEFT_OUT = 8
"""A window of which no more than one sample in so many is not wanted is read whole, as to look for those takes longer
than to read them: at the end of an epoch without its last batch, and of one that begins within a window."""
_Pieces = list[tuple[int, int, int]]
"""Runs of positions of a lane: of each a step before which it is not taken, its first position, the one after its last.
"""


@dataclass(slots=True)
class LaneWindow:
    """This rank's part of the window of a lane, which is handed out in turn.

    Attributes:
        stop: the lane position after its last.
        wanted: the positions of its samples, in the order in which they are read; or of the runs of consecutive samples
            that it is, first id and the one after the last, shape ``[runs, 2]``. None once it is being read.
        places: for each sample, in the order in which they are handed out, its number among those that are read
            together; None where the rows are found by id.
        cursor: how many samples were handed out.
        rows: what was read; None: nothing yet.
    """

    count: int
    stop: int
    wanted: IntArray | None
    places: IntArray | None = None
    cursor: int = 0
    rows: LoadedRows | None = None

    def take(self, stop: int) -> RowSlice:
        """Its samples up to `stop` that were not handed out yet; it has been read."""
        if self.rows is None:
            raise RuntimeError("samples are taken out of a window before it is read")
        low, self.cursor = self.cursor, stop
        return RowSlice(self.rows, slice(low, stop) if self.places is None else self.places[low:stop], stop - low)

    def let_go(self) -> None:
        """Release what was not handed out."""
        rows, self.rows = self.rows, None
        if rows is not None:
            rows.drop(self.count - self.cursor)


class LaneWindows:
    """The windows that steps take samples from; of rows that are found by id, they are the runs that blocks are."""

    def __init__(self, order: BlockOrder, schedule: Schedule, *, by_id: bool) -> None:
        self._order, self._schedule, self._by_id = order, schedule, by_id
        self._held: dict[int, LaneWindow] = {}
        self._opening: list[LaneWindow] = []  # those that the call being made has opened, however far it has got
        self._after: int | None = None  # the step after the last ones that samples were taken for
        self._asked: tuple[range, dict[int, _Pieces]] | None = None
        self._pieces: tuple[range, IntArray] | None = None

    def opens(self, steps: range) -> int:
        """The number of windows that `take` would have to read for these steps, in addition to those it holds then.

        0 for steps that do not follow the last ones: if the steps before are made without windows, so are these.
        """
        if steps.start != self._after:
            return 0
        found, order = 0, self._order
        for lane, pieces in self._by_lane(steps).items():
            (_, first, _), (_, _, last) = pieces[0], pieces[-1]
            held = self._held.get(lane)
            stop = order.window_at(lane % order.lanes, first)[1] if held is None else held.stop
            found += (held is None) + max(-(-(last - stop) // order.window), 0)
        return found

    def take(self, steps: range, read: Callable[[IntArray, int], LoadedRows]) -> Slices:
        """The samples of some steps: lane by lane, and of each lane window by window.

        `read` starts reading some windows together; given are what of each is `wanted`, and how many samples they are.

        If steps since the last call's were left out, their windows are read again. If it fails, nothing is held for any
        step, and the next call reads windows again.
        """
        if steps.start != self._after:
            self.let_go()
        self._after = steps.stop
        parts: list[RowSlice] = []
        try:
            taken = [
                (lane, window, stop)
                for lane, pieces in self._by_lane(steps).items()
                for window, stop in self._windows_of(lane, pieces)
            ]
            # Windows of one length together, as they are used up at about the same time: memory is released when all of
            # them are, and what would be held longest is the shortest.
            alike: dict[int, list[LaneWindow]] = {}
            for window in self._opening:
                alike.setdefault(window.count, []).append(window)
            for some in alike.values():
                self._load(some, read)
            for lane, window, stop in taken:
                parts.append(window.take(stop))
                self._held[lane] = window
            self._opening = []
            return Slices(parts, None if self._by_id else _delivered(self._pieces_of(steps)))
        except BaseException:
            self._after = None
            for part in parts:
                part.rows.drop(part.count)
            self.let_go()
            raise

    def let_go(self) -> None:
        """Release what is left of the windows held: the next step wanted is not the one after the last call's."""
        windows = [*self._held.values(), *self._opening]
        self._held, self._opening = {}, []
        for window in windows:
            window.let_go()

    def _pieces_of(self, steps: range) -> IntArray:
        """See `Schedule.pieces`: kept for the next call."""
        if self._pieces is None or self._pieces[0] != steps:
            self._pieces = steps, self._schedule.pieces(steps)
        return self._pieces[1]

    def _by_lane(self, steps: range) -> dict[int, _Pieces]:
        """The positions that some steps take of each lane, in rising order: kept, as `opens` and `take` want them."""
        if self._asked is None or self._asked[0] != steps:
            runs, found = self._schedule.ranges(steps), dict[int, _Pieces]()
            if runs is None:
                for lane, *piece in sorted(zip(*self._pieces_of(steps).tolist(), strict=True)):
                    found.setdefault(lane, []).append(tuple(piece))
            else:
                found = {run.lane: [(steps.start, run.start, run.stop)] for run in runs}
            self._asked = steps, found
        return self._asked[1]

    def _windows_of(self, lane: int, pieces: _Pieces) -> Iterator[tuple[LaneWindow, int]]:
        """The windows that are needed of a lane, opened where none is held, and up to where in each."""
        window = self._held.get(lane)
        cursor = window.cursor if window else 0
        for step, start, stop in pieces:
            done = start
            while done < stop:
                if window is None or cursor == window.count:
                    if window is not None and cursor > window.cursor:
                        yield window, cursor
                    window, cursor = self._opened(step, lane, done), 0
                    self._opening.append(window)
                count = min(stop - done, window.count - cursor)
                done, cursor = done + count, cursor + count
        if window is not None:
            yield window, cursor

    def _opened(self, step: int, lane: int, position: int) -> LaneWindow:
        """This rank's part of the window of a lane that holds a position, from there on; no step before takes it."""
        order, own = self._order, lane % self._order.lanes  # of what is repeated, those samples alone are read
        start, stop = order.window_at(own, position)
        runs = self._schedule.runs_within(lane, step, position, stop)
        if not self._by_id:
            ids, places = order.sorted_ids(own, runs)
            return LaneWindow(len(places), stop, ids, places)
        count = sum(map(len, runs))
        if (stop - start - count) * _LEFT_OUT <= stop - start:
            return LaneWindow(count, stop, order.runs_between(own, start, stop))
        ids, _ = order.sorted_ids(own, runs)
        first = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
        lengths = np.diff(first, append=len(ids))
        return LaneWindow(count, stop, np.stack([ids[first], ids[first] + lengths], axis=1))

    def _load(self, windows: list[LaneWindow], read: Callable[[IntArray, int], LoadedRows]) -> None:
        wanted = np.concatenate([window.wanted for window in windows if window.wanted is not None])
        if self._by_id and len(windows) > 1:
            wanted = wanted[wanted[:, 0].argsort()]
        rows, begin = read(wanted, sum(window.count for window in windows)), 0
        for window in windows:
            window.rows, window.wanted = rows, None
            if window.places is not None:
                window.places += begin
            begin += window.count


def _delivered(pieces: IntArray) -> IntArray | None:
    """See `Slices.order`, of samples that are taken lane by lane; `pieces` as `Schedule.pieces` gives them."""
    lane, _, start, stop = pieces
    counts, by_lane = stop - start, np.argsort(lane, kind="stable")
    ends = np.cumsum(counts[by_lane])
    first = np.empty_like(ends)
    first[by_lane] = ends - counts[by_lane]
    if (first[1:] > first[:-1]).all():
        return None
    return np.repeat(first, counts) + within(counts)
