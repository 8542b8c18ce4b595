"""What has to be read for some steps: samples that are loaded together, and which slices of them make which batches.

Where bytes are used in place, or the order has no window, a group of batches is read at once. Where bytes are read into
an arena and the order shuffles within windows, a whole window is read at once: its blocks are read once, in large
pieces, and its samples are handed out over many batches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gdsload.backends.base import Backend, PendingRead
from gdsload.engine.runs import runs_of
from gdsload.engine.steps import Job, Ordered
from gdsload.order import BlockOrder, LanePieces, Schedule
from gdsload.shards.identity import LOOK_BEFORE_S
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
    def of_runs(cls, addresses: IntArray, counts: IntArray, row_bytes: int) -> FieldRows:
        """Rows of one shape, from where parts of runs of them begin and how many each part has."""
        before = counts.cumsum() - counts
        found = (addresses - before * row_bytes).repeat(counts)
        found += np.arange(len(found)) * row_bytes
        return cls(found, None)


_NONE = np.zeros(0, np.int64)
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
    """Some of the loaded rows.

    Attributes:
        rows: the loaded rows.
        chosen: which of them, in order.
        count: how many samples they are.
    """

    rows: LoadedRows
    chosen: slice | IntArray
    count: int


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
    """This rank's part of the window of a lane, which is handed out in turn.

    Attributes:
        positions: of its samples, in the order in which they are read; none when they have been.
        places: for each sample, in the order in which they are handed out, its number among those that are read.
        stop: the lane position after its last.
        rows: what was read; None: nothing yet.
        cursor: how far it was handed out.
    """

    positions: IntArray
    places: IntArray
    stop: int
    rows: LoadedRows | None = None
    cursor: int = 0

    def take(self, stop: int) -> RowSlice:
        """Its samples up to `stop` that were not handed out yet; it has been read."""
        low, self.cursor = self.cursor, stop
        return RowSlice(self.rows, self.places[low:stop], stop - low)  # type: ignore[arg-type]

    def let_go(self) -> None:
        """Release what was not handed out."""
        rows, self.rows = self.rows, None
        if rows is not None:
            rows.drop(len(self.places) - self.cursor)


class _Windowed(NamedTuple):
    """Where windows come from."""

    order: BlockOrder
    schedule: Schedule

    def window(self, step: int, lane: int, position: int) -> _Window:
        """This rank's part of the window of `lane` that holds `position`, from there on."""
        own = lane % self.order.lanes  # of what is repeated, those samples alone are read
        _, stop = self.order.window_at(own, position)
        runs = self.schedule.runs_within(lane, step, position, stop)
        return _Window(*self.order.sorted_ids(own, runs), stop)


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
        self._opening: list[_Window] = []  # those that the call being made has opened, however far it has got
        fields = [job.table.columns[name] for name in job.columns]
        self._sample_bytes = 0 if any(field.ragged for field in fields) else sum(field.row_bytes for field in fields)
        self._behind: int | None = None  # the step after the last ones that slices were made for
        self._asked: tuple[range, LanePieces] | None = None
        self._windowed: _Windowed | None = None
        if isinstance(job.steps, Ordered) and isinstance(job.steps.order, BlockOrder) and not backend.in_place:
            self._windowed = _Windowed(job.steps.order, job.steps.schedule)

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
        pieces, held = self._pieces(steps, self._windowed.schedule), self._windows
        reached = dict(zip(pieces.lane.tolist(), pieces.stop.tolist(), strict=True))
        return sum(lane not in held or stop > held[lane].stop for lane, stop in reached.items())

    def slices(self, steps: range) -> Slices:
        """The slices of loaded rows that hold the samples of some steps.

        If it fails, nothing is held for any step, and the next call reads windows anew.

        Args:
            steps: consecutive steps. Where windows are read, best those after the ones of the last call: if some were
                left out in between, their windows are read anew.
        """
        if (windowed := self._windowed) is None:
            positions = self.job.steps.positions(steps)
            if not len(positions):
                return Slices([])
            loaded = self._read(positions)
            return Slices([RowSlice(loaded, slice(None), loaded.remaining)])
        if steps.start != self._behind:
            self.let_go()
        self._behind = steps.stop
        parts: list[RowSlice] = []
        try:
            return Slices(parts, self._from_lanes(windowed, self._pieces(steps, windowed.schedule), parts))
        except BaseException:
            self._behind = None
            for part in parts:
                part.rows.drop(part.count)
            self.let_go()
            raise

    def let_go(self) -> None:
        """Release what is left of the windows held: the next step wanted is not the one after the last call's."""
        windows = [*self._windows.values(), *self._opening]
        self._windows, self._opening = {}, []
        for window in windows:
            window.let_go()

    def _pieces(self, steps: range, schedule: Schedule) -> LanePieces:
        """The lane positions of some steps: kept, as slices are wanted after `opens`."""
        if self._asked is None or self._asked[0] != steps:
            self._asked = steps, schedule.pieces(steps)
        return self._asked[1]

    def _from_lanes(self, windowed: _Windowed, pieces: LanePieces, parts: list[RowSlice]) -> IntArray | None:
        """Take pieces out of windows, lane by lane, and add the slices to `parts`; returns `Slices.order`."""
        counts, by_lane = pieces.stop - pieces.start, np.argsort(pieces.lane, kind="stable")
        ends = np.cumsum(counts[by_lane])
        first = np.empty_like(ends)
        first[by_lane] = ends - counts[by_lane]
        lanes = pieces.lane[by_lane]
        edges = [0, *(np.flatnonzero(lanes[1:] != lanes[:-1]) + 1).tolist(), len(lanes)] if len(lanes) else []
        taken = [
            (int(lanes[low]), *each)
            for low, high in pairwise(edges)
            for each in self._taken(windowed, pieces, by_lane[low:high])
        ]
        self._read_windows(self._opening)
        for lane, window, stop in taken:
            parts.append(window.take(stop))
            self._windows[lane] = window
        self._opening = []
        if (first[1:] > first[:-1]).all():
            return None
        return np.repeat(first, counts) + within(counts)

    def _taken(self, windowed: _Windowed, pieces: LanePieces, mine: IntArray) -> Iterator[tuple[_Window, int]]:
        """What has to be taken for pieces of one lane: windows, opened where none is held, and up to where in each."""
        lane, ends = int(pieces.lane[mine[0]]), np.cumsum(pieces.stop[mine] - pieces.start[mine])
        window, done, total = self._windows.get(lane), 0, int(ends[-1])
        cursor = window.cursor if window else 0
        while done < total:
            if window is None or cursor == len(window.places):
                piece = int(np.searchsorted(ends, done, side="right"))
                position = int(pieces.stop[mine[piece]] - ends[piece]) + done
                window, cursor = windowed.window(int(pieces.step[mine[piece]]), lane, position), 0
                self._opening.append(window)
            count = min(total - done, len(window.places) - cursor)
            done, cursor = done + count, cursor + count
            yield window, cursor

    def _read_windows(self, windows: list[_Window]) -> None:
        """Start reading windows: those of one length together, as they are used up at about the same time.

        Memory is released when all of them are, and what would be held longest is the shortest.
        """
        alike: dict[int, list[_Window]] = {}
        for window in windows:
            alike.setdefault(len(window.places), []).append(window)
        for some in alike.values():
            rows, begin = self._read(np.concatenate([window.positions for window in some])), 0
            for window in some:
                window.rows, window.positions = rows, _NONE
                window.places += begin
                begin += len(window.places)

    def _read(self, positions: IntArray) -> LoadedRows:
        """Start reading the samples at these positions."""
        selection = self.job.selection
        ids = selection.samples(positions)
        bounds = runs_of(ids, self._sample_bytes) if self._sample_bytes else None
        files, wanted, rest = self._rows(ids) if bounds is None else self._runs(bounds)
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
        table.files.check(files, believed_s=LOOK_BEFORE_S)
        columns = [table.extents(name, found) for name in self.job.columns]
        if self._held is not None:
            columns = [
                _without(extents, rows, self._held(name, ids))
                for name, (extents, rows) in zip(self.job.columns, columns, strict=True)
            ]
        return files, [extents for extents, _ in columns], [partial(FieldRows, lengths=rows) for _, rows in columns]

    def _runs(self, bounds: IntArray) -> _Wanted:
        """Runs of consecutive samples at once: planning each sample by itself takes time."""
        table = self.job.table
        columns = [table.runs(name, bounds) for name in self.job.columns]
        files = distinct(columns[0][0].file, len(table.starts))
        table.files.check(files, believed_s=LOOK_BEFORE_S)
        rest = [
            partial(FieldRows.of_runs, counts=counts, row_bytes=table.columns[name].row_bytes)
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
