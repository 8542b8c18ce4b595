"""A look whether bytes are in the page cache, by reads that do not wait.

For a reader that neither owns a file nor may write it, as is normal with shared datasets, mincore reports all pages as
resident, and cachestat fails. A read with RWF_NOWAIT works for all readers, one page at a time. It does not wait, but
starts to fetch the page (seen on Linux 6.18), so a second look at the same page says that it is there. So pages are
drawn again for each look, and many looks do not make a cold shard look resident.

A tmpfs has no such reads (Linux 6.18), and no drive either: its files are resident.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress

from gdsload.shards.files import Files
from gdsload.shards.identity import ShardSource
from gdsload.shards.reads import Extents
from gdsload.shards.status import close

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_IN_MEMORY = (0x01021994, 0x858458F6)  # TMPFS_MAGIC and RAMFS_MAGIC of include/uapi/linux/magic.h
_STATFS_BYTES = 256  # struct statfs is shorter on every architecture; its first word is the file system's number
_libc = ctypes.CDLL(None)
_answers: dict[int, bool] = {}
_PROBES_OF_A_READ = 8
PROBES_OF_A_BLOCK = 3
_PROBES_OF_A_SHARD = 32
_random_below = random.Random().randrange  # its own: what users draw after `random.seed` must not depend on us


def is_resident(fd: int, offset: int) -> bool:
    """Return whether the page at an offset is in the page cache; if that is not known, False for a file on a drive."""
    if _NOWAIT is None:
        return False
    try:
        os.preadv(fd, [bytearray(1)], offset, _NOWAIT)
    except OSError as error:
        # Not there, or it is not known. A real error is raised when the bytes are read.
        return error.errno == errno.EOPNOTSUPP and _lives_in_memory(fd)
    return True


def _lives_in_memory(fd: int) -> bool:
    """Return whether a file's file system has its files in memory alone; each is asked once, as a server may answer."""
    try:
        device = os.fstat(fd).st_dev
    except OSError:
        return False
    if device not in _answers:
        found = (ctypes.c_long * (_STATFS_BYTES // ctypes.sizeof(ctypes.c_long)))()
        _answers[device] = _libc.fstatfs(fd, found) == 0 and found[0] & 0xFFFFFFFF in _IN_MEMORY
    return _answers[device]


def bytes_in_memory(sources: Iterable[ShardSource]) -> int:
    """Bytes of the shards whose file system has its files in memory alone: keeping them takes no more of it.

    All shards of a file system, or of a folder where that is not known yet, are taken for what the first one is.
    """
    total, folders = 0, dict[str | int, bool]()
    for source in sources:
        folder = source.identity.device if source.identity else os.path.dirname(source.path)
        with suppress(OSError):  # a missing one takes nothing, and the error is raised when it is opened
            if folder not in folders:
                fd = os.open(source.path, os.O_PATH | os.O_CLOEXEC)
                try:
                    folders[folder] = _lives_in_memory(fd)
                finally:
                    close(fd)
            if folders[folder]:
                total += source.length()
    return total


def looks_resident(files: Files, wanted: Extents, probes: int = _PROBES_OF_A_READ) -> bool:
    """Return whether a few pages of open files' extents, drawn again each time, are in the page cache.

    All bytes are drawn with the same probability, so that short extents count less than long ones.
    """
    ends = wanted.nbytes.cumsum().data

    def place_of(byte: int) -> tuple[int, int]:
        index = bisect_right(ends, byte)
        return int(wanted.file[index]), int(wanted.offset[index] + wanted.nbytes[index]) - (ends[index] - byte)

    nbytes = ends[-1] if len(ends) else 0
    return all(files.is_resident(*place_of(_random_below(nbytes))) for _ in range(probes if nbytes else 0))


def file_is_resident(files: Files, file: int) -> bool:
    """Return whether pages all over an open file, drawn again each time, are in the page cache."""
    return looks_resident(files, files.whole(file), _PROBES_OF_A_SHARD)
