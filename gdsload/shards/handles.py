"""Handles of files, opened when they are wanted, shared by all their users, and few at a time.

They are numbers: descriptors, or those of a library. One call lends or takes back many of them, as reads are made many
at a time.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from types import TracebackType

import numpy as np

from gdsload.shards.status import NO_DESCRIPTORS
from gdsload.system.arrays import IntArray

_LEAST, _MOST, _SHARE = 64, 4096, 8
_SHARE_OF_LEFT = 4


def most_open() -> int:
    """The number of descriptors of one kind that a dataset keeps: an eighth of those that this process may have.

    At least 64, but no more than a quarter of those that are left. To open a shard again takes longer than a small
    read, and other code needs descriptors, too.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MOST
    wanted = min(max(allowed // _SHARE, _LEAST), _MOST)
    try:
        left = allowed - len(os.listdir("/proc/self/fd"))
    except OSError:
        return wanted
    return min(wanted, max(left // _SHARE_OF_LEFT, 1))


class HandleTable:
    """Handles of some files; its methods may be called from several threads.

    The least recently used ones that are free are closed; all that are free, if the process may have no more.

    Args:
        count: how many files.
        make: opens a file and returns its handle, any number of 64 bits. It must not ask this table for handles.
        end: closes a handle.
        most: how many are kept open; None: what `most_open` says. If more are in use at once, more are open.
    """

    def __init__(
        self, count: int, make: Callable[[int], int], end: Callable[[int], None], most: int | None = None
    ) -> None:
        self._make, self._end = make, end
        self.most = most_open() if most is None else most
        self._handles, self._there = np.zeros(count, np.int64), np.zeros(count, bool)
        self._users = np.zeros(count, np.int64)
        self._used = np.zeros(count, np.int64)  # when it was last lent, in calls
        self._calls = self._open = 0
        self._lock = threading.RLock()
        self._closed = False

    def lend(self, files: IntArray) -> IntArray:
        """The handles of these files, with one user more of each. If it fails, none has one more."""
        with self._lock:
            there = self._there[files]
            if not there.all():
                for file in files[~there].tolist():
                    self._ensure(file, files)
            np.add.at(self._users, files, 1)
            self._calls += 1
            self._used[files] = self._calls
            return self._handles[files]

    def give(self, files: IntArray) -> None:
        """Note that one user of each of these files has ended."""
        with self._lock:
            np.subtract.at(self._users, files, 1)
            self._trim()

    def lend_one(self, file: int) -> int:
        """As `lend`, of one file."""
        with self._lock:
            if not self._there[file]:
                self._ensure(file, None)
            self._users[file] += 1
            self._calls += 1
            self._used[file] = self._calls
            return int(self._handles[file])

    def give_one(self, file: int) -> None:
        """As `give`, of one file."""
        with self._lock:
            self._users[file] -= 1
            self._trim()

    def lent(self, file: int) -> Lent:
        """The handle of a file, for as long as a context lasts."""
        return Lent(self, file)

    def close(self) -> None:
        """Close all that are free; those in use are closed when they are given back. May be called twice."""
        with self._lock:
            self._closed = True
            self._trim()

    def _ensure(self, file: int, asked: IntArray | None) -> None:
        """Open a file; `asked` are all that the call asks for."""
        if not self._there[file]:  # a file may be asked for twice by one call
            try:
                handle = self._make(file)
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS or not self._close_idle(asked):
                    raise
                handle = self._make(file)
            self._handles[file], self._there[file] = handle, True
            self._open += 1

    def _close_idle(self, asked: IntArray | None) -> int:
        """Close all that are free and not asked for, and keep fewer from now on; returns how many were closed."""
        idle = self._there & (self._users == 0)
        if asked is not None:
            idle[asked] = False
        files = np.flatnonzero(idle).tolist()
        self._close(files)
        self.most = max(min(self.most, self._open + len(files) // 2), 1)
        return len(files)

    def _trim(self) -> None:
        keep = 0 if self._closed else self.most
        if self._open <= keep:
            return
        idle = np.flatnonzero(self._there & (self._users == 0))
        # An eighth more than must be, so that not each call has to look for the oldest.
        oldest = idle[np.argsort(self._used[idle])][: self._open - keep + keep // 8]
        self._close(oldest.tolist())

    def _close(self, files: list[int]) -> None:
        for file in files:
            handle = int(self._handles[file])
            self._there[file] = False
            self._open -= 1
            self._end(handle)


def lent_once(file: IntArray) -> tuple[IntArray, IntArray]:
    """The file of each run of reads of one file, and its number of reads.

    Handles are lent for runs, and repeated for reads: to look up and count each read's takes longer than the read.
    """
    edges = np.ones(len(file) + 1, bool)
    edges[1:-1] = file[1:] != file[:-1]
    edges[0] = len(file) > 0
    first: IntArray = edges.nonzero()[0]
    return file[first[:-1]], first[1:] - first[:-1]


class Lent:
    """A handle, for as long as the context lasts. No generator: this is done for each read."""

    __slots__ = ("_file", "_table")

    def __init__(self, table: HandleTable, file: int) -> None:
        self._table, self._file = table, file

    def __enter__(self) -> int:
        return self._table.lend_one(self._file)

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._table.give_one(self._file)
