"""Slots: plain device memory that storage reads into, in chunks of one size that are reused in turn."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import torch

from gdsload.backends.gds.engines import Engine
from gdsload.system.arrays import IntArray
from gdsload.system.pci import free_bar1
from gdsload.system.streams import allocate, free, no_room
from gdsload.system.units import format_bytes

__all__ = ["SlotLease", "Slots"]

Chunk = tuple[int, int]
"""Address and bytes."""

_CHUNK_BYTES = 16 * 2**20
"""The most that nvidia-fs reads at once, and a multiple of a GPU's 64 KiB pages."""
_REGISTERED_BYTES = 128 * 2**20
"""Bytes of slots that are registered where the free BAR1 is not known: the smallest one of GPUs in use has 256 MiB."""
_SHARE_OF_BAR1 = 2
"""One part in so many of the free BAR1 is for slots: other loaders want some, and so do other users of the GPU."""


class SlotLease:
    """The targets of reads; arrays of one length. Its chunks are reused once it is released or dropped.

    Attributes:
        base: address of the chunk that each read goes to.
        position: byte position in that chunk.
        nbytes: bytes of all the chunks.
        begins: addresses of the chunks, in rising order.
        release: returns the chunks; nothing happens the second time. No work on them may be under way.
    """

    def __init__(self, base: IntArray, position: IntArray, chunks: list[Chunk], back: deque[Chunk]) -> None:
        self.base, self.position = base, position
        self.nbytes = sum(size for _, size in chunks)
        self.begins = np.array(sorted(address for address, _ in chunks), np.int64)
        # A finaliser may run anywhere, and `extend` of a deque runs no Python code.
        self._end = weakref.finalize(self, back.extend, chunks)
        self._end.atexit = False

    def release(self) -> None:
        """See the class."""
        self._end()

    def keep(self) -> None:
        """Never return the chunks, neither when it is released nor when it is dropped."""
        self._end.detach()


@dataclass(slots=True)
class Slots:
    """Chunks of device memory.

    Args:
        device: the GPU.
        engine: registers chunks for DMA; None to leave them unregistered.
    """

    device: torch.device
    engine: Engine | None
    _free: deque[Chunk] = field(default_factory=deque)
    _all: dict[int, int] = field(default_factory=dict)
    _registered: set[int] = field(default_factory=set)
    _most: int | None = None
    """Bytes that may be registered; None: not known yet."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lease(self, nbytes: IntArray) -> SlotLease:
        """Memory for reads of these lengths, each within one chunk.

        Raises:
            BudgetError: if the device has none left.
        """
        totals = nbytes.cumsum()
        # Not by numpy's search, which gives the interpreter lock up each time.
        ends: list[int] = totals.tolist()
        low, before, chunks, counts, begins = 0, 0, [], [], []
        while low < len(ends):
            high = max(bisect_right(ends, before + _CHUNK_BYTES, low), low + 1)
            end = ends[high - 1]
            chunks.append(self._take(max(end - before, 1)))
            counts.append(high - low)
            begins.append(before)
            low, before = high, end
        base = np.array([address for address, _ in chunks], np.int64).repeat(counts)
        position = totals - nbytes - np.array(begins, np.int64).repeat(counts)
        return SlotLease(base, position, chunks, self._free)

    def abandon(self, lease: SlotLease) -> None:
        """Neither use nor free the chunks of a lease ever again: reads into them may be under way for ever."""
        lease.keep()
        with self._lock:
            for address in lease.begins.tolist():
                self._all.pop(address, None)
                self._registered.discard(address)

    def _take(self, nbytes: int) -> Chunk:
        size = -(-nbytes // _CHUNK_BYTES) * _CHUNK_BYTES
        with self._lock:
            for _ in range(len(self._free)):
                chunk = self._free.popleft()
                if chunk[1] == size:
                    return chunk
                self._free.append(chunk)
            try:
                address = allocate(self.device, size)
            except MemoryError:
                taken = format_bytes(sum(self._all.values()))
                raise no_room(self.device, f"a slot of {format_bytes(size)} beside {taken} of slots") from None
            self._all[address] = size
            if self.engine is not None and self._has_room(size):
                with suppress(Exception):  # an unregistered chunk is only slower
                    self.engine.register(address, size)
                    self._registered.add(address)
            return address, size

    def _has_room(self, size: int) -> bool:
        """Whether another chunk may be registered."""
        if self._most is None:
            free = free_bar1(self.device)
            self._most = _REGISTERED_BYTES if free is None else free // _SHARE_OF_BAR1
        return sum(self._all[one] for one in self._registered) + size <= self._most

    def close(self) -> None:
        """Deregister and free everything; may be called twice. No read may be under way."""
        with self._lock:
            if not self._all:
                return
            torch.cuda.synchronize(self.device)
            while self._all:  # an interrupted close must not free anything twice
                address, _ = self._all.popitem()
                if self.engine is not None and address in self._registered:
                    self.engine.deregister(address)
                free(self.device, address)
            self._registered.clear()
            self._free.clear()
