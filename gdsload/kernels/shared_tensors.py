"""Tensors on a GPU that kernels on any stream may read."""

from __future__ import annotations

import numpy as np
import torch

from gdsload.system.arrays import IntArray
from gdsload.system.streams import current_stream, on, record, side_stream, stream_handle


class SharedTensors:
    """Tensors on a GPU that kernels on any stream may read, after `use` on that stream.

    They are made on `stream`; None: on one for these alone.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None) -> None:
        self._device, self._used_on = device, set[int]()
        self._stream = side_stream(device) if stream is None else stream
        self._tensors: list[torch.Tensor] = []
        self._made: torch.cuda.Event | None = None

    def add(self, array: IntArray) -> torch.Tensor:
        """An array on the device. Waits for this copy, and for nothing else.

        Raises:
            torch.OutOfMemoryError: if the device has no room for it.
        """
        with on(self._stream):
            tensor = torch.from_numpy(np.array(array)).to(self._device)
        self._tensors.append(tensor)
        self._used_on.clear()
        return tensor

    def keep(self, tensor: torch.Tensor) -> None:
        """Add a tensor whose making is queued on the stream."""
        self._tensors.append(tensor)
        self._made = record(self._stream)
        self._used_on.clear()

    def use(self) -> None:
        """Have the current stream wait until all are made, and their memory outlive what is queued on it."""
        handle = stream_handle(self._device)
        if handle not in self._used_on:
            stream = current_stream(self._device)
            if self._made is not None:
                stream.wait_event(self._made)
            for tensor in self._tensors:
                tensor.record_stream(stream)
            self._used_on.add(handle)
