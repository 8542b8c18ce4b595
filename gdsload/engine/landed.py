"""Batches whose bytes a backend reads: extents are read, and batches are gathered from their addresses.

Where bytes are used in place, or the order has no window, a group of batches is read at once. Where bytes are read into
an arena and the order shuffles within windows, a whole window is read at once: its blocks are read once, in large
pieces, and its samples are handed out over many batches. Where the GPU works out which samples batches have, nothing is
known here of single ones: a window is the runs of consecutive samples that its blocks are, in which the GPU finds the
address of each sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.backends.base import Backend, PendingRead, joined
from gdsload.backends.checked import Checked
from gdsload.engine.assemble import Batch, BatchMaker
from gdsload.engine.batch_source import PendingBatches, Ready
from gdsload.engine.lane_windows import LaneWindows
from gdsload.engine.loaded_rows import LoadedRows, RowMap, RowSlice, Slices
from gdsload.engine.runs import runs_of
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Job, Ordered
from gdsload.order import BlockOrder
from gdsload.shards.identity import LOOK_BEFORE_S
from gdsload.shards.reads import Extents, concat_extents, distinct
from gdsload.shards.shard_table import ShardTable
from gdsload.system.arrays import IntArray, unique
from gdsload.system.spans import span

_NONE = np.zeros(0, np.int64)
_Reads = tuple[IntArray, list[Extents], Sequence[Callable[[IntArray], RowMap]]]
"""Shards, for each column the extents that are wanted of it, and what makes its rows of their addresses."""
_Held = Callable[[str, IntArray], NDArray[np.bool_] | None]
"""A mask of the samples whose bytes of a column are not wanted; None for none. See `KeptImages.holds`."""
_Gather = Callable[[Slices, list[int]], list[Batch]]
"""Gathers batches of so many samples each, which have landed; the gather has ended when it returns."""


class LandedSource:
    """Reads extents, and gathers batches from where they land: any backend, any order, any field."""

    by_id = False
    """True if rows are found by their samples' ids, in windows whose samples the host does not know: of columns of one
    shape, some of them with bytes, of samples that are the order's."""

    def __init__(self, job: Job, backend: Backend, maker: BatchMaker, stats: LoaderStats) -> None:
        self.job, self.backend, self.maker, self.stats = job, backend, maker, stats
        self.takes_processor, form = maker.takes_processor, maker.form
        self._columns, self._offsets = form.columns, form.offsets
        self._held = None if maker.kept is None else maker.kept.holds
        self._on_host = [not maker.takes_processor and name in form.on_host for name in form.columns]
        fields = [codec.stored for codec in form.codecs.values()]
        self._sample_bytes = 0 if any(field.ragged for field in fields) else sum(field.row_bytes for field in fields)
        self._windows: LaneWindows | None = None
        steps = job.steps
        if isinstance(steps, Ordered) and isinstance(steps.order, BlockOrder) and not backend.in_place:
            self._windows = LaneWindows(steps.order, steps.schedule, by_id=self.by_id)
        self._loaded: list[LoadedRows] = []  # those that hold arena memory
        self._batch_bytes = 0  # of a batch in the arena, the maximum so far: reads are larger than what is wanted

    def start(self, steps: range) -> PendingBatches:
        slices = self.slices(steps)
        loaded = slices.loaded()
        if self._windows is None:
            self._batch_bytes = max(self._batch_bytes, sum(rows.nbytes for rows in loaded) // len(steps))
        known = {id(rows) for rows in self._loaded}
        self._loaded += [rows for rows in loaded if rows.nbytes and id(rows) not in known]
        try:
            gather = self._gathering(steps)
        except BaseException:
            slices.drop()
            raise
        return PendingBatches(slices.landed, partial(self._made, steps, slices, gather), slices.drop)

    def slices(self, steps: range) -> Slices:
        """The loaded rows of some steps, whose reads are under way. If it fails, nothing is held for any step."""
        if self._windows is not None:
            return self._windows.take(steps, self._read)
        positions = self.job.steps.positions(steps)
        if not len(positions):
            return Slices([])
        return Slices([RowSlice(self._read(positions, len(positions)), slice(None), len(positions))])

    def _gathering(self, _steps: range) -> _Gather:
        """A function that gathers the batches of some steps, whose reads were started."""
        return self.maker.assemble

    def _made(self, steps: range, slices: Slices, gather: _Gather, stopped: Callable[[], bool]) -> Ready:
        times = [time.perf_counter()]
        with span("gdsload::wait"):
            slices.wait()
            if isinstance(self.backend, Checked):
                self.backend.refuse(self.job.samples(self.job.steps.positions(steps)), self._offsets)
        times.append(time.perf_counter())
        with span("gdsload::gather"):
            sizes = [self.job.steps.size(step) for step in steps]
            batches = gather(slices, sizes)
            if parts := slices.used():
                self.backend.check(np.concatenate([part.rows.changeable for part in parts]))
        times.append(time.perf_counter())
        if encoded := self.job.encoded(steps, batches):
            with span("gdsload::decode"):
                self.maker.decode(encoded, stopped)
        times.append(time.perf_counter())
        transform, ready = self.job.transform, Ready(batches, sizes)
        if transform is not None:
            with span("gdsload::transform"):
                ready = self.maker.transformed(transform, ready, steps, stopped)
        times.append(time.perf_counter())
        read_s, gather_s, decode_s, transform_s = (after - before for before, after in pairwise(times))
        self.stats.made(len(steps), read_s=read_s, gather_s=gather_s, decode_s=decode_s, transform_s=transform_s)
        return ready

    def _read(self, wanted: IntArray, count: int) -> LoadedRows:
        """Start reading so many samples: those at some positions, or in some runs if they are found `by_id`."""
        table, index = self.job.table, _NONE
        if self.by_id:
            files, extents, rows = _of_runs(table, self._columns, wanted, by_id=True)
        else:
            ids, index = self.job.samples(wanted), self.job.indices(wanted)
            if self._offsets:
                files, extents, rows = of_clips(table, self._offsets, ids)
            elif self._sample_bytes and (bounds := runs_of(ids, self._sample_bytes)) is not None:
                files, extents, rows = _of_runs(table, self._columns, bounds, by_id=False)
            else:
                files, extents, rows = _of_samples(table, self._columns, ids, self._held)
        pending, parts = read_columns(self.backend, extents, self._on_host)
        fields = {name: rows_of(part) for name, rows_of, part in zip(self._columns, rows, parts, strict=True)}
        return LoadedRows(fields, index, files, pending, count)

    def arena_bytes(self, steps: range, window_bytes: int) -> int:
        windows = self._windows
        wanted = len(steps) * self._batch_bytes if windows is None else windows.opens(steps) * window_bytes
        if not wanted:
            return 0
        self._loaded = [rows for rows in self._loaded if rows.nbytes]
        return wanted + sum(rows.nbytes for rows in self._loaded)

    def held_bytes(self) -> int:
        return sum(rows.nbytes for rows in self._loaded.copy())

    def hand_over(self, batches: Sequence[Any]) -> Callable[[Any], Any]:
        return self.maker.hand_over(batches)

    def again(self) -> LandedSource:
        return LandedSource(self.job, self.backend, self.maker, self.stats)

    def close(self) -> None:
        """See `BatchSource.close`. It may be used again: windows that are wanted are read again."""
        if self._windows is not None:
            self._windows.let_go()


def _of_samples(table: ShardTable, columns: Iterable[str], ids: IntArray, held: _Held | None) -> _Reads:
    """The reads of each sample by itself."""
    found = table.locate(ids)
    files = _checked(table, found.file)
    extents, rows = [], []
    for name in columns:
        wanted, lengths = table.extents(name, found)
        absent = None if held is None else held(name, ids)
        if absent is not None and lengths is not None:
            lengths = np.where(absent, 0, lengths)
            wanted = Extents(wanted.file, wanted.offset, np.where(absent, 0, wanted.nbytes))
        extents.append(wanted)
        rows.append(partial(RowMap, lengths=lengths))
    return files, extents, rows


def _of_runs(table: ShardTable, columns: Iterable[str], bounds: IntArray, *, by_id: bool) -> _Reads:
    """The reads of runs of consecutive samples, which may be found by their ids: planning single ones takes time.

    `bounds` are the first id of each run, and the one after the last, shape ``[runs, 2]``.
    """
    found = [(name, *table.runs(name, bounds)) for name in columns]
    files = _checked(table, found[0][1].file)
    rows = []
    for name, extents, counts in found:
        first = table.first_ids(name, extents) if by_id else None
        rows.append(partial(RowMap.of_runs, counts=counts, row_bytes=table.columns[name].row_bytes, first=first))
    return files, [extents for _, extents, _ in found], rows


def of_clips(table: ShardTable, offsets: Mapping[str, Sequence[int]], ids: IntArray) -> _Reads:
    """The reads of clips, by the samples that the offsets of each column count from."""
    found = [_of_clip_column(table, name, ids, own) for name, own in offsets.items()]
    files = _checked(table, np.concatenate([extents.file for extents, _ in found]))
    return files, [extents for extents, _ in found], [rows for _, rows in found]


def _of_clip_column(
    table: ShardTable, name: str, ids: IntArray, offsets: Sequence[int]
) -> tuple[Extents, Callable[[IntArray], RowMap]]:
    """The extents of a column of clips, and what makes its rows of their addresses.

    A clip of consecutive samples in one shard is one row. Where one crosses shards, all are runs of rows.
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


def _checked(table: ShardTable, file: IntArray) -> IntArray:
    """Some samples' shards, whose files have not changed."""
    files = distinct(file, len(table.starts))
    table.files.check(files, believed_s=LOOK_BEFORE_S)
    return files


def read_columns(
    backend: Backend, wanted: list[Extents], on_host: Sequence[bool] = ()
) -> tuple[PendingRead, list[IntArray]]:
    """Start reading the extents of columns, some of which may be decoded on the host; also the addresses of each."""
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
