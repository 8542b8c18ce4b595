"""The rate at which a GPU copies pages of a file that are registered with CUDA, beside that of pinned memory.

Over PCIe they are about the same. Where CPU and GPU have coherent memory (GH200, GB10), the GPU may translate the
addresses of such pages 4 KiB at a time, and then copies them at a hundredth of that.
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
"""Mapped pages are not used where they are slower by this factor, as then the CPU gathers faster."""


def is_coherent(device: torch.device) -> bool:
    """Return whether the memories of CPU and GPU are coherent, so that mapped pages may be slow. `device` has an index.

    False where torch has another driver than CUDA's.
    """
    calls = driver()
    return calls is not None and device.index is not None and calls.shares_page_tables(device.index)


def slow_pages(device: torch.device, address: int, nbytes: int) -> str:
    """Why registered pages of a file are of no use for a GPU; empty if they are, as always over PCIe.

    Waits for the GPU, which copies `TRIED_BYTES` of them at most.
    """
    if not is_coherent(device):
        return ""
    mapped, pinned = copy_rates(device, address, min(nbytes, TRIED_BYTES))
    if mapped * _SLOWER >= pinned:
        return ""
    return f"the GPU copies mapped pages at {mapped / 1e9:.3g} GB/s, and pinned memory at {pinned / 1e9:.3g}"


def copy_rates(device: torch.device, address: int, nbytes: int) -> tuple[float, float]:
    """Bytes a second of registered pages at an address, and of pinned memory: each the best of some turns.

    The turns alternate, since other copies may be under way. Waits for the GPU. `device` has an index.
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
