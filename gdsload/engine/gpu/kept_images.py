"""Decoded images that are kept in a GPU's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch

from gdsload.engine.gpu.device_queue import to_its_end
from gdsload.engine.images.decode import HostImages, ImageBatch
from gdsload.engine.images.kept import Keep, KeptImages
from gdsload.kernels.gather_device import DeviceGather
from gdsload.system.arrays import IntArray
from gdsload.system.streams import room_for, side_stream
from gdsload.transforms import DecodeImage


class DeviceKeptImages(KeptImages):
    """`KeptImages` on a GPU: copied on a stream for this alone, which the host waits for.

    What is copied from, and what is copied into, was made on other streams that the host has waited for.
    """

    def __init__(self, wanted: Mapping[str, DecodeImage], images: HostImages, keep: Keep) -> None:
        super().__init__(wanted, images, keep, "the GPU's memory")
        self._stream = side_stream(images.device)
        self._gather = DeviceGather(images.device, lambda addresses: np.zeros(addresses.shape, np.bool_))

    def __call__(self, batches: Sequence[ImageBatch], stopped: Callable[[], bool]) -> None:
        """See `HostImages`. The results are complete when it returns.

        Raises:
            BudgetError: if the device has no memory left.
        """
        with room_for("decoded images", self.images.device):
            super().__call__(batches, stopped)

    def ordered(self) -> AbstractContextManager[None]:
        """See `KeptImages.ordered`."""
        return to_its_end(self._stream)

    def gather(self, addresses: IntArray, row_bytes: int, out: torch.Tensor, begins: IntArray) -> None:
        """See `KeptImages.gather`."""
        self._gather.batches(addresses, row_bytes, [out], [len(addresses)], begins)
