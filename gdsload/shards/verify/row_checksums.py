"""The check of samples before they are written again: damaged bytes must not get a right checksum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import ChecksumError, Problem
from gdsload.shards.format.checksum import BLOCK_BYTES, block_count
from gdsload.shards.format.header import TensorEntry
from gdsload.shards.format.shard import OFFSETS_PREFIX
from gdsload.shards.format.stored import StoredSchema
from gdsload.shards.identity import ShardSource
from gdsload.shards.local_files import open_regular
from gdsload.shards.opening import as_named, load_shard, reading
from gdsload.shards.reads import distinct, within
from gdsload.shards.status import close
from gdsload.shards.verify.opened import OpenShard
from gdsload.system.arrays import IntArray

_REMEDY = "Restore it from a copy; `gdsload verify` names everything that is damaged."


class RowCheck:
    """Compares the bytes of samples with their checksums: of each field the blocks that contain them, each block once.

    Shards without checksums are left alone. For one thread.

    Args:
        sources: the shards of a dataset; how many samples each has is known.
        stored: its fields, and how they are stored.
    """

    def __init__(self, sources: Sequence[ShardSource], stored: StoredSchema) -> None:
        self._sources, self._stored = sources, stored
        self._ends = np.cumsum([source.samples for source in sources])
        self._right: dict[tuple[int, str], NDArray[np.bool_]] = {}

    def __call__(self, ids: IntArray, *, values: bool = True) -> None:
        """Compare samples.

        Args:
            ids: the dataset's numbers of them, in any order.
            values: all of them; otherwise only how long the ragged ones are.

        Raises:
            ChecksumError: if one is damaged; `.problems` has the shard, field, bytes and samples of each block.
            FormatError: if a shard's header is.
            ReadError: if a shard cannot be read.
        """
        ids = np.sort(ids)
        edges = np.searchsorted(ids, self._ends)
        counts = np.diff(edges, prepend=0)
        problems: list[Problem] = []
        for file in np.flatnonzero(counts).tolist():
            problems += self._compare(file, ids[edges[file] - counts[file] : edges[file]], values=values)
        if problems:
            raise ChecksumError("samples are damaged that were to be written again", problems=problems, remedy=_REMEDY)

    def _compare(self, file: int, ids: IntArray, *, values: bool) -> list[Problem]:
        source = self._sources[file]
        fd = open_regular(source.path, follow_links=source.follow_links)
        try:
            shard = as_named(load_shard(fd, source.path), source, self._stored)
            if not shard.digests:
                return []
            first = int(self._ends[file]) - source.samples
            opened = OpenShard(reading(fd, source.path), source.path, shard, first)
            rows = ids - opened.first
            breaks = np.flatnonzero(np.diff(rows) > 1)
            lows, highs = rows[np.append(0, breaks + 1)], rows[np.append(breaks, -1)] + 1
            problems: list[Problem] = []
            for begin in dict.fromkeys(column.offsets_begin for column in shard.columns.values()):
                if begin is not None:
                    problems += self._blocks(file, opened, _offsets_at(opened, begin), (lows, highs + 1))
            if values and not problems:  # or it is not known where values are
                for name, column in shard.columns.items():
                    runs = _rows_of(opened, column.offsets_begin, (lows, highs))
                    problems += self._blocks(file, opened, shard.header.tensors[name], runs)
            return problems
        finally:
            close(fd)

    def _blocks(
        self, file: int, opened: OpenShard, entry: TensorEntry, rows: tuple[IntArray, IntArray]
    ) -> Iterator[Problem]:
        """Problems of the blocks of a tensor that contain runs of its rows."""
        nbytes = entry.end - entry.begin
        row_bytes = nbytes // max(entry.shape[0], 1)
        # Other checks judge the offsets; these are the blocks.
        lows, highs = (np.clip(edges, 0, entry.shape[0]) for edges in rows)
        some = highs > lows
        if not nbytes or not some.any():
            return
        first, after = lows[some] * row_bytes // BLOCK_BYTES, -(-highs[some] * row_bytes // BLOCK_BYTES)
        right = self._right.setdefault((file, entry.name), np.zeros(block_count(nbytes), np.bool_))
        asked = distinct(np.repeat(first, after - first) + within(after - first), len(right))
        for blocks in _consecutive(asked[~right[asked]]):
            begin = entry.begin + int(blocks[0]) * BLOCK_BYTES
            end = min(entry.begin + (int(blocks[-1]) + 1) * BLOCK_BYTES, entry.end)
            for offset, piece in opened.pieces(begin, end):
                yield from opened.damage(entry, offset, piece)
        right[asked] = True  # or an error is about to be raised


def _consecutive(numbers: IntArray) -> list[IntArray]:
    """Rising numbers, in runs of consecutive ones."""
    return np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if len(numbers) else []


def _rows_of(opened: OpenShard, begin: int | None, samples: tuple[IntArray, IntArray]) -> tuple[IntArray, IntArray]:
    """The rows of runs of samples, of a field whose offsets are at byte `begin`, if it is ragged."""
    if begin is None:
        return samples
    first = int(samples[0][0])
    offsets = np.empty(int(samples[1][-1]) + 1 - first, np.int64)
    opened.read(offsets.data.cast("B"), begin + 8 * first)
    return offsets[samples[0] - first], offsets[samples[1] - first]


def _offsets_at(opened: OpenShard, begin: int) -> TensorEntry:
    tensors = opened.shard.header.tensors.values()
    return next(entry for entry in tensors if entry.begin == begin and entry.name.startswith(OFFSETS_PREFIX))
