"""The rate at which a GPU copies pages of a file that are registered with CUDA, beside that of pinned memory.

Over PCIe they are about the same. Where CPU and GPU have coherent memory (GH200, GB10), the GPU may translate the
addresses of such pages 4 KiB at a time, and then copies them at a hundredth of that.
"""

from __future__ import annotations

import numpy as np
import torch

from gdsload.system.copies import copy_runs
from gdsload.system.streams import on, side_stream

TRIED_BYTES = 4 * 2**20
_TURNS = 4
_SLOWER = 4
"""Mapped pages are not used where they are slower by this factor, as then the CPU gathers faster."""


def copy_rates(device: torch.device, address: int, nbytes: int) -> tuple[float, float]:
    """Bytes a second of registered pages at an address, and of pinned memory: each the best of some turns.

    Waits for the GPU. `device` has an index.
    """
    with torch.cuda.device(device), on(side_stream(device)):
        target = torch.empty(nbytes, dtype=torch.uint8, device=device)
        pinned = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)
        return _rate(target, address), _rate(target, pinned.data_ptr())


def _rate(target: torch.Tensor, address: int) -> float:
    best = 0.0
    for _ in range(_TURNS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        copy_runs([address], [len(target)], lambda found: np.ones(len(found), bool), target)
        end.record()
        end.synchronize()
        best = max(best, len(target) / (start.elapsed_time(end) / 1e3))
    return best


def is_slow(mapped: float, pinned: float) -> bool:
    """Return whether mapped pages are so much slower than pinned memory that they are of no use."""
    return 0 < mapped * _SLOWER < pinned
