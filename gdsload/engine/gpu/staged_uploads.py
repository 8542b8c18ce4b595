"""Small arrays of the host to a GPU: tables that kernels find rows by, and offsets of ragged fields.

torch takes pinned memory for each array from a pool, and gives it back with an event: a dozen calls of CUDA's driver,
some of which let the interpreter lock go. Who makes a group of batches waits for the GPU in the end anyway, so that all
arrays of the group can go through one piece of pinned memory, which the next group uses again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.system.driver import driver
from gdsload.system.streams import stream_handle

__all__ = ["StagedUploads"]

_ROOM_BYTES = 2 * 2**20
"""Pinned memory of each thread that makes groups. A group of 32 768 ragged samples has tables of 1.3 MB."""
_ALIGNMENT = 256


class StagedUploads:
    """Copies arrays to a GPU, on the current stream, so that the host does not wait. Any thread may use it.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._own = threading.local()

    @contextmanager
    def until_synchronized(self) -> Iterator[None]:
        """Have this thread's arrays go through pinned memory that is used again after this context.

        At the context's end all that was queued in it must have ended.
        """
        if driver() is None or self.device.index is None:
            yield
            return
        self._own.used = 0
        try:
            yield
        finally:
            self._own.used = None

    def __call__(self, array: NDArray[Any]) -> torch.Tensor:
        """An array on the device."""
        # Writable, or torch warns: an array of indices that a user has drawn may be read-only.
        source = torch.from_numpy(np.require(array, requirements=["C", "W"]))
        calls, low, nbytes = driver(), getattr(self._own, "used", None), source.nbytes
        if calls is None or low is None or not nbytes or low + nbytes > _ROOM_BYTES:
            return source.pin_memory().to(self.device, non_blocking=True)
        if not hasattr(self._own, "room"):
            self._own.room = torch.empty(_ROOM_BYTES, dtype=torch.uint8, pin_memory=True)
            self._own.memory, self._own.address = self._own.room.numpy(), self._own.room.data_ptr()
        self._own.memory[low : low + nbytes] = source.numpy().reshape(-1).view(np.uint8)
        self._own.used = -(-(low + nbytes) // _ALIGNMENT) * _ALIGNMENT
        made = torch.empty(source.shape, dtype=source.dtype, device=self.device)
        elsewhere = torch.cuda.current_device() != self.device.index
        with torch.cuda.device(self.device) if elsewhere else nullcontext(), calls.inside(self.device.index):
            calls.copy(made.data_ptr(), self._own.address + low, nbytes, stream_handle(self.device))
        return made
