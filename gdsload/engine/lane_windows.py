"""Windows of lanes, as steps take samples from them: opened where a step needs them first, held while it has more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gdsload.engine.loaded_rows import LoadedRows, RowSlice
from gdsload.order import LanePieces, Schedule
from gdsload.system.arrays import IntArray

__all__ = ["LaneWindow", "LaneWindows"]


@dataclass(slots=True)
class LaneWindow:
    """This rank's part of the window of a lane, which is handed out in turn.

    Attributes:
        count: its samples.
        stop: the lane position after its last.
        wanted: the positions of its samples, in the order in which they are read; or of the runs of consecutive samples
            that it is, first id and the one after the last, shape ``[runs, 2]``. It is the planner's.
        places: for each sample, in the order in which they are handed out, its number among those that are read
            together; None where the rows are found by id.
        cursor: how many samples were handed out.
        rows: what was read; None: nothing yet.
    """

    count: int
    stop: int
    wanted: IntArray
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
    """The windows that steps take samples from.

    Args:
        schedule: which lane positions each step takes.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._held: dict[int, LaneWindow] = {}
        self._opening: list[LaneWindow] = []  # those that the call being made has opened, however far it has got
        self._behind: int | None = None  # the step after the last ones that samples were taken for
        self._asked: tuple[range, list[_Taken]] | None = None
        self._pieces: tuple[range, LanePieces] | None = None

    def opens(self, steps: range) -> int:
        """The number of windows that `take` would have to read for these steps, in addition to those it holds then.

        0 for steps that do not follow the last ones: if the steps before are made without windows, so are these.
        """
        if steps.start != self._behind:
            return 0
        held = self._held
        return sum(one.lane not in held or one.stop > held[one.lane].stop for one in self._taken_of(steps))

    def pieces(self, steps: range) -> LanePieces:
        """The lane positions of some steps: kept for the next call."""
        if self._pieces is None or self._pieces[0] != steps:
            self._pieces = steps, self._schedule.pieces(steps)
        return self._pieces[1]

    def take(
        self, steps: range, opened: Callable[[int, int, int], LaneWindow], read: Callable[[list[LaneWindow]], None]
    ) -> list[RowSlice]:
        """The samples of some steps, lane by lane, and of each lane window by window.

        If it fails, nothing is held for any step, and the next call reads windows again.

        Args:
            steps: consecutive steps, best those after the ones of the last call: if some were left out in between,
                their windows are read again.
            opened: this rank's part of the window of a lane that holds a position, from there on; given are a step
                before which no rank gets any of it, the lane and the position.
            read: starts reading some windows together.
        """
        if steps.start != self._behind:
            self.let_go()
        self._behind = steps.stop
        parts: list[RowSlice] = []
        try:
            taken = [(one.lane, *each) for one in self._taken_of(steps) for each in self._windows_of(one, opened)]
            # Windows of one length together, as they are used up at about the same time: memory is released when all of
            # them are, and what would be held longest is the shortest.
            alike: dict[int, list[LaneWindow]] = {}
            for window in self._opening:
                alike.setdefault(window.count, []).append(window)
            for some in alike.values():
                read(some)
            for lane, window, stop in taken:
                parts.append(window.take(stop))
                self._held[lane] = window
            self._opening = []
        except BaseException:
            self._behind = None
            for part in parts:
                part.rows.drop(part.count)
            self.let_go()
            raise
        return parts

    def let_go(self) -> None:
        """Release what is left of the windows held: the next step wanted is not the one after the last call's."""
        windows = [*self._held.values(), *self._opening]
        self._held, self._opening = {}, []
        for window in windows:
            window.let_go()

    def _taken_of(self, steps: range) -> list[_Taken]:
        """The samples that some steps take of each lane: kept, as both `opens` and `take` want them."""
        if self._asked is None or self._asked[0] != steps:
            runs = self._schedule.ranges(steps)
            if runs is None:
                found = _by_lane(self.pieces(steps))
            else:
                found = [_Taken(run.lane, len(run), run.stop, steps.start, run.start) for run in runs]
            self._asked = steps, found
        return self._asked[1]

    def _windows_of(
        self, taken: _Taken, opened: Callable[[int, int, int], LaneWindow]
    ) -> Iterator[tuple[LaneWindow, int]]:
        """The windows that are needed of a lane, opened where none is held, and up to where in each."""
        window, done = self._held.get(taken.lane), 0
        cursor = window.cursor if window else 0
        while done < taken.total:
            if window is None or cursor == window.count:
                window, cursor = opened(*taken.place(done)), 0
                self._opening.append(window)
            count = min(taken.total - done, window.count - cursor)
            done, cursor = done + count, cursor + count
            yield window, cursor


@dataclass(frozen=True, slots=True)
class _Taken:
    """The samples that some steps take of a lane.

    Attributes:
        lane: the lane; see `LaneRun`.
        total: samples.
        stop: the position after the last.
        step: a step before which none of them is taken.
        start: the first position, where they are one run of them.
        pieces: the runs that they are, where they are several: of each, its step, the position after its last, and
            samples of all up to it.
    """

    lane: int
    total: int
    stop: int
    step: int
    start: int
    pieces: tuple[IntArray, IntArray, IntArray] | None = None

    def place(self, number: int) -> tuple[int, int, int]:
        """Of a sample, by its number among them: a step before which it is not taken, lane and position."""
        if self.pieces is None:
            return self.step, self.lane, self.start + number
        step, stop, ends = self.pieces
        piece = int(np.searchsorted(ends, number, side="right"))
        return int(step[piece]), self.lane, int(stop[piece] - ends[piece]) + number


def _by_lane(pieces: LanePieces) -> list[_Taken]:
    """The samples that pieces take of each lane."""
    by_lane = np.argsort(pieces.lane, kind="stable")
    lanes, found = pieces.lane[by_lane], []
    edges = [*np.flatnonzero(np.diff(lanes, prepend=-1)).tolist(), len(lanes)]
    for low, high in pairwise(edges):
        mine = by_lane[low:high]
        step, stop, ends = pieces.step[mine], pieces.stop[mine], np.cumsum(pieces.stop[mine] - pieces.start[mine])
        first = int(pieces.start[mine[0]])
        found.append(_Taken(int(lanes[low]), int(ends[-1]), int(stop[-1]), int(step[0]), first, (step, stop, ends)))
    return found
