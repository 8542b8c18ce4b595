"""Blocks filled by threads, each of which reads a block and queues its copy.

What counts is how little Python they need for a block. While they copy, the processors' caches hold none of it, and
only one of them may run it at a time.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Collection
from functools import partial

import numpy as np

from gdsload.backends.blocks import PAGE, Means, Task
from gdsload.backends.copier import Copying
from gdsload.backends.files import pread_exact
from gdsload.backends.readers import Readers
from gdsload.errors import ReadError
from gdsload.gather import gather_rows, one_thread
from gdsload.pinned import Block

__all__ = ["ThreadFill"]

_SMALL_BYTES = 64 * 1024
"""Mean length of reads below which they are gathered from a mapping, if there is one and they are in the page cache."""


class ThreadFill:
    """Fills blocks and has them copied.

    Args:
        means: what it takes.
        threads: how many blocks are filled at once.
        where: the processors to run on; None for any.
    """

    def __init__(self, means: Means, threads: int, where: Collection[int] | None) -> None:
        self._means = means
        self._readers = Readers(threads, "gdsload-bounce", where)
        self._limited = threading.local()

    def run(self, tasks: list[Task], reading: Copying) -> None:
        """Have blocks filled.

        Args:
            tasks: the blocks.
            reading: a reading of as many parts.
        """
        self._readers.run([partial(self._fill, task) for task in tasks], reading)

    def close(self) -> None:
        """Turn away what nobody has begun, and wait for the rest; may be called twice."""
        self._readers.close()

    def _fill(self, task: Task) -> None:
        means, (reads, direct, slot, low, nbytes) = self._means, task
        block = means.ring.take()
        try:
            means.copier.wait(block)
            around = through = 0
            if means.files.mapped and not direct and nbytes < len(reads) * _SMALL_BYTES:
                through = self._gather(reads, block)
            else:
                for file, offset, begin, length in reads:
                    done, rest = self._read(file, offset, block.memory[begin : begin + length], direct)
                    around, through = around + done, through + rest
            means.copier.copy(block, slot, low, nbytes)
        finally:
            means.ring.give(block)
        means.count(around, through)

    def _gather(self, reads: list[tuple[int, int, int, int]], block: Block) -> int:
        """Copy small reads out of the mapped shards: that many calls of preadv would take longer by far."""
        files = self._means.files
        file, offset, _, nbytes = (np.array(column) for column in zip(*reads, strict=True))
        files.check(file)  # touching a mapping that was cut short would end the process
        pages = nbytes // PAGE
        first = files.base[file] + offset
        within = np.arange(int(pages.sum())) - np.repeat(np.cumsum(pages) - pages, pages)
        if not hasattr(self._limited, "limit"):
            self._limited.limit = one_thread()
        gather_rows(np.repeat(first, pages) + within * PAGE, PAGE, block.address)
        return int(nbytes.sum())

    def _read(self, file: int, offset: int, into: memoryview, direct: bool) -> tuple[int, int]:
        """Fill `into`, as far as the file goes; returns the bytes read with O_DIRECT, and the others."""
        files = self._means.files
        wanted, done = min(len(into), files.length(file) - offset), 0
        if direct and files.allows_direct(file):
            with files.descriptor(file, direct=True) as fd:
                done = _read_direct(fd, into, offset, wanted, files.sources[file].path)
        if done < wanted:
            with files.descriptor(file) as fd:
                pread_exact(fd, into[done:wanted], offset + done, files.sources[file].path)
        return done, wanted - done


def _read_direct(fd: int, into: memoryview, offset: int, wanted: int, file: str) -> int:
    """Read with O_DIRECT up to the end of a file; returns how many of the wanted bytes there are.

    A read may end early, where the page cache holds a part, or where the device wants another alignment than ours. It
    could go on only from a page's begin, so the rest is left to whoever reads it buffered.
    """
    try:
        return min(os.preadv(fd, [into], offset), wanted)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return 0
        raise ReadError(f"reading failed: {error.strerror}", file=file, offset=offset) from error
