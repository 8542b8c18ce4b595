"""Blocks filled by threads, each of which reads a block, with O_DIRECT or buffered, and queues its copy.

Their speed depends on how little Python they run for a block. While they copy, Python's code and data leave the
processors' caches, and only one of them may run Python at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from gdsload.backends.bounce.copier import Copier, Copying
from gdsload.backends.bounce.slot_layout import BlockFill
from gdsload.backends.readers import Readers
from gdsload.shards.files import Files
from gdsload.shards.page_cache import block_looks_resident
from gdsload.system.pinned import PinnedRing

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

    def _fill(self, task: FillTask) -> None:
        means, (part, direct, slot) = self._means, task
        block = means.ring.take()
        try:
            means.copier.wait(block)
            around = through = 0
            if isinstance(part.reads, list):
                for file, offset, begin, nbytes in part.reads:
                    direct_bytes = means.files.read_one(file, offset, nbytes, block.memory[begin:], direct=direct)
                    around, through = around + direct_bytes, through + nbytes - direct_bytes
            else:
                extents, places = part.reads
                around = means.files.read_many(extents, block.address + places, direct=direct)
                through = extents.total_bytes - around
            means.copier.copy(block, slot, part.low, part.nbytes)
        finally:
            means.ring.give(block)
        means.count(around, through)
