"""Many reads by one call of the system.

Linux's asynchronous I/O (io_submit(2)) takes any number of reads at once, and numpy fills in what it wants to know of
them: Python does nothing for each of them. With O_DIRECT all of them are under way together; without, the calling
thread copies them out of the page cache one after the other, without the interpreter lock.

Not io_uring, which does the same: containers forbid it as a rule.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections import deque
from typing import NamedTuple

import numpy as np

from gdsload.system.arrays import IntArray
from gdsload.system.memory import address_of

_DEPTH = 256
"""Reads that are under way at once in one call: eight threads keep any drive busy with them. A machine allows 65 536 in
all (/proc/sys/fs/aio-max-nr), unless it is configured otherwise."""


class _Numbers(NamedTuple):
    setup: int
    destroy: int
    submit: int
    getevents: int


_NUMBERS = {"x86_64": _Numbers(206, 207, 209, 208), "aarch64": _Numbers(0, 1, 2, 4)}.get(platform.machine())
"""Numbers of the calls: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux."""

# include/uapi/linux/aio_abi.h of Linux, on little-endian machines.
_IOCB = np.dtype(
    [("data", "u8"), ("key", "u4"), ("rw_flags", "u4"), ("opcode", "u2"), ("priority", "i2"), ("fd", "u4"),
     ("address", "u8"), ("nbytes", "u8"), ("offset", "i8"), ("reserved", "u8"), ("flags", "u4"), ("event_fd", "u4")]
)  # fmt: skip
_EVENT = np.dtype([("data", "u8"), ("iocb", "u8"), ("result", "i8"), ("result2", "i8")])
_PREAD = 0

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.pread.restype = ctypes.c_ssize_t
_libc.pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64]


class _Wanted(NamedTuple):
    """Reads; arrays of one length."""

    fds: IntArray
    offsets: IntArray
    nbytes: IntArray
    addresses: IntArray


class BulkReads:
    """Reads parts of files into memory, many by one call. Its methods may be called from several threads at once."""

    def __init__(self) -> None:
        self._idle: deque[Context] = deque()
        self._one_by_one = _NUMBERS is None

    def read(self, fds: IntArray, offsets: IntArray, nbytes: IntArray, addresses: IntArray) -> IntArray:
        """Make reads of open descriptors and wait for all of them; arrays of one length.

        `offsets` are the bytes in the files from which reads are made. `addresses` are in memory of this process which
        is not freed meanwhile. Returns for each read the number of bytes that were read, which are fewer where a file
        ends before, or the number of an error as a negative number.
        """
        wanted = _Wanted(fds, offsets, nbytes, addresses)
        context = self._context()
        if context is None:
            return np.array([_pread(wanted, index) for index in range(len(fds))], np.int64)
        try:
            return context.read(wanted)
        finally:
            self._idle.append(context)

    def read_one(self, fd: int, offset: int, into: memoryview) -> int:
        """Make one read, for which there is nothing to prepare; returns the number of bytes that were read.

        Raises:
            OSError: if it fails.
        """
        return os.preadv(fd, [into], offset)

    def _context(self) -> Context | None:
        """A context that no thread is using; None where there can be none."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        if not self._one_by_one:
            try:
                return Context(_NUMBERS)  # type: ignore[arg-type]
            except OSError:
                self._one_by_one = True  # forbidden, or other programs have taken all that there are
        return None

    def close(self) -> None:
        """Give the contexts back; may be called twice. No thread may call `read` any more."""
        while self._idle:
            self._idle.pop().close()


class Context:
    """A context of the kernel's for reads that are under way, of one thread at a time.

    Raises:
        OSError: if there can be none.
    """

    def __init__(self, numbers: _Numbers) -> None:
        self._numbers = numbers
        self._id = ctypes.c_ulong(0)
        self._pid = os.getpid()
        self._iocbs, self._events = np.zeros(_DEPTH, _IOCB), np.zeros(_DEPTH, _EVENT)
        self._iocbs["opcode"] = _PREAD
        self._pointers = address_of(self._iocbs) + np.arange(_DEPTH, dtype=np.uint64) * np.uint64(_IOCB.itemsize)
        if _libc.syscall(numbers.setup, ctypes.c_uint(_DEPTH), ctypes.byref(self._id)):
            raise OSError(ctypes.get_errno(), "io_setup")

    def read(self, wanted: _Wanted) -> IntArray:
        """See `BulkReads.read`."""
        results = np.zeros(len(wanted.fds), np.int64)
        begun = ended = 0
        try:
            while ended < len(results):
                stop = min(ended + _DEPTH, len(results))
                if begun < stop and (count := self._submit(wanted, begun, stop)):
                    begun += count
                elif begun == ended:  # the kernel does not take this one
                    results[begun] = _pread(wanted, begun)
                    begun, ended = begun + 1, ended + 1
                if begun > ended:
                    ended += self._collect(results, begun - ended)
        finally:
            while begun > ended:  # memory must not be written to after this
                ended += self._collect(results, begun - ended)
        return results

    def _submit(self, wanted: _Wanted, low: int, high: int) -> int:
        """Begin reads from `low` on; returns how many were begun."""
        chosen = self._iocbs[: high - low]
        chosen["data"] = np.arange(low, high)
        for name, values in zip(("fd", "offset", "nbytes", "address"), wanted, strict=True):
            chosen[name] = values[low:high]
        return max(int(self._call(self._numbers.submit, high - low, address_of(self._pointers))), 0)

    def _collect(self, results: IntArray, under_way: int) -> int:
        """Wait for half of what is under way, and note its results; returns how many reads have ended."""
        least = (under_way + 1) // 2
        count = self._call(self._numbers.getevents, least, under_way, address_of(self._events), 0)
        if count < 0:
            if ctypes.get_errno() == errno.EINTR:
                return 0
            raise OSError(ctypes.get_errno(), "io_getevents")
        events = self._events[:count]
        results[events["data"].astype(np.int64)] = events["result"]
        return count

    def _call(self, number: int, *arguments: int) -> int:
        return int(_libc.syscall(number, self._id, *map(ctypes.c_long, arguments)))

    def close(self) -> None:
        """Give it back."""
        if self._pid == os.getpid():  # a forked process has none of its parent's
            _libc.syscall(self._numbers.destroy, self._id)


def _pread(wanted: _Wanted, index: int) -> int:
    fd, offset, nbytes, address = (int(column[index]) for column in wanted)
    while (count := int(_libc.pread(fd, address, nbytes, offset))) < 0:
        if ctypes.get_errno() != errno.EINTR:
            return -ctypes.get_errno()
    return count
