"""Slots: plain device memory that storage reads into, in chunks that are reused in turn.

All chunks are of one size but those of reads that are longer. Of these there are many sizes, so one may be reused for
less than it holds, and what fits nothing is freed again.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
import torch

from gdsload.backends.gds.engines import Engine
from gdsload.system.arrays import IntArray
from gdsload.system.streams import allocate, free, no_room
from gdsload.system.units import format_bytes

Chunk = tuple[int, int]
"""Address and bytes."""

_CHUNK_BYTES = 16 * 2**20
"""The most that nvidia-fs reads at once, and a multiple of a GPU's 64 KiB pages."""
_MOST_WASTE = 2
"""A chunk is reused for no less than one part in so many of it."""
_MOST_HELD = 2
"""Chunks are freed before all of them are so many times what was leased at once."""


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
    """Chunks of device memory, which `engine` registers for DMA; without it they stay unregistered."""

    device: torch.device
    engine: Engine | None
    _free: deque[Chunk] = field(default_factory=deque)
    _all: dict[int, int] = field(default_factory=dict)
    _registered: set[int] = field(default_factory=set)
    _peak: int = 0
    """The most bytes that were leased at once, as far as chunks had to be made for them."""
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
        try:
            while low < len(ends):
                high = max(bisect_right(ends, before + _CHUNK_BYTES, low), low + 1)
                end = ends[high - 1]
                chunks.append(self._take(max(end - before, 1)))
                counts.append(high - low)
                begins.append(before)
                low, before = high, end
        except BaseException:
            self._free.extend(chunks)
            raise
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
            # Any thread may return chunks meanwhile, so those that are looked at are taken out.
            idle = [self._free.popleft() for _ in range(len(self._free))]
            try:
                fits = [chunk for chunk in idle if size < chunk[1] <= _MOST_WASTE * size]
                if not fits:
                    return self._make(size, idle)
                chunk = min(fits, key=itemgetter(1))
                idle.remove(chunk)
                return chunk
            finally:
                self._free.extend(idle)

    def _make(self, size: int, idle: list[Chunk]) -> Chunk:
        """A new chunk. Idle ones, the longest idle first, are freed as far as the device's memory is wanted."""
        leased = sum(self._all.values()) - sum(size for _, size in idle)
        peak = max(self._peak, leased + size)
        while idle and sum(self._all.values()) + size > _MOST_HELD * peak:
            self._drop(idle.pop(0)[0])
        address = self._allocate(size, idle)
        self._all[address], self._peak = size, peak
        if self.engine is not None:
            with suppress(Exception):  # the GPU's BAR1, which holds what is registered, may be full: it is only slower
                self.engine.register(address, size)
                self._registered.add(address)
        return address, size

    def _allocate(self, size: int, idle: list[Chunk]) -> int:
        """Memory of the device, for which idle chunks are freed if there is none left, and then what torch keeps."""
        with suppress(MemoryError):
            return allocate(self.device, size)
        while idle:
            self._drop(idle.pop(0)[0])
        with suppress(MemoryError):
            return allocate(self.device, size)
        torch.cuda.empty_cache()  # last, as it has the training wait
        try:
            return allocate(self.device, size)
        except MemoryError:
            taken = format_bytes(sum(self._all.values()))
            raise no_room(self.device, f"a slot of {format_bytes(size)} beside {taken} of slots") from None

    def _drop(self, address: int) -> None:
        """Deregister and free a chunk that nothing uses: leases are released when the gathers from them have ended."""
        if self.engine is not None and address in self._registered:
            self._registered.discard(address)
            with suppress(Exception):  # cuFile lets go of memory that is freed
                self.engine.deregister(address)
        del self._all[address]  # before: an interrupted close must not free anything twice
        free(self.device, address)

    def close(self) -> None:
        """Deregister and free everything; may be called twice. No read may be under way."""
        with self._lock:
            if not self._all:
                return
            torch.cuda.synchronize(self.device)
            while self._all:
                self._drop(next(iter(self._all)))
            self._free.clear()
