"""The reads of block-shuffled steps where the GPU works out the samples of their batches.

Nothing is known of single samples then: a window is the runs of consecutive samples that its blocks are, and a group of
batches is the table of the runs that have been read for it, in which the GPU finds the address of each sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gdsload.backends.base import Backend
from gdsload.engine.lane_windows import LaneWindow, LaneWindows
from gdsload.engine.read_planner import LoadedRows, Planner, RowSlice, Slices, read_columns, runs_of_columns
from gdsload.engine.steps import Job
from gdsload.order import BlockOrder, Schedule
from gdsload.system.arrays import IntArray

__all__ = ["FieldRuns", "LoadedRuns", "WindowPlanner"]

_LEFT_OUT = 8
"""A window of which no more than one sample in so many is not wanted is read whole, as to look for those takes longer
than to read them: at the end of an epoch without its last batch, and of one that begins within a window."""


@dataclass(frozen=True, slots=True)
class FieldRuns:
    """One field of loaded samples, as runs of consecutive ones.

    Attributes:
        ends: the sample id after the last of each run, in rising order.
        origins: of each run, where the row of sample 0 would be: that of any sample of it is id * row_bytes after.
        bits: all bits that are set in any run's address.
    """

    ends: IntArray
    origins: IntArray
    bits: int

    @classmethod
    def together(cls, some: Sequence[FieldRuns]) -> FieldRuns:
        """One table of several, which have no sample in common."""
        ends = np.concatenate([each.ends for each in some])
        by_id = ends.argsort()
        origins = np.concatenate([each.origins for each in some])
        return cls(ends[by_id], origins[by_id], int(np.bitwise_or.reduce([each.bits for each in some])))


@dataclass(slots=True)
class LoadedRuns(LoadedRows):
    """Windows that are read together. It has no address and no index of any sample.

    Attributes:
        runs: the fields.
    """

    runs: dict[str, FieldRuns] = field(default_factory=dict)


@dataclass(slots=True)
class _Window(LaneWindow[RowSlice]):
    """A window as runs.

    Attributes:
        bounds: of its runs, first id and the one after the last; shape ``[runs, 2]``.
    """

    bounds: IntArray = field(default_factory=lambda: np.zeros((0, 2), np.int64))

    def take(self, stop: int) -> RowSlice:
        """See `LaneWindow.take`."""
        low, self.cursor = self.cursor, stop
        return RowSlice(self.rows, slice(low, stop), stop - low)  # type: ignore[arg-type]


class WindowPlanner(Planner):
    """Turns steps into loaded windows, starting reads as it goes.

    Args:
        job: what to deliver: columns of one shape, some of them with bytes, of samples that are the order's.
        order: the order.
        schedule: which of its positions each step takes; none of them twice.
        backend: what reads.
    """

    windowed = True

    def __init__(self, job: Job, order: BlockOrder, schedule: Schedule, backend: Backend) -> None:
        self._job, self._order, self._schedule, self._backend = job, order, schedule, backend
        self._windows: LaneWindows[_Window, RowSlice] = LaneWindows(schedule)

    def opens(self, steps: range) -> int:
        """See `Planner.opens`."""
        return self._windows.opens(steps)

    def slices(self, steps: range) -> Slices:
        """See `Planner.slices`: which of the rows are whose is for the GPU to work out."""
        return Slices(self._windows.take(steps, self._opened, self._read))

    def let_go(self) -> None:
        """See `Planner.let_go`."""
        self._windows.let_go()

    def _opened(self, step: int, lane: int, position: int) -> _Window:
        """This rank's part of the window of `lane` that holds `position`, from there on."""
        start, stop = self._order.window_at(lane, position)
        runs = self._schedule.runs_within(lane, step, position, stop)
        count = sum(map(len, runs))
        if (stop - start - count) * _LEFT_OUT <= stop - start:
            return _Window(count, stop, bounds=self._order.runs_between(lane, start, stop))
        ids, _ = self._order.sorted_ids(lane, runs)
        first = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
        lengths = np.diff(first, append=len(ids))
        return _Window(count, stop, bounds=np.stack([ids[first], ids[first] + lengths], axis=1))

    def _read(self, windows: list[_Window]) -> None:
        """Start reading windows together."""
        bounds = windows[0].bounds
        if len(windows) > 1:
            bounds = np.concatenate([window.bounds for window in windows])
            bounds = bounds[bounds[:, 0].argsort()]
        files, columns = runs_of_columns(self._job, bounds)
        # Before the read, whose threads want the interpreter lock at once, and numpy often gives it up.
        table = self._job.table
        known = []
        for name, (extents, counts) in zip(self._job.columns, columns, strict=True):
            first = table.first_ids(name, extents)
            known.append((first + counts, first * table.columns[name].row_bytes))
        pending, addresses = read_columns(self._backend, [extents for extents, _ in columns])
        runs = {
            name: FieldRuns(ends, where - ahead, int(np.bitwise_or.reduce(where)))
            for name, where, (ends, ahead) in zip(self._job.columns, addresses, known, strict=True)
        }
        rows = LoadedRuns({}, bounds[:0, 0], files, pending, sum(window.count for window in windows), runs=runs)
        for window in windows:
            window.rows = rows
