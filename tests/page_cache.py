"""Functions for tests of the page cache."""

import ctypes
import errno
import mmap
import os
import time
from contextlib import suppress

import numpy as np
import pytest

from gdsload.shards import guard
from gdsload.system import memory
from gdsload.system.bulk_reads import BulkReads

LIBC = ctypes.CDLL(None, use_errno=True)


def in_cache(path):
    """For each page of a file whether it is in the page cache, as mincore says."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        address = memory.map_file(file.fileno(), size, str(path))
    found = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    code = LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), found)
    memory.unmap(address, size)
    assert code == 0
    return np.frombuffer(found, np.uint8) & 1 == 1


def chill(path):
    """Take a file out of the page cache, all of it."""
    for _ in range(100):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if not in_cache(path).any():
            return
        time.sleep(0.01)  # pages that were just used may be busy
    pytest.skip("this file system keeps its pages")


@pytest.fixture(scope="session")
def bring_in():
    """Reads a file into the page cache; skips where the file system cannot say that it is there."""

    def read(path):
        path.read_bytes()
        with path.open("rb") as file:
            try:
                os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:
                    pytest.skip("this file system does not know reads that must not wait")
                raise

    return read


def open_paths(folder="/"):
    """The paths in a folder that this process has descriptors of, one for each.

    Other descriptors of the process are no measure: what earlier tests have dropped is closed in the background.
    """
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself, and one that another thread has closed meanwhile
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [path for path in found if path.startswith(str(folder))]


def fail_reads(monkeypatch):
    """Have every read fail, however it is made, as from a broken disk."""

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", fail)
    monkeypatch.setattr(BulkReads, "read", lambda _self, fds, *_: np.full(len(fds), -errno.EIO))


def unreadable(monkeypatch):
    """Have no page be there, neither for a mapping nor for a read."""
    monkeypatch.setattr(guard, "populate", lambda *_: errno.EFAULT)
    fail_reads(monkeypatch)
