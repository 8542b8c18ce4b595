"""Does a load overlap with compute that is queued on torch's default stream?"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.gpu.loads import Load

__all__ = ["Compute", "overlap"]

_SIDE = 8192


class Compute:
    """Matrix products that take about a second, all queued at once.

    Args:
        device: the GPU.
        seconds: how long they are to take.
    """

    def __init__(self, device: torch.device, seconds: float) -> None:
        self.device = device
        self._matrix = torch.randn(_SIDE, _SIDE, device=device, dtype=torch.bfloat16)
        self.count = 50
        self.alone()
        self.count = max(round(self.count * seconds / self.alone()), 1)

    def queue(self) -> None:
        """Queue all products on the default stream."""
        for _ in range(self.count):
            self._matrix @ self._matrix  # the product is not looked at

    def alone(self) -> float:
        """Seconds that they take."""
        torch.cuda.synchronize(self.device)
        began = time.perf_counter()
        self.queue()
        torch.cuda.synchronize(self.device)
        return time.perf_counter() - began


def overlap(load: Load, compute: Compute, passes: int) -> dict[str, Any]:
    """One trial: the load alone, the products alone, and both at once.

    Returns:
        Seconds of each, when the load had returned while products were queued, and both at once over the longer one.
    """
    began = time.perf_counter()
    for _ in range(passes):
        load.run()
    torch.cuda.synchronize()
    alone = time.perf_counter() - began
    products = compute.alone()
    began = time.perf_counter()
    compute.queue()
    for _ in range(passes):
        load.run()
    returned = time.perf_counter() - began
    torch.cuda.synchronize()
    both = time.perf_counter() - began
    return {
        "passes": passes,
        "load_s": alone,
        "compute_s": products,
        "returned_s": returned,
        "both_s": both,
        "over_longer": both / max(alone, products),
    }
