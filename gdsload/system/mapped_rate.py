"""The throughput of a GPU's copies from registered pages of a file, compared with copies from pinned memory.

Over PCIe both are about equal. If CPU and GPU have coherent memory (GH200, GB10), the GPU may translate the addresses
of registered pages 4 KiB at a time, and its copies are then a hundred times slower.
"""

from __future__ import annotations

import numpy as np
import torch

from gdsload.system.copies import copy_runs
from gdsload.system.driver import driver
from gdsload.system.streams import on, side_stream

TRIED_BYTES = 4 * 2**20
_TURNS = 8
_SLOWER = 4
"""Mapped pages are not used if they are slower by this factor: the CPU then gathers faster."""


def is_coherent(device: torch.device) -> bool:
    """Return whether CPU and GPU have coherent memory, so that mapped pages may be slow. `device` has an index.

    False if torch uses another driver than CUDA's.
    """
    calls = driver()
    return calls is not None and device.index is not None and calls.shares_page_tables(device.index)


def slow_pages(device: torch.device, address: int, nbytes: int) -> str:
    """The reason why registered pages of a file are too slow for a GPU; empty if they are not, as over PCIe.

    Waits for the GPU, which copies at most `TRIED_BYTES`.
    """
    if not is_coherent(device):
        return ""
    mapped, pinned = copy_rates(device, address, min(nbytes, TRIED_BYTES))
    if mapped * _SLOWER >= pinned:
        return ""
    return f"the GPU copies mapped pages at {mapped / 1e9:.3g} GB/s and pinned memory at {pinned / 1e9:.3g} GB/s"


def copy_rates(device: torch.device, address: int, nbytes: int) -> tuple[float, float]:
    """The throughput in bytes per second from registered pages at an address, and from pinned memory.

    Both are the best of several alternating measurements, since other copies may run. Waits for the GPU. `device` has
    an index.
    """
    with torch.cuda.device(device), on(side_stream(device)):
        target = torch.empty(nbytes, dtype=torch.uint8, device=device)
        pinned = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)
        turns = [(_rate(target, address), _rate(target, pinned.data_ptr())) for _ in range(_TURNS)]
    return max(mapped for mapped, _ in turns), max(rate for _, rate in turns)


def _rate(target: torch.Tensor, address: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    copy_runs([address], [len(target)], lambda found: np.ones(len(found), bool), target)
    end.record()
    end.synchronize()
    return float(len(target) / max(start.elapsed_time(end) / 1e3, 1e-9))
