"""Arrays that are copied to a GPU once, for kernels on any stream."""

from __future__ import annotations

import numpy as np
import torch

from gdsload.system.arrays import IntArray
from gdsload.system.streams import current_stream, on, side_stream, stream_handle

__all__ = ["Uploads"]


class Uploads:
    """Arrays on a GPU that kernels on any stream may read."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream, self._used_on = side_stream(device), set[int]()
        self._tensors: list[torch.Tensor] = []

    def add(self, array: IntArray) -> torch.Tensor:
        """An array on the device. Waits for this copy, and for nothing else.

        Raises:
            torch.OutOfMemoryError: if the device has no room for it.
        """
        with on(self._stream):
            tensor = torch.from_numpy(np.array(array)).to(self.device)
        self._tensors.append(tensor)
        self._used_on.clear()
        return tensor

    def use(self) -> None:
        """Have the memory of all of them outlive what is queued on the current stream."""
        handle = stream_handle(self.device)
        if handle not in self._used_on:
            for tensor in self._tensors:
                tensor.record_stream(current_stream(self.device))
            self._used_on.add(handle)
