"""Reads of columns: the extents of samples, runs of samples or windows, and the rows where they land."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gdsload.backends.base import Backend, PendingRead, joined
from gdsload.engine.loaded_rows import RowMap
from gdsload.shards.identity import LOOK_BEFORE_S
from gdsload.shards.reads import Extents, concat_extents, distinct
from gdsload.shards.shard_table import ShardTable
from gdsload.system.arrays import IntArray, unique

__all__ = ["ColumnReads", "Held", "of_runs", "of_samples", "of_windows", "read_columns"]

ColumnReads = tuple[IntArray, list[Extents], Sequence[Callable[[IntArray], RowMap]]]
"""Shards, for each column the extents that are wanted of it, and what makes its rows of their addresses."""
Held = Callable[[str, IntArray], NDArray[np.bool_] | None]
"""A mask of the samples whose bytes of a column are not wanted; None for none. See `KeptImages.holds`."""


def of_samples(table: ShardTable, columns: Iterable[str], ids: IntArray, held: Held | None) -> ColumnReads:
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


def of_runs(table: ShardTable, columns: Iterable[str], bounds: IntArray, *, by_id: bool) -> ColumnReads:
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


def of_windows(table: ShardTable, offsets: Mapping[str, Sequence[int]], ids: IntArray) -> ColumnReads:
    """The reads of windows, by the samples that the offsets of each column count from."""
    found = [_of_windows(table, name, ids, own) for name, own in offsets.items()]
    files = _checked(table, np.concatenate([extents.file for extents, _ in found]))
    return files, [extents for extents, _ in found], [rows for _, rows in found]


def _of_windows(
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
