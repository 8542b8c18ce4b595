"""What has to be read for some steps: samples that are loaded together, and which slices of them make which batches.

Where bytes are used in place, or the order has no window, a group of batches is read at once. Where bytes are read into
an arena and the order shuffles within windows, a whole window is read at once: its blocks are read once, in large
pieces, and its samples are handed out over many batches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gdsload.backends.base import Backend, PendingRead
from gdsload.engine.runs import Runs, runs_of
from gdsload.engine.steps import Job, Ordered
from gdsload.order import LanePieces
from gdsload.shards.reads import Extents, concat_extents, distinct, within
from gdsload.system.arrays import IntArray

__all__ = ["FieldRows", "LoadedRows", "ReadPlanner", "RowSlice", "Slices"]


@dataclass(slots=True)
class FieldRows:
    """One field of loaded samples: the address of each, and the rows of each if it is ragged.

    Of windows, which are made of several samples of the table, addresses have the shape ``[windows, length]``.
    """

    addresses: IntArray
    lengths: IntArray | None

    @classmethod
    def of_runs(cls, addresses: IntArray, runs: Runs, counts: IntArray, row_bytes: int) -> FieldRows:
        """Rows of one shape, from where parts of runs of them begin and how many each part has."""
        found = np.repeat(addresses, counts) + within(counts) * row_bytes
        if runs.order is None:
            return cls(found, None)
        rows = np.empty_like(found)
        rows[runs.order] = found
        return cls(rows, None)


_Wanted = tuple[IntArray, list[Extents], Sequence[Callable[[IntArray], FieldRows]]]
"""Shards, for each field the extents that are wanted of it, and what makes its rows of their addresses."""


@dataclass(slots=True)
class LoadedRows:
    """Samples that are read together.

    Attributes:
        fields: the addresses of their rows.
        index: the user's index of each.
        files: the shards they come from.
        pending: the read, and when its bytes have landed.
        remaining: how many samples have not been gathered yet.
        released: whether the arena memory has been released.
    """

    fields: dict[str, FieldRows]
    index: IntArray
    files: IntArray
    pending: PendingRead
    remaining: int
    released: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def nbytes(self) -> int:
        """Arena memory that is held until the last sample is gathered."""
        return 0 if self.released else self.pending.nbytes

    def used(self, count: int) -> None:
        """Note that `count` samples have been gathered, or are not wanted.

        After the last sample the memory is released. Threads share loaded rows.
        """
        with self._lock:
            self.remaining -= count
            last = not self.remaining and not self.released
            self.released = self.released or last
        if last:
            self.pending.release()

    def drop(self, count: int) -> None:
        """Note that `count` samples are not wanted, after the reads have ended."""
        with suppress(Exception):  # any error has been reported, or these bytes are no longer wanted
            self.pending.completion.wait()
        self.used(count)


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Samples `low` to `high` - 1 of loaded rows."""

    rows: LoadedRows
    low: int
    high: int

    @property
    def count(self) -> int:
        """Number of samples."""
        return self.high - self.low


class Slices(NamedTuple):
    """The samples of some steps.

    Attributes:
        parts: slices of loaded rows, one of each; there are few, however many steps take from them in turn.
        order: for each sample, in the order in which they are delivered, its number among those of all parts; None if
            the parts have them in that order.
    """

    parts: list[RowSlice]
    order: IntArray | None = None

    def arranged(self, values: Sequence[IntArray]) -> IntArray:
        """What the parts have of their samples, in the order in which samples are delivered."""
        if not values:
            return np.zeros(0, np.int64)
        found = values[0] if len(values) == 1 else np.concatenate(values)
        return found if self.order is None else found[self.order]


@dataclass(slots=True)
class _Window:
    """The window of a lane that is being handed out: its last position, its rows, and how far it was handed out."""

    stop: int
    rows: LoadedRows
    cursor: int = 0

    def take(self, count: int) -> RowSlice:
        """The next samples."""
        self.cursor += count
        return RowSlice(self.rows, self.cursor - count, self.cursor)


class ReadPlanner:
    """Turns steps into slices of loaded rows, starting reads as it goes.

    Args:
        job: what to deliver.
        backend: what reads it.
        held: of a column and samples, which are wanted without their bytes, as what is made of them is at hand; None
            for a column of which that holds for none. See `KeptImages.holds`.
    """

    def __init__(
        self, job: Job, backend: Backend, held: Callable[[str, IntArray], NDArray[np.bool_] | None] | None = None
    ) -> None:
        self.job, self.backend, self._held = job, backend, held
        self._windows: dict[int, _Window] = {}
        fields = [job.table.columns[name] for name in job.columns]
        self._sample_bytes = 0 if any(field.ragged for field in fields) else sum(field.row_bytes for field in fields)
        self._behind: int | None = None  # the step after the last ones that slices were made for
        self._asked: tuple[range, LanePieces] | None = None
        self._windowed: Ordered | None = None
        if isinstance(job.steps, Ordered) and job.steps.order.window is not None and not backend.in_place:
            self._windowed = job.steps

    @property
    def windowed(self) -> bool:
        """Whether whole windows are read."""
        return self._windowed is not None

    def opens(self, steps: range) -> int:
        """How many windows `slices` would have to read for these steps, in addition to those it holds then.

        0 for steps that do not follow the last ones: if the steps before are made without slices, so are these.
        """
        if self._windowed is None or steps.start != self._behind:
            return 0
        pieces, held = self._pieces(self._windowed, steps), self._windows
        reached = dict(zip(pieces.lane.tolist(), pieces.stop.tolist(), strict=True))
        return sum(lane not in held or stop > held[lane].stop for lane, stop in reached.items())

    def slices(self, steps: range) -> Slices:
        """The slices of loaded rows that hold the samples of some steps.

        If it fails, nothing is held for any step, and the next call reads windows anew.

        Args:
            steps: consecutive steps. Where windows are read, best those after the ones of the last call: if some were
                left out in between, their windows are read anew.
        """
        if (ordered := self._windowed) is None:
            positions = self.job.steps.positions(steps)
            if not len(positions):
                return Slices([])
            loaded = self._read(positions)
            return Slices([RowSlice(loaded, 0, loaded.remaining)])
        if steps.start != self._behind:
            self.let_go()
        self._behind = steps.stop
        parts: list[RowSlice] = []
        try:
            return Slices(parts, self._from_lanes(ordered, self._pieces(ordered, steps), parts))
        except BaseException:
            self._behind = None
            for part in parts:
                part.rows.drop(part.count)
            self.let_go()
            raise

    def let_go(self) -> None:
        """Release what is left of the windows held: the next step wanted is not the one after the last call's."""
        for window in self._windows.values():
            window.rows.drop(len(window.rows.index) - window.cursor)
        self._windows = {}

    def _pieces(self, ordered: Ordered, steps: range) -> LanePieces:
        """The lane positions of some steps: kept, as slices are wanted after `opens`."""
        if self._asked is None or self._asked[0] != steps:
            self._asked = steps, ordered.schedule.pieces(steps)
        return self._asked[1]

    def _from_lanes(self, ordered: Ordered, pieces: LanePieces, parts: list[RowSlice]) -> IntArray | None:
        """Take pieces out of windows, lane by lane, and add the slices to `parts`; returns `Slices.order`."""
        counts, by_lane = pieces.stop - pieces.start, np.argsort(pieces.lane, kind="stable")
        ends = np.cumsum(counts[by_lane])
        first = np.empty_like(ends)
        first[by_lane] = ends - counts[by_lane]
        lanes = pieces.lane[by_lane]
        edges = [*np.flatnonzero(lanes[1:] != lanes[:-1]).tolist(), len(lanes) - 1] if len(lanes) else []
        low = taken = 0
        for edge in edges:
            window, total = self._windows.get(int(lanes[edge])), int(ends[edge])
            if window is not None and pieces.stop[by_lane[edge]] <= window.stop:
                parts.append(window.take(total - taken))
            else:
                self._past_a_window(ordered, pieces, by_lane[low : edge + 1], parts)
            low, taken = edge + 1, total
        if (first[1:] > first[:-1]).all():
            return None
        return np.repeat(first, counts) + within(counts)

    def _past_a_window(self, ordered: Ordered, pieces: LanePieces, mine: IntArray, parts: list[RowSlice]) -> None:
        """Take pieces of one lane that go beyond the window that is held, or of whose windows none is."""
        columns = (pieces.step, pieces.lane, pieces.start, pieces.stop)
        for step, lane, start, stop in zip(*(column[mine].tolist() for column in columns), strict=True):
            position = start
            while position < stop:
                window = self._windows.get(lane)
                if window is None or position >= window.stop:
                    window = self._windows[lane] = self._open_window(ordered, step, lane, position)
                count = min(stop, window.stop) - position
                position += count
                found = window.take(count)
                if parts and parts[-1].rows is found.rows:
                    parts[-1] = RowSlice(found.rows, parts[-1].low, found.high)
                else:
                    parts.append(found)

    def _open_window(self, ordered: Ordered, step: int, lane: int, position: int) -> _Window:
        """Read this rank's part of the window of `lane` that holds `position`, from there on."""
        order, schedule = ordered.order, ordered.schedule
        own = lane % order.lanes  # of what is repeated, those samples alone are read
        _, stop = order.window_at(own, position)
        runs = schedule.runs_within(lane, step, position, stop)
        return _Window(stop, self._read(np.concatenate([order.lane_ids(own, run.start, run.stop) for run in runs])))

    def _read(self, positions: IntArray) -> LoadedRows:
        """Start reading the samples at these positions."""
        selection = self.job.selection
        ids = selection.samples(positions)
        runs = runs_of(ids, self._sample_bytes, self.windowed) if self._sample_bytes else None
        files, wanted, rest = self._rows(ids) if runs is None else self._runs(runs)
        pending = self.backend.read(concat_extents(wanted))
        parts = [pending.addresses]
        if len(wanted) > 1:
            parts = np.split(pending.addresses, np.cumsum([len(extents) for extents in wanted[:-1]]))
        fields = {name: rows(part) for name, rows, part in zip(self.job.columns, rest, parts, strict=True)}
        if selection.length > 1:
            for field in fields.values():
                field.addresses = field.addresses.reshape(-1, selection.length)
        return LoadedRows(fields, selection.indices(positions), files, pending, len(positions))

    def _rows(self, ids: IntArray) -> _Wanted:
        """The extents of each sample by itself."""
        table = self.job.table
        found = table.locate(ids)
        files = distinct(found.file, len(table.starts))
        self.backend.check(files)
        columns = [table.extents(name, found) for name in self.job.columns]
        if self._held is not None:
            columns = [
                _without(extents, rows, self._held(name, ids))
                for name, (extents, rows) in zip(self.job.columns, columns, strict=True)
            ]
        return files, [extents for extents, _ in columns], [partial(FieldRows, lengths=rows) for _, rows in columns]

    def _runs(self, runs: Runs) -> _Wanted:
        """Runs of consecutive samples at once: planning each sample by itself takes time."""
        table = self.job.table
        columns = [table.runs(name, runs.bounds) for name in self.job.columns]
        files = distinct(columns[0][0].file, len(table.starts))
        self.backend.check(files)
        rest = [
            partial(FieldRows.of_runs, runs=runs, counts=counts, row_bytes=table.columns[name].row_bytes)
            for name, (_, counts) in zip(self.job.columns, columns, strict=True)
        ]
        return files, [extents for extents, _ in columns], rest


def _without(
    extents: Extents, rows: IntArray | None, held: NDArray[np.bool_] | None
) -> tuple[Extents, IntArray | None]:
    """The extents and rows of a ragged column, none of those samples that are held."""
    if held is None or rows is None:
        return extents, rows
    return Extents(extents.file, extents.offset, np.where(held, 0, extents.nbytes)), np.where(held, 0, rows)
