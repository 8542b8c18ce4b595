"""Blocks filled by threads, each of which reads a block and queues its copy.

What counts is how little Python they need for a block. While they copy, the processors' caches hold none of it, and
only one of them may run it at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from functools import partial

from gdsload.backends.bounce.copier import Copying
from gdsload.backends.bounce.fill_task import BouncePath, FillTask
from gdsload.backends.bounce.slot_layout import Read
from gdsload.backends.readers import Readers
from gdsload.system.pinned import PinnedBlock

__all__ = ["ThreadFill"]


class _Here(threading.local):
    """What a reader thread keeps from block to block: a descriptor, as long as it reads the same shard."""

    file = -1
    fd = -1


class ThreadFill:
    """Fills blocks and has them copied.

    Args:
        means: what it takes.
        threads: how many blocks are filled at once.
        where: the processors to run on; None for any.
    """

    def __init__(self, means: BouncePath, threads: int, where: Collection[int] | None) -> None:
        self._means = means
        self._readers = Readers(threads, "gdsload-bounce", where)
        self._here = _Here()
        self._kept: dict[int, list[int]] = {}
        """The descriptor that each thread keeps, as the shards have lent it."""

    def run(self, tasks: list[FillTask], reading: Copying) -> None:
        """Have blocks filled.

        Args:
            tasks: the blocks.
            reading: a reading of as many parts.
        """
        self._readers.run([partial(self._fill, task) for task in tasks], reading)

    def close(self) -> None:
        """Turn away what nobody has begun, and wait for the rest; may be called twice."""
        self._readers.close()
        while self._kept:
            self._means.files.take_back(self._kept.popitem()[1])

    def _fill(self, task: FillTask) -> None:
        means, (part, direct, slot) = self._means, task
        block = means.ring.take()
        try:
            means.copier.wait(block)
            around = through = 0
            if direct or not isinstance(part.reads, list):
                extents, begin = part.many()
                around = means.files.read_many(extents, block.address + begin, direct=direct)
                through = extents.total_bytes - around
            else:
                through = self._through(part.reads, block)
            means.copier.copy(block, slot, part.low, part.nbytes)
        finally:
            means.ring.give(block)
        means.count(around, through)

    def _through(self, reads: list[Read], block: PinnedBlock) -> int:
        """Read a few long runs through the page cache, which return at once; returns their bytes."""
        here, memory, through = self._here, block.memory, 0
        for file, offset, begin, length in reads:
            if file != here.file:
                self._keep(file)
            into = memory[begin : begin + length]
            try:
                done = os.preadv(here.fd, [into], offset)
            except OSError:
                done = 0  # why is said below
            if done < length:
                self._means.files.read_into(file, offset + done, into[done:])
            through += length
        return through

    def _keep(self, file: int) -> None:
        """Have this thread keep a descriptor of a shard, instead of the one it has."""
        here, files, thread = self._here, self._means.files, threading.get_ident()
        if (before := self._kept.pop(thread, None)) is not None:
            here.file = -1
            files.take_back(before)
        entry = self._kept[thread] = files.lend(file, direct=False)
        here.file, here.fd = file, entry[0]
