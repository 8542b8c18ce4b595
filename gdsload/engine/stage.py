"""Stages: samples brought into memory together.

A stage is a run of positions of one lane whose bytes share one landing. In place, or where the order has no window, a
group of batches is one stage. Where bytes must be read into an arena and the order shuffles within windows, a stage is
a whole window: its blocks are read once, in large pieces, and its samples are handed out over many batches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gdsload.backends.base import Backend, PendingRead
from gdsload.engine.ready import StepTransform
from gdsload.engine.runs import Runs, runs_of
from gdsload.order import LaneRun, Order, Schedule
from gdsload.shards.reads import Extents, concat_extents, distinct
from gdsload.shards.shard_table import ShardTable

__all__ = ["FieldRows", "Job", "LoadedRows", "Ordered", "ReadPlanner", "RowSlice", "Selection", "Steps"]

IntArray = NDArray[np.int64]
_FIRST, _AHEAD = 8192, 16384
"""Positions of a lane whose ids are worked out at once, at first and later: enough to make the cost of a call
disappear, and few, so that neither the first batch nor another thread that wants to plan has to wait for long."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which samples an order's positions stand for.

    Attributes:
        ids: sample id of each position in the table; None where they are the same.
        index: what the user calls the sample at each position; None where it is the position.
    """

    ids: IntArray | None = None
    index: IntArray | None = None


class Steps(Protocol):
    """Which positions each step of this rank takes. Its methods may be called from several threads, but see `reach`."""

    @property
    def steps(self) -> int:
        """Number of steps of the epoch, as far as is known."""
        ...

    def reach(self, step: int) -> int:
        """Find out whether there is this step, and what all before it are; by one thread at a time.

        Afterwards `steps` is more than `step`, or final.

        Returns:
            Samples of the largest batch known of.
        """
        ...

    def size(self, step: int) -> int:
        """Samples of a step that is known."""
        ...

    def positions(self, steps: range) -> IntArray:
        """The positions that steps take, all known, in the order in which they are delivered.

        Raises:
            Exception: what stands in the place of one of them.
        """
        ...


@dataclass(slots=True)
class _Ahead:
    """Ids of a run of positions of one lane, from `start` on."""

    start: int = 0
    ids: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))


class Ordered:
    """Steps of an order, all known beforehand.

    Args:
        order: the samples' order in this epoch.
        schedule: which of the order's positions each step of this rank takes.
    """

    def __init__(self, order: Order, schedule: Schedule) -> None:
        self.order, self.schedule = order, schedule
        self._ahead = [_Ahead() for _ in range(order.lanes)]

    @property
    def steps(self) -> int:
        """See `Steps`."""
        return self.schedule.steps

    def reach(self, _step: int) -> int:
        """See `Steps`."""
        return self.schedule.batch_size

    def size(self, step: int) -> int:
        """See `Steps`."""
        return self.schedule.size(step)

    def positions(self, steps: range) -> IntArray:
        """See `Steps`."""
        runs = [self._ids(run) for run in self.schedule.runs_of(steps)]
        return runs[0] if len(runs) == 1 else np.concatenate([np.zeros(0, np.int64), *runs])

    def _ids(self, run: LaneRun) -> IntArray:
        """Position ids of a run; those of the positions behind it are kept for the next call."""
        ahead, order = self._ahead[run.lane], self.order
        if not (ahead.start <= run.start and run.stop <= ahead.start + len(ahead.ids)):
            count = _AHEAD if len(ahead.ids) else _FIRST
            stop = min(max(run.stop, run.start + count), order.lane_length(run.lane))
            # A new object: another thread may be reading the old one.
            ahead = self._ahead[run.lane] = _Ahead(run.start, order.lane_ids(run.lane, run.start, stop))
        return ahead.ids[run.start - ahead.start : run.stop - ahead.start]


@dataclass(frozen=True, slots=True)
class Job:
    """What a pipeline is to deliver.

    Attributes:
        table: the samples.
        steps: which positions each step takes.
        selection: which samples those positions stand for.
        fields: the fields that are wanted.
        transform: what is done to each batch before it is handed out; None: nothing.
    """

    table: ShardTable
    steps: Steps
    selection: Selection
    fields: tuple[str, ...]
    transform: StepTransform | None = None


@dataclass(slots=True)
class FieldRows:
    """One field of a stage's samples: the address of each, and the rows of each if it is ragged."""

    addresses: IntArray
    lengths: IntArray | None

    @classmethod
    def of_runs(cls, addresses: IntArray, runs: Runs, counts: Sequence[int], row_bytes: int) -> FieldRows:
        """Rows of one shape, from where parts of runs of them begin and how many each part has."""
        stretches: list[list[int]] = []  # of parts that lie one behind the other
        for address, count in zip(addresses.tolist(), counts, strict=True):
            if stretches and address == stretches[-1][0] + stretches[-1][1] * row_bytes:
                stretches[-1][1] += count
            else:
                stretches.append([address, count])
        parts = [address + np.arange(count) * row_bytes for address, count in stretches]
        found = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if runs.order is None:
            return cls(found, None)
        rows = np.empty_like(found)
        rows[runs.order] = found
        return cls(rows, None)


_Wanted = tuple[IntArray, list[Extents], Sequence[Callable[[IntArray], FieldRows]]]
"""Shards, for each field the extents that are wanted of it, and what makes its rows of their addresses."""


@dataclass(slots=True)
class LoadedRows:
    """Samples brought into memory together.

    Attributes:
        fields: where they lie.
        index: what the user calls each.
        files: the shards they come from.
        landing: when they are there.
        remaining: how many have not been gathered yet.
        nbytes: arena memory held.
    """

    fields: dict[str, FieldRows]
    index: IntArray
    files: IntArray
    landing: PendingRead
    remaining: int
    released: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def nbytes(self) -> int:
        """Arena memory that the stage holds until its last sample is gathered."""
        return self.landing.nbytes

    def used(self, count: int) -> None:
        """Note that `count` samples have been gathered; after the last the memory goes back. Workers share stages."""
        with self._lock:
            self.remaining -= count
            last = not self.remaining
        if last:
            self.release()

    def release(self) -> None:
        """Give the arena memory back; nothing happens the second time."""
        with self._lock:
            first, self.released = not self.released, True
        if first:
            self.landing.release()


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Samples `low` to `high` - 1 of a stage."""

    stage: LoadedRows
    low: int
    high: int


@dataclass(slots=True)
class _Window:
    """The window of a lane that is being handed out: its last position, its stage, and how far it was handed out."""

    stop: int
    stage: LoadedRows
    cursor: int = 0


class ReadPlanner:
    """Turns steps into pieces of stages, starting reads as it goes.

    Args:
        job: what to deliver.
        backend: what brings it.
    """

    def __init__(self, job: Job, backend: Backend) -> None:
        self.job, self.backend = job, backend
        self._windows: dict[int, _Window] = {}
        fields = [job.table.schema[name] for name in job.fields]
        self._sample_bytes = 0 if any(field.ragged for field in fields) else sum(field.row_bytes for field in fields)
        self._behind: int | None = None  # the step behind those that pieces were made of last
        self._windowed: Ordered | None = None
        if isinstance(job.steps, Ordered) and job.steps.order.window is not None and not backend.in_place:
            self._windowed = job.steps

    @property
    def windowed(self) -> bool:
        """Whether whole windows are brought."""
        return self._windowed is not None

    def held(self) -> list[LoadedRows]:
        """The stages that are kept for steps to come."""
        return [window.stage for window in self._windows.values()]

    def opens(self, steps: range) -> int:
        """How many windows `pieces` would have to bring for these steps, beside those that it then holds.

        None for steps that do not follow: whoever makes the ones before without pieces makes these so, too.
        """
        if self._windowed is None or steps.start != self._behind:
            return 0
        reached: dict[int, int] = {}
        for step in steps:
            reached.update((run.lane, run.stop) for run in self._windowed.schedule.runs(step))
        held = self._windows
        return sum(lane not in held or stop > held[lane].stop for lane, stop in reached.items())

    def pieces(self, steps: range) -> list[RowSlice]:
        """The pieces of stages that hold the samples of some steps, in their order.

        Args:
            steps: consecutive steps. Where windows are brought, best right behind those of the last call: if some were
                left out in between, their windows are brought anew.
        """
        if (ordered := self._windowed) is not None:
            if steps.start != self._behind:
                self.let_go()
            self._behind = steps.stop
            runs = ((step, run) for step in steps for run in ordered.schedule.runs(step))
            return [piece for step, run in runs for piece in self._from_windows(ordered, step, run)]
        positions = self.job.steps.positions(steps)
        if not len(positions):
            return []
        stage = self._bring(positions)
        return [RowSlice(stage, 0, stage.remaining)]

    def let_go(self) -> None:
        """Give up what is left of the windows held: another step is wanted now than the one behind the last call's."""
        for window in self._windows.values():
            window.stage.used(len(window.stage.index) - window.cursor)
        self._windows = {}

    def _from_windows(self, ordered: Ordered, step: int, run: LaneRun) -> Iterable[RowSlice]:
        position = run.start
        while position < run.stop:
            window = self._windows.get(run.lane)
            if window is None or position >= window.stop:
                window = self._windows[run.lane] = self._open_window(ordered, step, run.lane, position)
            count = min(run.stop, window.stop) - position
            yield RowSlice(window.stage, window.cursor, window.cursor + count)
            window.cursor += count
            position += count

    def _open_window(self, ordered: Ordered, step: int, lane: int, position: int) -> _Window:
        """Bring what this rank takes, from `position` on, of the window of `lane` that holds it."""
        order, schedule = ordered.order, ordered.schedule
        _, stop = order.window_at(lane, position)
        runs = schedule.runs_within(lane, step, position, stop)
        return _Window(stop, self._bring(np.concatenate([order.lane_ids(lane, run.start, run.stop) for run in runs])))

    def _bring(self, positions: IntArray) -> LoadedRows:
        """Start bringing the samples at these positions."""
        selection = self.job.selection
        ids = positions if selection.ids is None else selection.ids[positions]
        index = positions if selection.index is None else selection.index[positions]
        runs = runs_of(ids, self._sample_bytes, self.windowed) if self._sample_bytes else None
        files, wanted, rest = self._rows(ids) if runs is None else self._runs(runs)
        landing = self.backend.read(concat_extents(wanted))
        parts = [landing.addresses]
        if len(wanted) > 1:
            parts = np.split(landing.addresses, np.cumsum([len(extents) for extents in wanted[:-1]]))
        fields = {name: rows(part) for name, rows, part in zip(self.job.fields, rest, parts, strict=True)}
        return LoadedRows(fields, index, files, landing, len(ids))

    def _rows(self, ids: IntArray) -> _Wanted:
        """Each sample by itself."""
        table = self.job.table
        found = table.locate(ids)
        files = distinct(found.file, len(table.starts))
        self.backend.check(files)
        columns = [table.extents(name, found) for name in self.job.fields]
        return files, [extents for extents, _ in columns], [partial(FieldRows, lengths=rows) for _, rows in columns]

    def _runs(self, runs: Runs) -> _Wanted:
        """Many samples that lie one behind the other at once: what is worked out for each of them takes time."""
        table = self.job.table
        columns = [table.runs(name, runs.bounds) for name in self.job.fields]
        files = distinct(columns[0][0].file, len(table.starts))
        self.backend.check(files)
        rest = [
            partial(FieldRows.of_runs, runs=runs, counts=counts, row_bytes=table.schema[name].row_bytes)
            for name, (_, counts) in zip(self.job.fields, columns, strict=True)
        ]
        return files, [extents for extents, _ in columns], rest
