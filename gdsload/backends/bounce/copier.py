"""Copies of pinned blocks to the device, on one stream; each is queued by the thread that has filled the block.

A block is given back to its ring as soon as its copy is queued; its next user waits for that copy. A read has landed
when the last of its copies has ended, and only the thread that asks waits for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from gdsload.system.driver import driver
from gdsload.system.pinned import PinnedBlock, PinnedRing
from gdsload.system.pool import Future
from gdsload.system.streams import on, record, side_stream


class Copier:
    """Queues copies to a device; its methods may be called from many threads."""

    def __init__(self, device: torch.device) -> None:
        self.stream = side_stream(device)
        self._handle = self.stream.cuda_stream
        self._driver = driver()
        self._context = self._driver.context(self.stream) if self._driver else 0
        self._threads = threading.local()

    def copy(self, block: PinnedBlock, slot: torch.Tensor, low: int, nbytes: int) -> None:
        """Queue a copy of a block's first bytes to a slot, a vector of bytes on the device, from byte `low` on."""
        if block.copied is None:
            # A thread that waits for it spins, and keeps its processor: being woken takes longer than a copy does.
            event = torch.cuda.Event()
            event.record(self.stream)  # by torch: only this creates the event's handle
            block.copied, block.handle = event, event.cuda_event
        if self._driver is None:
            with on(self.stream):
                slot[low : low + nbytes].copy_(block.tensor[:nbytes], non_blocking=True)
            block.copied.record(self.stream)
            return
        if not hasattr(self._threads, "entered"):
            self._driver.enter(self._context)
            self._threads.entered = True
        self._driver.copy(slot.data_ptr() + low, block.address, nbytes, self._handle)
        self._driver.record(block.handle, self._handle)

    def wait(self, block: PinnedBlock) -> None:
        """Wait until a block may be filled again."""
        if block.copied is None or (self._driver is not None and self._driver.is_past(block.handle)):
            return
        block.copied.synchronize()

    def reading(self, parts: int, after: Callable[[], None] | None = None) -> Future:
        """The completion of a read of so many blocks: all have been filled, and their copies have ended.

        Each part ends after its copy was queued, or when there will be none. For `after` see `Future`.
        """
        return Future(parts, after, partial(record, self.stream))

    def close(self) -> None:
        """Wait for all copies. `copy` must not be called any more."""
        self.stream.synchronize()


@dataclass(frozen=True, slots=True)
class BlockPath:
    """The path of bytes through the pinned blocks of a ring to the device.

    `count` is called with the number of bytes read with O_DIRECT, and of those read through the page cache.
    """

    ring: PinnedRing
    copier: Copier
    count: Callable[[int, int], None]

    def send(self, slot: torch.Tensor, low: int, nbytes: int, fill: Callable[[int], tuple[int, int]]) -> None:
        """Fill a block, and copy its first `nbytes` bytes to a slot from byte `low` on.

        `fill` gets the block's address, and returns the arguments for `count`.
        """
        block = self.ring.take()
        try:
            self.copier.wait(block)
            direct, buffered = fill(block.address)
            self.copier.copy(block, slot, low, nbytes)
        finally:
            self.ring.give(block)
        self.count(direct, buffered)
