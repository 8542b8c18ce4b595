"""Are these bytes in the page cache? Asked by reads that must not wait.

mincore tells everything is there to a reader who neither owns the file nor may write it, and cachestat refuses such a
reader; shared read-only datasets are the normal case. A read with RWF_NOWAIT answers everybody, one page at a time.

It does not wait, but it has the page fetched (seen on Linux 6.18): at a place that was asked for before, the answer is
yes for ever. So places are drawn anew each time, and asking again and again does not make a cold shard look resident.
"""

from __future__ import annotations

import os
import random

from gdsload.backends.files import ShardFiles

__all__ = ["is_resident", "looks_resident", "shard_is_resident"]

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_PROBES_OF_A_RUN = 3
_PROBES_OF_A_SHARD = 32
_random = random.Random()  # its own: what users draw after `random.seed` must not depend on us


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
    """Whether a few pages of a run of bytes, drawn anew each time, are in the page cache."""
    with files.descriptor(file) as fd:
        return _are_resident(fd, offset, nbytes, _PROBES_OF_A_RUN)


def shard_is_resident(files: ShardFiles, file: int) -> bool:
    """Whether pages all over an open shard, drawn anew each time, are in the page cache."""
    with files.descriptor(file) as fd:
        return _are_resident(fd, 0, files.length(file), _PROBES_OF_A_SHARD)


def _are_resident(fd: int, offset: int, nbytes: int, probes: int) -> bool:
    return all(is_resident(fd, offset + _random.randrange(max(nbytes, 1))) for _ in range(probes))
