"""Many short pieces of this process's memory, one after the other in another place, by a call for a thousand of them.

A copy of each by memmove gives the interpreter lock away and takes it back, and threads that copy pieces of some
kilobytes spend most of their time waiting for each other there. Linux's process_vm_readv (process_vm_readv(2)), asked
for this very process, takes a list of pieces, and needs the lock for none of them. Where it cannot read a piece, as in
memory that a driver has mapped, it copies what comes before and says so. Memory that is shared with a forked process
until one of them writes is copied for this one when it is read so.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from gdsload.system.arrays import IntArray
from gdsload.system.memory import address_of

_MOST_PIECES = 1024
"""IOV_MAX of Linux."""


@lru_cache(maxsize=1)
def usable() -> bool:
    """Return whether this system has the call, and no sandbox forbids it: tried once."""
    source, target = np.ones(1, np.uint8), np.zeros(1, np.uint8)
    return _copied(np.array([[address_of(source), 1]]), address_of(target), 1) and bool(target[0])


def concatenate(addresses: IntArray, nbytes: IntArray, out: int) -> bool:
    """Copy pieces, one after the other, to `out`. Only where it is `usable`.

    `addresses` has the shape ``[pieces]``. `out` is the address of memory for all of them that is nobody else's, and
    that no piece is in. Returns whether all are copied; if not, some may be.
    """
    pieces = np.empty((len(addresses), 2), np.int64)
    pieces[:, 0], pieces[:, 1] = addresses, nbytes
    for low in range(0, len(pieces), _MOST_PIECES):
        some = pieces[low : low + _MOST_PIECES]
        total = int(some[:, 1].sum())
        if not _copied(some, out, total):
            return False
        out += total
    return True


def _copied(pieces: IntArray, out: int, total: int) -> bool:
    call, target = _vector_copy(), np.array([out, total])
    if call is None:
        return False
    # By this thread's number: that of the process names its first thread, which may have ended.
    found = call(threading.get_native_id(), address_of(target), 1, address_of(pieces), len(pieces), 0)
    return bool(found == total)


@lru_cache(maxsize=1)
def _vector_copy() -> Callable[..., int] | None:
    """C's process_vm_readv, if there is one; without the interpreter lock."""
    found = getattr(ctypes.CDLL(None), "process_vm_readv", None)
    if found is not None:
        address, count = ctypes.c_size_t, ctypes.c_ulong
        found.argtypes = [ctypes.c_int, address, count, address, count, count]
        found.restype = ctypes.c_ssize_t
    return found
