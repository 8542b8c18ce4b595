"""Groups of batches, and what a pipeline may use for them."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gdsload.backends.base import Backend
from gdsload.engine.assemble import BatchMaker
from gdsload.engine.direct import Direct
from gdsload.engine.ready import Ready
from gdsload.engine.stage import RowSlice
from gdsload.engine.started import Started

__all__ = ["MOST_WORKERS", "Group", "Limits", "gatherers", "workers"]

MOST_WORKERS = 4
_MOST_BATCHES = 64
_PLANNED_BY_GPU_BYTES = 128 * 2**20
"""A group that the GPU plans costs the host the same however large it is, and the consumer pays. By default
`prefetch_bytes` has room for two such groups."""


def gatherers() -> int:
    """How many threads gather at once where that takes a processor: as many as pay, and the consumer."""
    return min(MOST_WORKERS, max(len(os.sched_getaffinity(0)) - 1, 1)) + 1


def workers(backend: Backend, maker: BatchMaker) -> int:
    """How many threads make groups.

    Where gathering takes a processor, see `gatherers`. On a GPU they only wait for it, and stand in each other's way at
    the interpreter lock: a second one pays where gathers may go over the link, and so take long.
    """
    if maker.takes_processor:
        return gatherers() - 1
    return 2 if backend.addressable else 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What a pipeline may use.

    Attributes:
        prefetch_bytes: bytes of batches that may be ahead of the consumer.
        arena_bytes: bytes that reads may take in an arena.
        group_bytes: about how many bytes of batches are gathered at once; small batches are gathered several at a time,
            because handing a batch from thread to thread costs as much as copying a megabyte.
        batch_bytes: expected bytes of a batch.
        window_bytes: expected bytes of a window.
        sample_bytes: expected bytes of a sample, where larger batches than expected may come.
    """

    prefetch_bytes: int
    arena_bytes: int
    group_bytes: int
    batch_bytes: int
    window_bytes: int
    sample_bytes: int = 0

    def group(self) -> int:
        """Number of batches that are gathered at once."""
        return self._batches(self.group_bytes)

    def group_on_gpu(self) -> int:
        """Number of batches that are gathered at once where the GPU plans that by itself."""
        return self._batches(max(self.group_bytes, _PLANNED_BY_GPU_BYTES))

    def _batches(self, nbytes: int) -> int:
        wanted = min(nbytes, self.prefetch_bytes // 2) // max(self.batch_bytes, 1)
        return max(1, min(wanted, _MOST_BATCHES))

    def pool_bytes(self) -> int:
        """Batch memory that is worth keeping: what is ahead of the consumer, and what it and each thread hold."""
        return self.prefetch_bytes + (gatherers() + 2) * self.group() * self.batch_bytes * 2


@dataclass(slots=True, eq=False)
class Group:
    """Consecutive batches that are gathered at once: out of pieces, or directly, by positions or these samples."""

    steps: range
    pieces: list[RowSlice]
    direct: Direct | None = None
    samples: NDArray[np.int64] | None = None
    started: Started | None = None
    claimed: bool = False
    ready: Ready | None = None

    def landed(self) -> bool:
        """Whether all that it is gathered from is there."""
        try:
            return all(piece.stage.landing.completion.landed for piece in self.pieces)
        except Exception:
            # Who asks is planning, and nobody would hear of it there: it comes up again for who gathers.
            return True
