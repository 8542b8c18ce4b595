"""The reads of some steps: the samples that are loaded together, and the slices of them that make each batch.

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
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gdsload.backends.base import Backend, PendingRead, joined
from gdsload.engine.lane_windows import LaneWindow, LaneWindows
from gdsload.engine.runs import runs_of
from gdsload.engine.steps import Job, Ordered
from gdsload.order import BlockOrder, LanePieces, Schedule
from gdsload.shards.identity import LOOK_BEFORE_S
from gdsload.shards.reads import Extents, concat_extents, distinct, within
from gdsload.shards.shard_table import ShardTable
from gdsload.system.arrays import IntArray, unique

__all__ = [
    "FieldRows",
    "LoadedRows",
    "Planner",
    "ReadPlanner",
    "RowSlice",
    "Slices",
    "read_columns",
    "runs_of_columns",
]


@dataclass(slots=True)
class FieldRows:
    """One field of loaded samples: the address of each, and the rows of each if it is ragged.

    Of windows, which are made of several samples of the table, addresses have the shape ``[windows, offsets]``; or
    ``[windows]`` where each of them is in one place, as one row of so many times as many bytes.
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
        counted: whether its bytes have been counted, as some have been gathered.
        released: whether the arena memory has been released.
    """

    fields: dict[str, FieldRows]
    index: IntArray
    files: IntArray
    pending: PendingRead
    remaining: int
    counted: bool = False
    released: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def changeable(self) -> IntArray:
        """Those shards whose bytes may be other ones if their files are written to: to be checked after a gather."""
        return self.files if self.pending.files is None else self.pending.files

    @property
    def nbytes(self) -> int:
        """Arena memory that is held until the last sample is gathered."""
        return 0 if self.released else self.pending.nbytes

    def used(self, count: int) -> None:
        """Note that `count` samples have been gathered. Threads share loaded rows."""
        self._let_go(count)
        with self._lock:
            first, self.counted = not self.counted, True
        if first:
            self.pending.count()

    def _let_go(self, count: int) -> None:
        """`count` samples are no longer needed. After the last one the memory is released."""
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
        self._let_go(count)


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

    def drop(self) -> None:
        """See `LoadedRows.drop`."""
        self.rows.drop(self.count)


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
        """The values of the parts' samples, in the order in which samples are delivered."""
        if not values:
            return np.zeros(0, np.int64)
        found = values[0] if len(values) == 1 else np.concatenate(values)
        return found if self.order is None else found[self.order]


@dataclass(slots=True)
class _Window(LaneWindow[RowSlice]):
    """A window whose samples are known one by one.

    Attributes:
        positions: of its samples, in the order in which they are read; none when they have been.
        places: for each sample, in the order in which they are handed out, its number among those that are read.
    """

    positions: IntArray = field(default_factory=lambda: _NONE)
    places: IntArray = field(default_factory=lambda: _NONE)

    def take(self, stop: int) -> RowSlice:
        """See `LaneWindow.take`."""
        low, self.cursor = self.cursor, stop
        return RowSlice(self.rows, self.places[low:stop], stop - low)  # type: ignore[arg-type]


class Planner(Protocol):
    """The planner of reads for a source of landed batches. One thread at a time calls its methods."""

    @property
    def windowed(self) -> bool:
        """True if whole windows are read."""

    def opens(self, steps: range) -> int:
        """See `LaneWindows.opens`."""

    def slices(self, steps: range) -> Slices:
        """The loaded rows of some steps, whose reads are under way. If it fails, nothing is held for any step."""

    def let_go(self) -> None:
        """See `LaneWindows.let_go`."""


class ReadPlanner(Planner):
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
        fields = [job.table.columns[name] for name in job.columns]
        self._sample_bytes = 0 if any(field.ragged for field in fields) else sum(field.row_bytes for field in fields)
        self._windows: LaneWindows[_Window, RowSlice] | None = None
        if isinstance(job.steps, Ordered) and isinstance(job.steps.order, BlockOrder) and not backend.in_place:
            self._opened = partial(_opened, job.steps.order, job.steps.schedule)
            self._windows = LaneWindows(job.steps.schedule)

    @property
    def windowed(self) -> bool:
        """See `Planner.windowed`."""
        return self._windows is not None

    def opens(self, steps: range) -> int:
        """See `Planner.opens`."""
        return 0 if self._windows is None else self._windows.opens(steps)

    def slices(self, steps: range) -> Slices:
        """See `Planner.slices`."""
        if self._windows is not None:
            order = _delivered(self._windows.pieces(steps))
            return Slices(self._windows.take(steps, self._opened, self._read_windows), order)
        positions = self.job.steps.positions(steps)
        if not len(positions):
            return Slices([])
        loaded = self._read(positions)
        return Slices([RowSlice(loaded, slice(None), loaded.remaining)])

    def let_go(self) -> None:
        """See `Planner.let_go`."""
        if self._windows is not None:
            self._windows.let_go()

    def _read_windows(self, windows: list[_Window]) -> None:
        """Start reading windows."""
        rows, begin = self._read(np.concatenate([window.positions for window in windows])), 0
        for window in windows:
            window.rows, window.positions = rows, _NONE
            window.places += begin
            begin += window.count

    def _read(self, positions: IntArray) -> LoadedRows:
        """Start reading the samples at these positions."""
        selection = self.job.selection
        ids = selection.samples(positions)
        if self.job.offsets:
            files, wanted, rest = self._rows_of_windows(ids)
        else:
            bounds = runs_of(ids, self._sample_bytes) if self._sample_bytes else None
            files, wanted, rest = self._rows(ids) if bounds is None else self._runs(bounds)
        on_host = [name in self.job.on_host for name in self.job.columns]
        pending, parts = read_columns(self.backend, wanted, on_host)
        fields = {name: rows(part) for name, rows, part in zip(self.job.columns, rest, parts, strict=True)}
        return LoadedRows(fields, selection.indices(positions), files, pending, len(positions))

    def _rows_of_windows(self, ids: IntArray) -> _Wanted:
        """The extents of windows, by the samples that their offsets count from."""
        table = self.job.table
        columns = [_rows_of_windows(table, name, ids, offsets) for name, offsets in self.job.offsets.items()]
        files = distinct(np.concatenate([extents.file for extents, _ in columns]), len(table.starts))
        table.files.check(files, believed_s=LOOK_BEFORE_S)
        return files, [extents for extents, _ in columns], [rows for _, rows in columns]

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
        files, columns = runs_of_columns(self.job, bounds)
        rest = [
            partial(FieldRows.of_runs, counts=counts, row_bytes=self.job.table.columns[name].row_bytes)
            for name, (_, counts) in zip(self.job.columns, columns, strict=True)
        ]
        return files, [extents for extents, _ in columns], rest


def runs_of_columns(job: Job, bounds: IntArray) -> tuple[IntArray, list[tuple[Extents, IntArray]]]:
    """The shards of runs of consecutive samples, which are looked at, and of each column see `ShardTable.runs`."""
    table = job.table
    columns = [table.runs(name, bounds) for name in job.columns]
    files = distinct(columns[0][0].file, len(table.starts))
    table.files.check(files, believed_s=LOOK_BEFORE_S)
    return files, columns


def _rows_of_windows(
    table: ShardTable, name: str, ids: IntArray, offsets: Sequence[int]
) -> tuple[Extents, Callable[[IntArray], FieldRows]]:
    """The extents of a column of windows, and what makes its rows of their addresses.

    A window of consecutive samples in one shard is one row. Where one crosses shards, all are runs of rows.
    """
    count, begin = len(offsets), ids + offsets[0]
    if offsets[-1] - offsets[0] != count - 1 or not isinstance(offsets, range):
        found = table.locate((ids[:, None] + np.array(offsets)).reshape(-1))
        return table.extents(name, found)[0], lambda addresses: FieldRows(addresses.reshape(-1, count), None)
    found = table.locate(begin)
    if (begin + count <= table.ends[found.file]).all():
        extents, _ = table.extents(name, found)
        return Extents(extents.file, extents.offset, extents.nbytes * count), partial(FieldRows, lengths=None)
    extents, counts = table.runs(name, np.stack([begin, begin + count], axis=1))
    row_bytes = table.columns[name].row_bytes

    def rows(addresses: IntArray) -> FieldRows:
        found = FieldRows.of_runs(addresses, counts, row_bytes)
        return FieldRows(found.addresses.reshape(-1, count), None)

    return extents, rows


def read_columns(
    backend: Backend, wanted: list[Extents], on_host: Sequence[bool] = ()
) -> tuple[PendingRead, list[IntArray]]:
    """Start reading the extents of columns; also the addresses of each column's.

    Args:
        backend: reads them.
        wanted: the extents of each column.
        on_host: whether each is decoded on the host; none: no column is.
    """
    if not any(on_host):
        pending = backend.read(concat_extents(wanted))
    elif all(on_host):
        pending = backend.read(concat_extents(wanted), "host")
    else:
        pending = _both_ways(backend, wanted, np.repeat(on_host, [len(extents) for extents in wanted]))
    if len(wanted) == 1:
        return pending, [pending.addresses]
    return pending, np.split(pending.addresses, np.cumsum([len(extents) for extents in wanted[:-1]]))


def _both_ways(backend: Backend, wanted: list[Extents], on_host: NDArray[np.bool_]) -> PendingRead:
    """Start reading extents, some for the device and some for the host."""
    every, (here,), (there,) = concat_extents(wanted), (~on_host).nonzero(), on_host.nonzero()
    first = backend.read(every[here])
    try:
        second = backend.read(every[there], "host")
    except BaseException:
        with suppress(Exception):
            first.completion.wait()
        first.release()
        raise
    files = None
    if first.files is not None or second.files is not None:
        parts = ((first, here), (second, there))
        files = unique(np.concatenate([every.file[some] if read.files is None else read.files for read, some in parts]))
    return joined(files, (here, first), (there, second))


def _opened(order: BlockOrder, schedule: Schedule, step: int, lane: int, position: int) -> _Window:
    """This rank's part of the window of `lane` that holds `position`, from there on."""
    own = lane % order.lanes  # of what is repeated, those samples alone are read
    _, stop = order.window_at(own, position)
    ids, places = order.sorted_ids(own, schedule.runs_within(lane, step, position, stop))
    return _Window(len(places), stop, positions=ids, places=places)


def _delivered(pieces: LanePieces) -> IntArray | None:
    """Of samples that are taken lane by lane see `Slices.order`."""
    counts, by_lane = pieces.stop - pieces.start, np.argsort(pieces.lane, kind="stable")
    ends = np.cumsum(counts[by_lane])
    first = np.empty_like(ends)
    first[by_lane] = ends - counts[by_lane]
    if (first[1:] > first[:-1]).all():
        return None
    return np.repeat(first, counts) + within(counts)


def _without(
    extents: Extents, rows: IntArray | None, held: NDArray[np.bool_] | None
) -> tuple[Extents, IntArray | None]:
    """The extents and rows of a ragged column, none of those samples that are held."""
    if held is None or rows is None:
        return extents, rows
    return Extents(extents.file, extents.offset, np.where(held, 0, extents.nbytes)), np.where(held, 0, rows)
