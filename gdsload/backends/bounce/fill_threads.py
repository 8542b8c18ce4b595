"""Blocks filled by threads, each of which reads a block, with O_DIRECT or buffered, and queues its copy.

Their speed depends on how little Python they run for a block. While they copy, Python's code and data leave the
processors' caches, and only one of them may run Python at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from gdsload.backends.bounce.copier import Copier, Copying
from gdsload.backends.bounce.slot_layout import BlockFill, Read
from gdsload.backends.readers import Readers
from gdsload.shards.files import Files
from gdsload.shards.page_cache import block_looks_resident
from gdsload.system.pinned import PinnedBlock, PinnedRing

__all__ = ["BouncePath", "DirectIOPolicy", "FillTask", "ThreadFill"]

FillTask = tuple[BlockFill, bool, torch.Tensor]
"""A block to be filled and copied: what fills it, whether the reads are made with O_DIRECT, and the slot that it is
copied to. In plain numbers: the thread that fills it should have nothing to compute."""
_BELIEVED_S = 0.01
"""Seconds for which one block's answer holds for its whole shard: asking has pages read, and costs a call."""


class DirectIOPolicy:
    """Whether blocks are to be read with O_DIRECT.

    Args:
        files: the shards.
        always: the answer for all blocks; None: True for blocks of which some bytes are not in the page cache.
    """

    def __init__(self, files: Files, always: bool | None) -> None:
        self.files, self.always = files, always
        self._believed: dict[int, tuple[float, bool]] = {}

    def __call__(self, part: BlockFill) -> bool:
        """Whether the block that `part` fills is to be read with O_DIRECT.

        The answer is kept for a moment. If it is wrong by then, all bytes are still read, only not as fast.
        """
        if self.always is not None:
            return self.always
        first, now = part.first, time.monotonic()
        until, cold = self._believed.get(first, (0.0, False))
        if now >= until:
            cold = not part_looks_resident(self.files, part)
            self._believed[first] = now + _BELIEVED_S, cold
        return cold


@dataclass(frozen=True, slots=True)
class BouncePath:
    """What is needed to fill blocks.

    Attributes:
        files: the shards.
        ring: pinned memory.
        copier: copies it to the device.
        count: called with how many bytes were read with O_DIRECT and how many through the page cache.
    """

    files: Files
    ring: PinnedRing
    copier: Copier
    count: Callable[[int, int], None]


def part_looks_resident(files: Files, part: BlockFill) -> bool:
    """Whether the bytes of a block look resident in the page cache."""
    extents, begin = part.many()

    def place_of(byte: int) -> tuple[int, int]:
        read = int(np.searchsorted(begin, byte, side="right")) - 1
        within = min(byte - int(begin[read]), int(extents.nbytes[read]) - 1)
        return int(extents.file[read]), int(extents.offset[read]) + within

    return block_looks_resident(files, part.nbytes, place_of)


class _Here(threading.local):
    """State of a reader thread between blocks: a descriptor, as long as it reads the same shard."""

    file = -1
    fd = -1


class ThreadFill:
    """Fills blocks and has them copied.

    Args:
        means: the shards, the ring and the copier.
        threads: how many blocks are filled at once.
        where: the processors to run on; None for any.
    """

    def __init__(self, means: BouncePath, threads: int, where: Collection[int] | None) -> None:
        self._means = means
        self._readers = Readers(threads, "gdsload-bounce", where)
        self._here = _Here()
        self._kept: dict[int, list[int]] = {}
        """The descriptor that each thread keeps, as lent by the shards."""

    def run(self, tasks: list[FillTask], reading: Copying) -> None:
        """Queue the filling of blocks.

        Args:
            tasks: the blocks.
            reading: a reading of as many parts.
        """
        self._readers.run([partial(self._fill, task) for task in tasks], reading)

    def close(self) -> None:
        """Cancel blocks that were not begun, and wait for the rest; may be called twice."""
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
                done = self._means.files.reader.read_one(here.fd, offset, into)
            except OSError:
                done = 0  # `read_into` raises the reason
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
