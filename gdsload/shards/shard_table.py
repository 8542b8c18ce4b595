"""The table between positions and extents: the bytes, and their files, of each sample.

It knows the meaning of the bytes of shards; the files do not.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import FormatError, Problem
from gdsload.shards.files import Files, OpenFiles
from gdsload.shards.format.stored import StoredSchema
from gdsload.shards.gather_host import gather_pieces, take_rows
from gdsload.shards.identity import ShardSource
from gdsload.shards.local_files import LocalFiles
from gdsload.shards.opening import as_named, read_header
from gdsload.shards.reads import Extents, distinct, within
from gdsload.system.arrays import IntArray
from gdsload.system.memory import address_of

_RANGES_BITS = 14
"""Ranges of ids, as a power of two: few enough for a processor's cache."""
_RUN_BYTES = 4 * 2**20
"""Bytes of consecutive samples that make one extent: so many that few extents are to be planned."""
_MOST_LOOKS = 64
"""Shards for which it is checked, after a group of samples, whether all of their offsets may be touched."""


@dataclass(frozen=True, slots=True)
class Located:
    """The places of samples; arrays of one length.

    Attributes:
        file: index of each sample's shard.
        row: number of the sample in its shard.
    """

    file: IntArray
    row: IntArray


class ShardTable:
    """The rows of some shards. Shards are opened on first use: the header is read and compared with the index.

    It knows stored columns by their names, and not the fields in a packed column.

    Args:
        files: the shards' bytes.
        stored: what each must hold.
        names: what the first sample of each shard is called in errors, where other shards are left out; None for its
            number among those of all shards.
    """

    def __init__(self, files: Files, stored: StoredSchema, names: IntArray | None = None) -> None:
        self.files, self.stored, self.columns = files, stored, stored.columns
        count = len(files.sources)
        self.begin = {name: np.zeros(count, np.int64) for name in self.columns}
        """Byte offset of each column in each open shard."""
        self.rows = {name: np.zeros(count, np.int64) for name in self.columns}
        """Number of rows of each column in each open shard."""
        self.opened = np.zeros(count, bool)
        self._unopened = count
        self._offsets = {name: np.zeros(count, np.int64) for name, field in self.columns.items() if field.ragged}
        """Host address of the int64 row offsets of each ragged field in each open shard."""
        self._sure = {name: np.zeros(count, bool) for name in self._offsets if files.mapped}
        """For each shard: True if all of them may be touched; no entry where that is so in all shards."""
        self._held: dict[tuple[str, int], IntArray] = {}
        self._lock = threading.RLock()
        counts = np.array([max(source.samples, 0) for source in files.sources], np.int64)
        self.ends = np.cumsum(counts)
        self.starts = self.ends - counts
        self._last = counts - 1  # the last row of each shard
        self._names = self.starts if names is None else names
        self.samples = int(self.ends[-1]) if len(counts) else 0
        self._file_of = _FileOf(self.ends)

    @classmethod
    def of(
        cls, sources: Sequence[ShardSource], stored: StoredSchema, *, mapped: bool, open_files: OpenFiles = LocalFiles
    ) -> ShardTable:
        """The table of a dataset's shards, over files that `open_files` makes of them."""
        return cls(open_files(sources, mapped=mapped), stored)

    def ensure_open(self, files: IntArray) -> None:
        """Open those of these shards that are not open yet.

        Raises:
            FormatError: if one is damaged or not the shard that the index describes.
            ReadError: if one cannot be opened.
            LoaderClosedError: after the files were closed.
        """
        if not self._unopened or self.opened[files].all():
            self.files.refuse_closed()
            return
        self.files.ensure_open(files)
        for file in distinct(files, len(self.opened)).tolist():
            with self._lock:
                if not self.opened[file]:
                    self._open(file)

    def _open(self, file: int) -> None:
        source, read = self.files.sources[file], partial(self.files.read_into, file)
        shard = as_named(read_header(read, self.files.length(file), source.path), source, self.stored)
        touched = []
        for name, column in shard.columns.items():
            self.begin[name][file], self.rows[name][file] = column.begin, column.rows
            touched.append((column.begin, column.begin + column.rows * self.columns[name].row_bytes))
            if (begin := column.offsets_begin) is not None:
                touched.append((begin, begin + 8 * (shard.samples + 1)))
                self._offsets[name][file] = self._offsets_at(name, file, begin, shard.samples)
        if self.files.mapped:
            self.files.only(file, touched)
        self.opened[file] = True
        self._unopened -= 1

    def _offsets_at(self, name: str, file: int, begin: int, samples: int) -> int:
        if self.files.mapped:
            return int(self.files.base[file]) + begin
        offsets = self._held[name, file] = np.empty(samples + 1, np.int64)
        self.files.read_into(file, begin, offsets.data.cast("B"))
        return address_of(offsets)

    def span(self, file: int, names: Sequence[str]) -> tuple[int, int]:
        """The span of some columns in a shard: the first byte of them all, and the byte after the last.

        Raises:
            GdsloadError: see `ensure_open`.
        """
        self.ensure_open(np.array([file]))
        begins = [int(self.begin[name][file]) for name in names]
        ends = [int(self.begin[name][file] + self.rows[name][file] * self.columns[name].row_bytes) for name in names]
        return (min(begins), max(ends)) if begins else (0, 0)

    def locate(self, ids: IntArray) -> Located:
        """Find samples, and open their shards.

        Args:
            ids: sample ids, each from 0 to `samples` - 1, in any order.

        Raises:
            FormatError: if a shard is damaged.
            ReadError: if one cannot be opened.
        """
        file = self._file_of(ids)
        self.ensure_open(file)
        return Located(file, ids - self.starts[file])

    def extents(self, name: str, found: Located) -> tuple[Extents, IntArray | None]:
        """The bytes of one column of samples, and for a ragged one how many rows each sample has.

        Raises:
            FormatError: if a shard's offsets are damaged.
        """
        field = self.columns[name]
        begin = self.begin[name][found.file]
        if not field.ragged:
            nbytes = np.full(len(found.row), field.row_bytes, np.int64)
            return Extents(found.file, begin + found.row * field.row_bytes, nbytes), None
        first, lengths = self._rows(name, found)
        return Extents(found.file, begin + first * field.row_bytes, lengths * field.row_bytes), lengths

    def runs(self, name: str, bounds: IntArray) -> tuple[Extents, IntArray]:
        """The bytes of a column of one shape of consecutive samples, those of many samples in one extent.

        Args:
            name: the column; not a ragged one.
            bounds: for each run the first sample id, and the one after the last; shape ``[runs, 2]``.

        Returns:
            Extents of one sample or 4 MiB at the most, and how many samples each has.

        Raises:
            FormatError: if a shard is damaged.
            ReadError: if one cannot be opened.
        """
        row_bytes = self.columns[name].row_bytes
        most = max(_RUN_BYTES // max(row_bytes, 1), 1)
        low, high = np.searchsorted(self.ends, bounds - [0, 1], side="right").T
        shards = high - low + 1
        file = np.repeat(low, shards) + within(shards)
        first = np.maximum(np.repeat(bounds[:, 0], shards), self.starts[file])
        length = np.minimum(np.repeat(bounds[:, 1], shards), self.ends[file]) - first
        parts = -(-length // most)
        ahead = within(parts) * most
        counts = np.minimum(np.repeat(length, parts) - ahead, most)
        found = Located(np.repeat(file, parts), np.repeat(first - self.starts[file], parts) + ahead)
        self.ensure_open(found.file)
        offset = self.begin[name][found.file] + found.row * row_bytes
        return Extents(found.file, offset, counts * row_bytes), counts

    def first_ids(self, name: str, extents: Extents) -> IntArray:
        """The sample that each extent of a column begins with, of one whose rows are of one shape and have bytes.

        Args:
            name: the column.
            extents: as `runs` makes them.
        """
        row = (extents.offset - self.begin[name][extents.file]) // max(self.columns[name].row_bytes, 1)
        row += self.starts[extents.file]
        return row

    def lengths(self, name: str) -> IntArray:
        """Rows of each sample of a ragged column, shape ``[samples]``: of all samples, from the shards' offsets alone.

        Raises:
            FormatError: if a shard or its offsets are damaged.
            ReadError: if a shard cannot be read.
        """
        self.ensure_open(np.arange(len(self.starts)))
        found = np.empty(self.samples, np.int64)
        for file, (start, end) in enumerate(zip(self.starts.tolist(), self.ends.tolist(), strict=True)):
            ends = self._all_offsets(name, file, end - start + 1)
            lengths = np.subtract(ends[1:], ends[:-1], out=found[start:end])
            if ends[0] or ends[-1] != self.rows[name][file] or lengths.min(initial=0) < 0:
                every = np.arange(end - start)
                self._rows(name, Located(np.full(len(every), file), every))  # which says what is wrong
        return found

    def _all_offsets(self, name: str, file: int, count: int) -> IntArray:
        at = int(self._offsets[name][file])
        if self.files.mapped:
            offset = np.array([at - int(self.files.base[file])])
            self.files.ensure(Extents(np.array([file]), offset, np.array([8 * count])))
        offsets = np.empty(count, np.int64)
        gather_pieces(np.array([at]), np.array([count]), 8, address_of(offsets))
        return offsets

    def _rows(self, name: str, found: Located) -> tuple[IntArray, IntArray]:
        """First row and number of rows of each sample, from the shards' offsets."""
        first, last = self._bounds(name, found)
        rows = self.rows[name][found.file]
        wrong = (first < 0) | (last < first) | (last > rows)
        wrong |= (found.row == 0) & (first != 0)
        wrong |= (found.row == self._last[found.file]) & (last != rows)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            path = self.files.sources[int(found.file[at])].path
            sample = int(self._names[found.file[at]] + found.row[at])
            raise FormatError(
                "the offsets of a ragged field are damaged",
                file=path,
                problems=[Problem(f"offsets {first[at]} to {last[at]}", path, None, name, (sample, sample + 1))],
                remedy="Run ShardDataset.verify() and restore the shard, or write the dataset again.",
            )
        return first, last - first

    def _bounds(self, name: str, found: Located) -> tuple[IntArray, IntArray]:
        """Of each sample its first row in its shard, and the row after its last."""
        at = self._offsets[name][found.file] + found.row * 8
        if (sure := self._sure.get(name)) is not None:
            self._ensure_offsets(name, sure, found.file, at)
        bounds = np.empty((2, len(at)), np.int64)
        for column in bounds if len(at) else ():  # a column after the other: words are taken faster than pairs of them
            take_rows(at, 8, address_of(column))
            at += 8
        return bounds[0], bounds[1]

    def _ensure_offsets(self, name: str, sure: NDArray[np.bool_], files: IntArray, at: IntArray) -> None:
        """Make sure that offsets at these addresses may be touched.

        Shards whose offsets may all be touched are not checked: for each sample that takes as long as its lookup.
        """
        base, unsure = self.files.base, ~sure[files]
        if not unsure.any():
            return
        self.files.ensure(Extents(files, at - base[files], np.full(len(at), 16)))
        some = distinct(files[unsure], len(sure))[:_MOST_LOOKS]
        missing = self.files.missing(Extents(some, self._offsets[name][some] - base[some], 8 * (self._last[some] + 2)))
        sure[some] = True if missing is None else ~np.isin(some, missing.file)
        if sure.all():
            self._sure.pop(name, None)


class _FileOf:
    """Finds the shards of samples: in a table of ranges of ids, if no range has samples of more than two shards.

    To search among the ends of shards takes five times as long.

    Args:
        ends: of the shards, in samples.
    """

    def __init__(self, ends: IntArray) -> None:
        self._ends, self._shift = ends, 0
        self._first: IntArray | None = None
        if len(ends) and (samples := int(ends[-1])):
            self._shift = max(samples.bit_length() - _RANGES_BITS, 0)
            edges = np.minimum(np.arange(((samples - 1) >> self._shift) + 2) << self._shift, samples - 1)
            first = np.searchsorted(ends, edges, side="right")
            if (np.diff(first) <= 1).all():
                self._first = first[:-1]

    def __call__(self, ids: IntArray) -> IntArray:
        """The shard of each sample."""
        if self._first is None:
            return np.searchsorted(self._ends, ids, side="right")
        file: IntArray = self._first[ids >> self._shift]
        file += ids >= self._ends[file]
        return file
