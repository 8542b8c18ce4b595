"""Samples that are read together, where their rows are, and the slices of them that batches are made of."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from gdsload.backends.base import PendingRead
from gdsload.system.arrays import IntArray


@dataclass(slots=True)
class RowMap:
    """The addresses of one field of loaded samples: of each sample, or of runs of samples with consecutive ids.

    Of clips, which are made of several samples of the table, addresses have the shape ``[clips, offsets]``; or
    ``[clips]`` where each of them is in one place, as one row of so many times as many bytes.

    Attributes:
        addresses: where each sample's rows are; of runs, where the row of sample 0 would be: that of any sample of the
            run is id * row_bytes after.
        lengths: the rows of each sample, if the field is ragged.
        ends: of runs, the sample id after the last of each, in rising order; None: each sample has its address.
    """

    addresses: IntArray
    lengths: IntArray | None = None
    ends: IntArray | None = None

    @classmethod
    def of_runs(cls, addresses: IntArray, counts: IntArray, row_bytes: int, first: IntArray | None = None) -> RowMap:
        """Rows of one shape, which are in runs: where each begins, and how many they are.

        `first` is the id of the first sample of each run, to find rows by their ids; None: each sample has its address.
        """
        if first is not None:
            return cls(addresses - first * row_bytes, ends=first + counts)
        before = counts.cumsum() - counts
        found = (addresses - before * row_bytes).repeat(counts)
        found += np.arange(len(found)) * row_bytes
        return cls(found)


@dataclass(slots=True)
class LoadedRows:
    """Samples that are read together.

    Attributes:
        index: the user's index of each; none where the rows are found by id.
        pending: the read, and when its bytes have landed.
        remaining: how many samples have not been gathered yet.
        counted: whether its bytes have been counted, as some have been gathered.
    """

    fields: dict[str, RowMap]
    index: IntArray
    files: IntArray
    pending: PendingRead
    remaining: int
    counted: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def changeable(self) -> IntArray:
        """Those shards whose bytes may be other ones if their files are written to: to be checked after a gather."""
        return self.files if self.pending.files is None else self.pending.files

    @property
    def nbytes(self) -> int:
        """Arena memory that is held until the last sample is gathered."""
        return self.pending.nbytes if self.remaining else 0

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
            last = count > 0 and not self.remaining
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
        chosen: which of them, in order; where rows are found by id, only how many counts.
    """

    rows: LoadedRows
    chosen: slice | IntArray
    count: int


@dataclass(frozen=True, slots=True)
class Slices:
    """The samples of some steps, until they are gathered or dropped.

    Attributes:
        parts: slices of loaded rows, one of each; there are few, however many steps take from them in turn.
        order: for each sample, in the order in which they are delivered, its number among those of all parts; None if
            the parts have them in that order.
    """

    parts: list[RowSlice]
    order: IntArray | None = None

    def loaded(self) -> list[LoadedRows]:
        """The loaded rows that these are slices of, each once."""
        return list({id(part.rows): part.rows for part in self.parts}.values())

    def arranged(self, values: Sequence[IntArray]) -> IntArray:
        """The values of the parts' samples, in the order in which samples are delivered."""
        if not values:
            return np.zeros(0, np.int64)
        found = values[0] if len(values) == 1 else np.concatenate(values)
        return found if self.order is None else found[self.order]

    def landed(self) -> bool:
        """Return whether all their bytes have landed; never waits."""
        return all(part.rows.pending.completion.landed for part in self.parts)

    def wait(self) -> None:
        """Wait until all their bytes have landed."""
        for part in self.parts:
            part.rows.pending.completion.wait()

    def used(self) -> list[RowSlice]:
        """Note that all have been gathered; the parts that they were. Afterwards there are none."""
        parts = self.parts.copy()
        self.parts.clear()
        for part in parts:
            part.rows.used(part.count)
        return parts

    def drop(self) -> None:
        """Note that they are not wanted, after their reads have ended. Afterwards there are none."""
        parts = self.parts.copy()
        self.parts.clear()
        for part in parts:
            part.rows.drop(part.count)
