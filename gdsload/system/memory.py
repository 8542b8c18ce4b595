"""Memory of the host: mappings of files, and a pool of batch memory.

A batch's memory belongs to the holder of a tensor of it. When the last such tensor dies, the memory returns to the pool
it was leased from, already faulted in: fresh pages for each batch cost more than copying the batch does.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections import defaultdict, deque
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import BudgetError, ReadError
from gdsload.system.units import format_bytes

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_POPULATE_READ = 22  # Linux 5.14, include/uapi/asm-generic/mman-common.h
_HUGE_PAGE = 2 * 2**20
_SMALLEST_SLAB = 64 * 1024


def map_file(fd: int, nbytes: int, file: str) -> int:
    """Map a whole file read-only and return the address; the descriptor may be closed afterwards.

    The `mmap` module cannot be used: it keeps a duplicate of the descriptor, one for each shard.

    Raises:
        ReadError: if the file cannot be mapped.
    """
    address = _libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address is None or address == _MAP_FAILED:
        code = ctypes.get_errno()
        remedy = "Pass `mmap=False` to read it with preadv instead."
        raise ReadError(f"the file cannot be mapped: {os.strerror(code)}", file=file, remedy=remedy)
    return int(address)


def unmap(address: int, nbytes: int) -> None:
    """Unmap a range."""
    _libc.munmap(address, nbytes)


def populate(address: int, nbytes: int) -> int:
    """Read the pages of a mapped range into memory and map them in this process's page table.

    Returns 0, or the number of an error: EFAULT where touching one of the pages would end the process, because the file
    does not reach that far, or the disk or the file system fails; EINVAL where the kernel does not know the call
    (before Linux 5.14).
    """
    start = address & ~(mmap.PAGESIZE - 1)
    return ctypes.get_errno() if _libc.madvise(start, address + nbytes - start, _MADV_POPULATE_READ) else 0


def memory_at(address: int, nbytes: int) -> memoryview:
    """The host memory from an address on, to be written to."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def address_of(array: NDArray[Any]) -> int:
    """Address of an array's first element."""
    return int(array.__array_interface__["data"][0])


class Lease(np.ndarray[Any, Any]):
    """Batch memory, one byte an element. It returns to its pool when nothing refers to it any more."""


_Slab = Any  # memory with a length, and no array: see `BatchPool.lease`


class _Return(weakref.ref[Lease]):
    """A reference to a lease that returns its memory to the pool."""

    slab: _Slab


class BatchPool:
    """Leases memory for batches and keeps what is returned.

    When a lease dies, the callback of its weak reference is `deque.append`. That may happen in any thread at any
    moment, so no Python code must run then: it could wait for a lock that the thread holds, and Python would forget a
    KeyboardInterrupt that is raised in it. Returned memory is sorted in at the next lease.

    Args:
        keep_bytes: how much memory may be kept, or on lease and returned later; more than that is freed to the system,
            the oldest lease's first.
        pinned: whether an accelerator is to copy from it by itself. Torch keeps what is freed, for the next pinning.
    """

    def __init__(self, keep_bytes: int, *, pinned: bool = False) -> None:
        self.keep_bytes, self._pinned = keep_bytes, pinned
        self._free: defaultdict[int, list[_Slab]] = defaultdict(list)
        self._out: dict[int, _Return] = {}
        self._returned: deque[_Return] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def lease(self, nbytes: int) -> Lease:
        """Lease at least `nbytes` bytes, page-aligned and not initialized.

        Raises:
            BudgetError: if the system has no memory left.
        """
        size = _slab_bytes(nbytes)
        with self._lock:
            self._take_back()
            slab = self._free[size].pop() if self._free[size] else None
            if slab is None:
                self._make_room(size)
        if slab is None:
            try:
                slab = _new_slab(size, pinned=self._pinned)
            except BudgetError:
                with self._lock:  # or what is leased later would be counted as too much
                    self._bytes = max(self._bytes - size, 0)
                raise
        # Over the slab itself, not over an array: numpy lets views refer to the last array of their own class below
        # them, so that a plain view of a lease over a plain array would not keep the lease.
        lease = Lease(size, np.uint8, slab)
        way = _Return(lease, self._returned.append)
        way.slab = slab
        with self._lock:
            if 0 < self._bytes <= self.keep_bytes:
                self._out[id(way)] = way
            else:
                self._bytes = max(self._bytes - size, 0)
        return lease

    @property
    def kept_bytes(self) -> int:
        """Bytes of returned memory that the pool holds."""
        with self._lock:
            self._take_back()
            return sum(size * len(slabs) for size, slabs in self._free.items())

    def _take_back(self) -> None:
        """Sort in returned memory. The lock must be held."""
        while self._returned:
            way = self._returned.popleft()
            if self._out.pop(id(way), None) is not None:
                self._free[len(way.slab)].append(way.slab)

    def _make_room(self, size: int) -> None:
        """Count a new slab.

        Kept slabs of other sizes are freed for it: batches have changed size, and those would never be leased again.
        Then the oldest leases, which the user seems to keep, are no longer counted.
        """
        self._bytes += size
        for slabs in self._free.values():
            while slabs and self._bytes > self.keep_bytes:
                self._bytes -= len(slabs.pop())
        while self._out and self._bytes > self.keep_bytes:
            self._bytes -= len(self._out.pop(next(iter(self._out))).slab)

    def clear(self) -> None:
        """Free all returned memory to the system, and whatever is returned from now on, too."""
        with self._lock:
            self.keep_bytes = self._bytes = 0
            self._free.clear()
            self._out.clear()
            self._returned.clear()


def _slab_bytes(nbytes: int) -> int:
    """Round up to an eighth of a power of two, so that batches of about one size share slabs."""
    nbytes = max(nbytes, _SMALLEST_SLAB)
    step = max(1 << (nbytes.bit_length() - 4), mmap.PAGESIZE)
    return -(-nbytes // step) * step


def _new_slab(size: int, *, pinned: bool) -> _Slab:
    try:
        if pinned:
            import torch  # here, since what only maps and reads files, such as `gdsload verify`, needs none of it

            memory: Any = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True).numpy()
            return (ctypes.c_char * size).from_buffer(memory)
        # Private: after a fork, parent and child must not write into each other's batches.
        slab = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
        raise BudgetError(
            f"there is no memory for a batch, or a group of batches, of {format_bytes(size)}: {why}",
            remedy="Lower `batch_size` or `memory=gdsload.Memory(prefetch=...)`, or keep fewer batches.",
        ) from None
    if size >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages is only slower
            slab.madvise(mmap.MADV_HUGEPAGE)
    return slab
