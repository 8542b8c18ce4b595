"""The reads of some steps: the samples that are loaded together, and the slices of them that make each batch.

Where bytes are used in place, or the order has no window, a group of batches is read at once. Where bytes are read into
an arena and the order shuffles within windows, a whole window is read at once: its blocks are read once, in large
pieces, and its samples are handed out over many batches. Where the GPU works out which samples batches have, nothing is
known here of single ones: a window is the runs of consecutive samples that its blocks are, in which the GPU finds the
address of each sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gdsload.backends.base import Backend, PendingRead, joined
from gdsload.engine.assemble import BatchForm
from gdsload.engine.lane_windows import LaneWindow, LaneWindows
from gdsload.engine.loaded_rows import LoadedRows, RowMap, RowSlice, Slices
from gdsload.engine.runs import runs_of
from gdsload.engine.steps import Job, Ordered
from gdsload.order import BlockOrder, LanePieces, Schedule
from gdsload.shards.identity import LOOK_BEFORE_S
from gdsload.shards.reads import Extents, concat_extents, distinct, within
from gdsload.shards.shard_table import ShardTable
from gdsload.system.arrays import IntArray, unique

__all__ = ["ReadPlanner", "read_columns"]


_NONE = np.zeros(0, np.int64)
_LEFT_OUT = 8
"""A window of which no more than one sample in so many is not wanted is read whole, as to look for those takes longer
than to read them: at the end of an epoch without its last batch, and of one that begins within a window."""
_Wanted = tuple[IntArray, list[Extents], Sequence[Callable[[IntArray], RowMap]]]
"""Shards, for each column the extents that are wanted of it, and what makes its rows of their addresses."""


class ReadPlanner:
    """Turns steps into slices of loaded rows, starting reads as it goes. One thread at a time calls its methods.

    Args:
        job: what to deliver.
        backend: what reads it.
        form: how a batch looks.
        held: of a column and samples, which are wanted without their bytes, as what is made of them is at hand; None
            for a column of which that holds for none. See `KeptImages.holds`.
        for_device: whether a device builds batches, but for what is decoded on the host.
        by_id: whether rows are found by their samples' ids, in windows whose samples the planner does not know: of
            columns of one shape, some of them with bytes, of samples that are the order's.
    """

    def __init__(
        self,
        job: Job,
        backend: Backend,
        form: BatchForm,
        held: Callable[[str, IntArray], NDArray[np.bool_] | None] | None = None,
        *,
        for_device: bool = False,
        by_id: bool = False,
    ) -> None:
        self.job, self.backend, self._held, self._by_id = job, backend, held, by_id
        self._columns, self._offsets = form.columns, form.offsets
        self._on_host = [for_device and name in form.on_host for name in form.columns]
        fields = [codec.stored for codec in form.codecs.values()]
        self._sample_bytes = 0 if any(field.ragged for field in fields) else sum(field.row_bytes for field in fields)
        self._windows: LaneWindows | None = None
        if isinstance(job.steps, Ordered) and isinstance(job.steps.order, BlockOrder) and not backend.in_place:
            self._opened = partial(_runs_opened if by_id else _samples_opened, job.steps.order, job.steps.schedule)
            self._windows = LaneWindows(job.steps.schedule)

    @property
    def windowed(self) -> bool:
        """True if whole windows are read."""
        return self._windows is not None

    def opens(self, steps: range) -> int:
        """See `LaneWindows.opens`."""
        return 0 if self._windows is None else self._windows.opens(steps)

    def slices(self, steps: range) -> Slices:
        """The loaded rows of some steps, whose reads are under way. If it fails, nothing is held for any step."""
        if self._windows is not None:
            if self._by_id:
                return Slices(self._windows.take(steps, self._opened, self._read_runs))
            order = _delivered(self._windows.pieces(steps))
            return Slices(self._windows.take(steps, self._opened, self._read_samples), order)
        positions = self.job.steps.positions(steps)
        if not len(positions):
            return Slices([])
        loaded = self._read(positions)
        return Slices([RowSlice(loaded, slice(None), loaded.remaining)])

    def let_go(self) -> None:
        """See `LaneWindows.let_go`."""
        if self._windows is not None:
            self._windows.let_go()

    def _read_samples(self, windows: list[LaneWindow]) -> None:
        """Start reading windows whose samples are known."""
        rows, begin = self._read(np.concatenate([window.wanted for window in windows])), 0
        for window in windows:
            window.rows, window.wanted = rows, _NONE
            if window.places is not None:
                window.places += begin
            begin += window.count

    def _read_runs(self, windows: list[LaneWindow]) -> None:
        """Start reading windows of which only the runs are known."""
        bounds = windows[0].wanted
        if len(windows) > 1:
            bounds = np.concatenate([window.wanted for window in windows])
            bounds = bounds[bounds[:, 0].argsort()]
        rows = self._started(self._runs(bounds), bounds[:0, 0], sum(window.count for window in windows))
        for window in windows:
            window.rows, window.wanted = rows, _NONE

    def _read(self, positions: IntArray) -> LoadedRows:
        """Start reading the samples at these positions."""
        ids = self.job.samples(positions)
        if self._offsets:
            wanted = self._rows_of_windows(ids)
        else:
            bounds = runs_of(ids, self._sample_bytes) if self._sample_bytes else None
            wanted = self._rows(ids) if bounds is None else self._runs(bounds)
        return self._started(wanted, self.job.indices(positions), len(positions))

    def _started(self, wanted: _Wanted, index: IntArray, count: int) -> LoadedRows:
        """So many samples, of which the user's indices are given, whose read is started."""
        files, extents, rows = wanted
        pending, parts = read_columns(self.backend, extents, self._on_host)
        fields = {name: rows_of(part) for name, rows_of, part in zip(self._columns, rows, parts, strict=True)}
        return LoadedRows(fields, index, files, pending, count)

    def _rows_of_windows(self, ids: IntArray) -> _Wanted:
        """The extents of windows, by the samples that their offsets count from."""
        table = self.job.table
        columns = [_rows_of_windows(table, name, ids, offsets) for name, offsets in self._offsets.items()]
        files = distinct(np.concatenate([extents.file for extents, _ in columns]), len(table.starts))
        table.files.check(files, believed_s=LOOK_BEFORE_S)
        return files, [extents for extents, _ in columns], [rows for _, rows in columns]

    def _rows(self, ids: IntArray) -> _Wanted:
        """The extents of each sample by itself."""
        table = self.job.table
        found = table.locate(ids)
        files = distinct(found.file, len(table.starts))
        table.files.check(files, believed_s=LOOK_BEFORE_S)
        columns = [table.extents(name, found) for name in self._columns]
        if self._held is not None:
            columns = [
                _without(extents, rows, self._held(name, ids))
                for name, (extents, rows) in zip(self._columns, columns, strict=True)
            ]
        return files, [extents for extents, _ in columns], [partial(RowMap, lengths=rows) for _, rows in columns]

    def _runs(self, bounds: IntArray) -> _Wanted:
        """Runs of consecutive samples at once: planning each sample by itself takes time."""
        table = self.job.table
        columns = [table.runs(name, bounds) for name in self._columns]
        files = distinct(columns[0][0].file, len(table.starts))
        table.files.check(files, believed_s=LOOK_BEFORE_S)
        rest = []
        for name, (extents, counts) in zip(self._columns, columns, strict=True):
            rows = partial(RowMap.of_runs, counts=counts, row_bytes=table.columns[name].row_bytes)
            rest.append(partial(rows, first=table.first_ids(name, extents)) if self._by_id else rows)
        return files, [extents for extents, _ in columns], rest


def _rows_of_windows(
    table: ShardTable, name: str, ids: IntArray, offsets: Sequence[int]
) -> tuple[Extents, Callable[[IntArray], RowMap]]:
    """The extents of a column of windows, and what makes its rows of their addresses.

    A window of consecutive samples in one shard is one row. Where one crosses shards, all are runs of rows.
    """
    count, begin = len(offsets), ids + offsets[0]
    if offsets[-1] - offsets[0] != count - 1 or not isinstance(offsets, range):
        found = table.locate((ids[:, None] + np.array(offsets)).reshape(-1))
        return table.extents(name, found)[0], lambda addresses: RowMap(addresses.reshape(-1, count))
    found = table.locate(begin)
    if (begin + count <= table.ends[found.file]).all():
        extents, _ = table.extents(name, found)
        return Extents(extents.file, extents.offset, extents.nbytes * count), RowMap
    extents, counts = table.runs(name, np.stack([begin, begin + count], axis=1))
    row_bytes = table.columns[name].row_bytes

    def rows(addresses: IntArray) -> RowMap:
        return RowMap(RowMap.of_runs(addresses, counts, row_bytes).addresses.reshape(-1, count))

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


def _samples_opened(order: BlockOrder, schedule: Schedule, step: int, lane: int, position: int) -> LaneWindow:
    """This rank's part of the window of `lane` that holds `position`, from there on."""
    own = lane % order.lanes  # of what is repeated, those samples alone are read
    _, stop = order.window_at(own, position)
    ids, places = order.sorted_ids(own, schedule.runs_within(lane, step, position, stop))
    return LaneWindow(len(places), stop, ids, places)


def _runs_opened(order: BlockOrder, schedule: Schedule, step: int, lane: int, position: int) -> LaneWindow:
    """The same as runs of samples, where no position is repeated."""
    start, stop = order.window_at(lane, position)
    runs = schedule.runs_within(lane, step, position, stop)
    count = sum(map(len, runs))
    if (stop - start - count) * _LEFT_OUT <= stop - start:
        return LaneWindow(count, stop, order.runs_between(lane, start, stop))
    ids, _ = order.sorted_ids(lane, runs)
    first = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
    lengths = np.diff(first, append=len(ids))
    return LaneWindow(count, stop, np.stack([ids[first], ids[first] + lengths], axis=1))


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
