"""What it takes to fill blocks of pinned memory, and whether to go around the page cache for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from gdsload.backends.bounce.copier import Copier
from gdsload.backends.bounce.slot_layout import BlockFill
from gdsload.shards.files import Files
from gdsload.shards.page_cache import block_looks_resident
from gdsload.system.pinned import PinnedRing

__all__ = ["BouncePath", "DirectIOPolicy", "FillTask"]

_BELIEVED_S = 0.01
"""How long the answer for a block is taken for the others of its shard: to ask has pages read, and costs a call."""


class FillTask(NamedTuple):
    """A block to be filled and copied, in plain numbers: who fills it should have nothing to work out.

    Attributes:
        part: what fills it.
        direct: whether the reads are made with O_DIRECT.
        slot: where the block is copied to.
    """

    part: BlockFill
    direct: bool
    slot: torch.Tensor


class DirectIOPolicy:
    """Whether blocks are to be read with O_DIRECT.

    Args:
        files: the shards.
        always: the answer; None: whether some of a block's bytes are not in the page cache.
    """

    def __init__(self, files: Files, always: bool | None) -> None:
        self.files, self.always = files, always
        self._believed: dict[int, tuple[float, bool]] = {}

    def __call__(self, part: BlockFill) -> bool:
        """Whether the block that this fills is.

        The answer is believed for a moment. Wrongly believed, everything is read all the same, only not as fast.
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
    """What it takes to fill blocks.

    Attributes:
        files: the shards.
        ring: pinned memory.
        copier: what copies it.
        count: is told how many bytes were read with O_DIRECT and how many through the page cache.
    """

    files: Files
    ring: PinnedRing
    copier: Copier
    count: Callable[[int, int], None]


def part_looks_resident(files: Files, part: BlockFill) -> bool:
    """Whether what fills a block looks as if it were in the page cache."""
    extents, begin = part.many()

    def place_of(byte: int) -> tuple[int, int]:
        read = int(np.searchsorted(begin, byte, side="right")) - 1
        within = min(byte - int(begin[read]), int(extents.nbytes[read]) - 1)
        return int(extents.file[read]), int(extents.offset[read]) + within

    return block_looks_resident(files, part.nbytes, place_of)
