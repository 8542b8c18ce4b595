"""The limits of a machine: its drive, its link to the device, its memory."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch

from gdsload.errors import GdsloadError
from gdsload.system.drive_rate import DriveRate, measure_drive
from gdsload.system.pool import Pool
from gdsload.system.streams import has_streams
from gdsload.tools.bench.bench_plan import BenchPlan
from gdsload.tools.bench.rows import synchronise

_COPY_BYTES, _COPIES = 128 * 2**20, 4


def drive_limit(plan: BenchPlan) -> tuple[DriveRate | None, str]:
    """The speed of the drive at this dataset's reads, or None and why it is not known."""
    try:
        return measure_drive(plan.files, plan.read_bytes, plan.limit_s), ""
    except GdsloadError as error:
        return None, str(error)


def link_limit(device: torch.device, seconds: float) -> dict[str, float] | None:
    """The speed of copies from pinned memory to the device; None where there is no link."""
    if device.type == "cpu":
        return None
    source = torch.zeros(_COPY_BYTES, dtype=torch.uint8, pin_memory=has_streams(device))
    target = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)

    def copy() -> None:
        for _ in range(_COPIES):
            target.copy_(source, non_blocking=True)
        synchronise(device)

    copy()
    return {"gb_per_s": _COPIES * _COPY_BYTES / _fastest(copy, seconds) / 1e9}


def memory_limit(seconds: float) -> dict[str, float]:
    """The speed of copies from memory to memory, by all processors that this process may use at once."""
    cores = len(os.sched_getaffinity(0))
    each = _COPY_BYTES // 2 if cores < 32 else _COPY_BYTES // 8
    pairs = [
        (torch.ones(each, dtype=torch.uint8).numpy(), torch.ones(each, dtype=torch.uint8).numpy()) for _ in range(cores)
    ]

    with closing(Pool(cores, "gdsload-copy")) as pool:
        works = [partial(np.copyto, *pair) for pair in pairs]  # without the interpreter lock
        return {"gb_per_s": cores * each / _fastest(lambda: pool.run(works).wait(), seconds) / 1e9}


def _fastest(call: Any, seconds: float) -> float:
    """Seconds that the fastest of many calls has taken."""
    best, until = float("inf"), time.perf_counter() + seconds
    while (now := time.perf_counter()) < until or best == float("inf"):
        call()
        best = min(best, time.perf_counter() - now)
    return best


def shown(found: DriveRate, again: Sequence[float]) -> dict[str, Any]:
    """The drive's limit for the record: at the best depth of the first look, the median of the looks between turns."""
    rate = statistics.median(again or [found.gb_per_s])
    return asdict(found) | {"gb_per_s": rate, "from": f"O_DIRECT reads of {found.threads} threads"}
