"""Are these bytes in the page cache? Asked by reads that must not wait.

mincore tells everything is there to a reader who neither owns the file nor may write it, and cachestat refuses such a
reader; shared read-only datasets are the normal case. A read with RWF_NOWAIT answers everybody, one page at a time.
"""

from __future__ import annotations

import os

import numpy as np

from gdsload.backends.files import ShardFiles

__all__ = ["is_resident", "looks_resident", "shard_is_resident"]

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_PROBES_OF_A_SHARD = 32


def is_resident(fd: int, offset: int) -> bool:
    """Whether the page at an offset is in the page cache; False where the kernel or the file system cannot say."""
    if _NOWAIT is None:
        return False
    try:
        os.preadv(fd, [bytearray(1)], offset, _NOWAIT)
    except OSError:
        # Not there, or it cannot be told. What is really wrong comes up when the bytes are read.
        return False
    return True


def looks_resident(files: ShardFiles, file: int, offset: int, nbytes: int) -> bool:
    """Whether begin, middle and end of a run of bytes are in the page cache."""
    last = offset + max(nbytes, 1) - 1
    with files.descriptor(file) as fd:
        return all(is_resident(fd, at) for at in {offset, (offset + last) // 2, last})


def shard_is_resident(files: ShardFiles, file: int) -> bool:
    """Whether pages all over an open shard are in the page cache."""
    with files.descriptor(file) as fd:
        places = np.linspace(0, max(files.length(file) - 1, 0), _PROBES_OF_A_SHARD, dtype=np.int64)
        return all(is_resident(fd, int(at)) for at in places)
