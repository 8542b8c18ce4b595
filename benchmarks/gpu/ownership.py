"""Benchmark of three ways to allocate a batch, while the consumer has work queued.

- ``owned``: allocated on the loader's stream for each batch, recorded on the consumer's (what gdsload does).
- ``ring``: views of buffers that go round; nothing is allocated, and the user must be done with one in time.
- ``consumer``: allocated on the consumer's stream: the gather must wait until what is queued there has run.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.data import ROW_BYTES, Data
from benchmarks.gpu.overlap import Compute
from gdsload.backends.mapped import MappedBackend
from gdsload.kernels.gather_device import DeviceGather
from gdsload.system.streams import side_stream

__all__ = ["CHOICES", "Ownership"]

CHOICES = ("owned", "ring", "consumer")
_ROWS = 2048
_RING = 4


class Ownership:
    """Gathers batches of 2048 random rows of 4 KiB out of registered page cache.

    Args:
        data: the rows.
        device: the GPU.
        batches: how many batches.
    """

    def __init__(self, data: Data, device: torch.device, batches: int = 128) -> None:
        files = data.files(mapped=True)
        self._backend = MappedBackend(files, device, register_bytes=2**40)
        self._backend.read(data.pieces(2**30)).release()
        rows = data.rows()
        order = np.random.default_rng(2).integers(0, len(rows), (batches, _ROWS))
        self._addresses = (files.base[rows.file] + rows.offset)[order]
        self.device, self.stream = device, side_stream(device)
        self._gather = DeviceGather(device, files.in_mappings)
        self._ring = [self._empty() for _ in range(_RING)]

    def _empty(self) -> torch.Tensor:
        return torch.empty(_ROWS * ROW_BYTES, dtype=torch.uint8, device=self.device)

    def trial(self, choice: str, compute: Compute) -> dict[str, Any]:
        """Gather all batches while products are queued on the default stream.

        Returns:
            Seconds until the last batch was there, and bytes of device memory that were allocated at most meanwhile.
        """
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        default = torch.cuda.default_stream(self.device)
        compute.queue()
        began = time.perf_counter()
        for number, addresses in enumerate(self._addresses):
            if choice == "consumer":
                out = self._empty()
                self.stream.wait_stream(default)
            with torch.cuda.stream(self.stream):
                if choice == "ring":
                    out = self._ring[number % _RING]
                elif choice == "owned":
                    out = self._empty()
                self._gather.rows(addresses, ROW_BYTES, out)
            out.record_stream(default if choice == "owned" else self.stream)
            del out
        self.stream.synchronize()
        seconds = time.perf_counter() - began
        peak = torch.cuda.max_memory_allocated(self.device) - before
        torch.cuda.synchronize(self.device)
        return {"seconds": seconds, "peak_bytes": peak, "bytes": self._addresses.size * ROW_BYTES}

    def close(self) -> None:
        """Give everything back."""
        self._backend.close()
