"""Pinned host memory for copies to a GPU: one arena, allocated once, near the GPU, in blocks that are reused in turn.

reader takes a block ──> fills it ──> queues its copy ──> gives it back, with the event after the copy
      ^                                                                     |
      └──────────── the next reader of it waits for that event ─────────────┘
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import closing, suppress
from dataclasses import dataclass
from queue import SimpleQueue

import torch

from gdsload.errors import BackendUnavailableError
from gdsload.system.numa import processors_near, stay_on
from gdsload.system.pool import Pool
from gdsload.system.streams import register_host, unregister_host
from gdsload.system.units import format_bytes


@dataclass(slots=True, eq=False)
class PinnedBlock:
    """A part of the arena.

    Attributes:
        address: of its first byte, to be written to and copied from.
        copied: the event recorded after the last copy out of it; None if there was none.
        handle: CUDA's handle of that event.
    """

    tensor: torch.Tensor
    address: int
    copied: torch.cuda.Event | None = None
    handle: int = 0


class PinnedRing:
    """Pinned blocks of one size, `block_bytes`, which is a multiple of the page size.

    Raises:
        BackendUnavailableError: if the memory cannot be allocated or pinned.
    """

    def __init__(self, device: torch.device, count: int, block_bytes: int) -> None:
        self.device, self.block_bytes, self.nbytes = device, block_bytes, count * block_bytes
        try:
            arena = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise self._refused(str(error)) from None
        with suppress(OSError, AttributeError):  # a kernel without huge pages is only slower
            arena.madvise(mmap.MADV_HUGEPAGE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(arena))
        _touch_near(arena, self._address, device)
        try:
            trouble = register_host(device, self._address, self.nbytes)
        except BaseException:  # Ctrl-C: what CUDA remembers of an address would be in the way of the next arena there
            unregister_host(device, self._address)
            raise
        if trouble:
            raise self._refused(trouble)
        tensor = torch.frombuffer(arena, dtype=torch.uint8)
        self._free: SimpleQueue[PinnedBlock] = SimpleQueue()
        for begin in range(0, self.nbytes, block_bytes):
            end = begin + block_bytes
            self._free.put(PinnedBlock(tensor[begin:end], self._address + begin))
        self._closed = False

    def _refused(self, why: str) -> BackendUnavailableError:
        what = f"{format_bytes(self.nbytes)} of host memory cannot be pinned for {self.device}: {why}"
        return BackendUnavailableError(what, remedy="Lower `backend=gdsload.Bounce(pinned=...)`, or free memory.")

    def take(self) -> PinnedBlock:
        """A block. Waits until one is free. The caller must give it back, or have it given back."""
        return self._free.get()

    def give(self, block: PinnedBlock) -> None:
        """Give a block back. It may still be copied from: its next user waits for `PinnedBlock.copied`."""
        self._free.put(block)

    def close(self) -> None:
        """Unpin. All blocks must have been given back, and all copies must have ended; may be called twice."""
        if not self._closed:
            unregister_host(self.device, self._address)
            self._closed = True


def _touch_near(arena: mmap.mmap, address: int, device: torch.device) -> None:
    """Have pages allocated by a thread near a GPU, and so on its node, unless that has no memory left.

    The thread holds the arena: a wait for it may be interrupted.
    """
    where = processors_near(device)
    if where is None:
        return

    def touch() -> None:
        stay_on(where)
        ctypes.memset(address, 0, len(arena))

    with closing(Pool(1, "gdsload-pinned")) as pool:
        pool.run([touch]).wait()
