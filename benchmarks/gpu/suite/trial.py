"""One trial of one contender, and the check of its bytes."""

from __future__ import annotations

import os
import resource
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.contenders.base import Contender
from benchmarks.gpu.suite.arrival import arriving
from benchmarks.gpu.suite.data import row_hashes
from benchmarks.worker import close, compare

__all__ = ["check", "cold_trial", "cpu_s", "hot_trial", "moved", "synchronise"]


def hot_trial(contender: Contender, warm_s: float, seconds: float) -> dict[str, Any]:
    """Read epoch after epoch for a while, out of the page cache.

    The clock runs from one batch to a later one, after a warm-up under full load, and until the GPU has ended all work.
    Of contenders whose batches come in bursts, it runs for whole epochs.
    """
    job = contender.job
    device, whole = job.device, job.num_bytes if contender.bursts else 1
    synchronise(device)
    began = time.perf_counter()
    stream = arriving(contender, endless=True)
    try:
        nbytes = contender.num_bytes(next(stream))
        synchronise(device)
        first = time.perf_counter()
        while time.perf_counter() - began < warm_s or nbytes % whole:
            nbytes += contender.num_bytes(next(stream))
        synchronise(device)
        paths, cpu, start = contender.paths(), cpu_s(), time.perf_counter()
        nbytes, batch = 0, None
        while time.perf_counter() - start < seconds or nbytes % whole or not nbytes:
            batch = next(stream)  # as in a `for` loop, the batch before lives until now
            nbytes += contender.num_bytes(batch)
        synchronise(device)
        taken = time.perf_counter() - start
        cpu, paths = cpu_s() - cpu, moved(paths, contender.paths())
        del batch
    finally:
        close(stream)
    return _result(nbytes, job.row_bytes, taken, cpu, first - began) | {"paths": paths}


def cold_trial(contender: Contender, seconds: float) -> dict[str, Any]:
    """Read one epoch from the drive, or as much of it as the time after the first batch allows.

    The clock runs from the making of the loader, start-up included, so that nothing that is read ahead goes uncounted.
    """
    job = contender.job
    device = job.device
    synchronise(device)
    cpu, began = cpu_s(), time.perf_counter()
    stream = arriving(contender, endless=False)
    nbytes, first, first_bytes = 0, 0.0, 0
    try:
        for batch in stream:
            nbytes += contender.num_bytes(batch)
            if not first:
                synchronise(device)
                first, first_bytes = time.perf_counter(), nbytes
            elif time.perf_counter() - first >= seconds:
                break
        synchronise(device)
        end = time.perf_counter()
        cpu, paths = cpu_s() - cpu, moved({}, contender.paths())
    finally:
        close(stream)
    if not nbytes:
        raise RuntimeError("the epoch has no batch")
    return _result(nbytes, job.row_bytes, end - began, cpu, first - began) | {
        "gb_s_after_first": (nbytes - first_bytes) / (end - first) / 1e9,
        "paths": paths,
        "whole_epoch": nbytes >= job.num_bytes,
    }


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _result(nbytes: int, row_bytes: int, seconds: float, cpu: float, first_s: float) -> dict[str, Any]:
    return {
        "bytes": nbytes,
        "seconds": seconds,
        "gb_s": nbytes / seconds / 1e9,
        "samples_s": nbytes / row_bytes / seconds,
        "cpu_s_per_gb": cpu / (nbytes / 1e9),
        "first_batch_s": first_s,
    }


def moved(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Bytes by path in between."""
    return {path: count - before.get(path, 0) for path, count in after.items() if count != before.get(path, 0)}


def check(contender: Contender, expected: NDArray[np.int64]) -> dict[str, Any]:
    """Read one epoch and compare its rows, by hash on the device, with what was written."""
    found, job = [np.empty(0, np.int64)], contender.job
    stream = arriving(contender, endless=False)
    try:
        for batch in stream:
            if batch.dtype != torch.uint8 or tuple(batch.shape[1:]) != job.shape:
                raise ValueError(f"a batch is {batch.dtype}{tuple(batch.shape)}, not uint8 rows of {job.shape}")
            if batch.device.type != job.device.type:
                raise ValueError(f"a batch is on {batch.device}, not on {job.device}")
            found.append(row_hashes(batch).cpu().numpy())
    finally:
        close(stream)
    hashes = np.concatenate(found)
    return compare(hashes, expected) | {"in_order": bool(np.array_equal(hashes, expected))}


def cpu_s() -> float:
    """Seconds of processor time, user and system, of this process, its threads, and all that descend from it."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used) + _living_descendants_s()


def _living_descendants_s() -> float:
    """Those that have ended are in RUSAGE_CHILDREN."""
    parents, ticks = {}, {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        parents[int(name)] = int(fields[1])
        ticks[int(name)] = sum(map(int, fields[11:15]))  # utime, stime, and those of its own children that have ended
    total, found = 0, {os.getpid()}
    while found:
        found = {pid for pid, parent in parents.items() if parent in found}
        total += sum(ticks[pid] for pid in found)
    return total / os.sysconf("SC_CLK_TCK")
