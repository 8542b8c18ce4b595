"""Reads that are prepared before they are made: the threads that make them compute nothing.

numpy releases the interpreter lock for any array of more than a few hundred elements. Among a dozen threads it takes
longer to get it back than to compute what was wanted. So one thread works out a whole group of reads.
"""

from __future__ import annotations

from operator import lt
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import ReadError
from gdsload.shards.handles import HandleTable, lent_once
from gdsload.shards.reads import PAGE_BYTES, Extents
from gdsload.shards.status import NO_DESCRIPTORS
from gdsload.system.arrays import IntArray, unique
from gdsload.system.memory import memory_at

if TYPE_CHECKING:
    from gdsload.shards.local_files import LocalFiles

_FEW = 4
"""Up to so many reads are a call each: preparing one call for all takes as long as a few calls."""


class PreparedReads:
    """Reads of open local files into memory of the host; see `Files.reads` and `ReadBatch`."""

    def __init__(self, files: LocalFiles, extents: Extents, direct: NDArray[np.bool_] | None = None) -> None:
        self._files, self.extents = files, extents
        runs = lent_once(extents.file)
        self._direct, self._asked = np.zeros(len(extents), bool), extents.nbytes
        if direct is not None and direct.any():
            self._direct = files.allow_direct(runs[0]).repeat(runs[1]) & direct
        some, every = bool(self._direct.any()), bool(self._direct.all())
        if some:
            pages = extents.nbytes + (PAGE_BYTES - 1) & -PAGE_BYTES
            self._asked = pages if every else np.where(self._direct, pages, extents.nbytes)
        self._ends = np.zeros(len(extents) + 1, np.int64)
        extents.nbytes.cumsum(out=self._ends[1:])
        self._mixed = some and not every
        self._lent: list[tuple[HandleTable, IntArray]] = []
        self._fds: IntArray | None = None
        """The descriptor of each read; None if they are too many at once."""
        table = files.around if some else files.through
        try:
            if not self._mixed:
                self._fds = self._lend(table, *runs)
            elif (around := self._lend(table, *lent_once(extents.file[self._direct]))) is not None:
                through = self._lend(files.through, *lent_once(extents.file[~self._direct]))
                if through is not None:
                    self._fds = np.empty(len(extents), np.int64)
                    self._fds[self._direct], self._fds[~self._direct] = around, through
        except BaseException:
            self.close()
            raise

    def _lend(self, table: HandleTable, lent: IntArray, counts: IntArray) -> IntArray | None:
        """The descriptors of reads of these files, so many of each; None, and none is lent, if they are too many."""
        try:
            if len(lent) <= table.most or len(unique(lent)) <= table.most or len(self.extents) == 1:
                fds = table.lend(lent)
                self._lent.append((table, lent))
                return fds.repeat(counts)
        except ReadError as error:
            if error.errno not in NO_DESCRIPTORS or len(self.extents) == 1:
                raise
        self.close()  # half as many at once, until there are enough
        return None

    def nbytes(self, low: int, high: int) -> int:
        return int(self._ends[high] - self._ends[low])

    def read(self, low: int, high: int, addresses: IntArray) -> int:
        """See `ReadBatch.read`: many are made by one call of the system."""
        part = slice(low, high)
        if self._fds is None:
            middle = (low + high) // 2
            if high - low == len(self.extents):  # halves of all of them have descriptors for fewer files
                halves = ((low, middle), (middle, high))
                return sum(self._apart(first, stop, addresses[first - low : stop - low]) for first, stop in halves)
            return self._apart(low, high, addresses)
        if high - low <= _FEW:
            few = [self._one(index, address) for index, address in enumerate(addresses.tolist(), low)]
            if any(map(lt, few, self.extents.nbytes[part].tolist())):
                return self._rest(low, high, np.array(few, np.int64), addresses)
        else:
            done = self._files.reader.read(self._fds[part], self.extents.offset[part], self._asked[part], addresses)
            if (done < self.extents.nbytes[part]).any():
                return self._rest(low, high, done, addresses)
        if self._mixed:
            return int(self.extents.nbytes[part][self._direct[part]].sum())
        return self.nbytes(low, high) if self._direct[low] else 0

    def _apart(self, low: int, high: int, addresses: IntArray) -> int:
        """As `read`, with their own descriptors."""
        reads = PreparedReads(self._files, self.extents[low:high], self._direct[low:high])
        try:
            return reads.read(0, high - low, addresses)
        finally:
            reads.close()

    def _one(self, index: int, address: int) -> int:
        fds: IntArray = self._fds  # type: ignore[assignment]
        into = memory_at(address, int(self._asked[index]))
        try:
            return self._files.reader.read_one(int(fds[index]), int(self.extents.offset[index]), into)
        except OSError:
            return 0  # `read_into` raises the reason

    def _rest(self, low: int, high: int, done: IntArray, addresses: IntArray) -> int:
        """Read what is left of reads that ended early; returns how many bytes had been read with O_DIRECT.

        A read around the page cache may end early, where the cache holds a part, or where the device wants another
        alignment than ours. It could go on only from a page's begin. The error of a read that failed is raised here.
        """
        reads = self.extents[low:high]
        done = np.minimum(np.maximum(done, 0), reads.nbytes)
        for index in np.flatnonzero(done < reads.nbytes).tolist():
            skip, nbytes = int(done[index]), int(reads.nbytes[index])
            into = memory_at(int(addresses[index]) + skip, nbytes - skip)
            self._files.read_into(int(reads.file[index]), int(reads.offset[index]) + skip, into)
        return int(done[self._direct[low:high]].sum())

    def close(self) -> None:
        """See `ReadBatch.close`: the descriptors are given back."""
        while self._lent:
            table, lent = self._lent.pop()
            table.give(lent)
