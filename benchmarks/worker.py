"""The process of one contender: it gets commands on its standard input, a line of JSON each, and answers alike.

A contender never shares a process with another: libraries change thread pools, start methods and signal handlers.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.contenders import about, load
from benchmarks.contenders.base import Contender, Job, Order
from benchmarks.serving import serve
from benchmarks.workloads import Workload, hash_rows

__all__ = ["MODES", "Mode", "busy_cpu_s", "check", "close", "compare", "trial"]

Mode = Literal["shuffled", "sequential"]
MODES: dict[Mode, tuple[Order, ...]] = {"shuffled": ("full", "block"), "sequential": ("sequential",)}
"""The orders that each mode of the record stands for, of which a contender runs in the first that it has."""
_CPU = torch.device("cpu")
_WORKERS = 2
"""As many as the machine of the record has cores."""


def trial(contender: Contender, warm_s: float, seconds: float) -> dict[str, float]:
    """Read epoch after epoch for a while and count.

    The clock runs from one batch to a later one, after a warm-up under full load: no batch that was fetched while
    nobody waited is counted beyond those that wait at the end. Starts of epochs in between are part of the time.
    """
    began = time.perf_counter()
    stream = contender.batches(endless=True)
    try:
        batch = next(stream)
        first = time.perf_counter()
        while time.perf_counter() - began < warm_s:
            batch = next(stream)
        samples, busy, start = 0, busy_cpu_s(), time.perf_counter()
        end = start
        while end - start < seconds:
            batch = next(stream)  # as in a `for` loop, the batch before lives until now
            samples += len(contender.data(batch))
            end = time.perf_counter()
        busy = busy_cpu_s() - busy
        del batch
    finally:
        close(stream)
    return {
        "samples": samples,
        "seconds": end - start,
        "rate": samples / (end - start),
        "busy_cores": busy / (end - start),
        "first_batch_s": first - began,
    }


def check(contender: Contender, expected: NDArray[np.uint64]) -> dict[str, Any]:
    """Read one epoch and compare its rows with the source's, by hash: how many are missing, repeated, or of neither."""
    found: list[NDArray[np.uint64]] = []
    view, batch_samples = False, 0
    stream = contender.batches(endless=False)
    try:
        for batch in stream:
            rows = np.asarray(contender.data(batch))
            _check_shape(rows, contender.job)
            if not found:
                view, batch_samples = _is_file_view(rows, contender.job.source.parent), len(rows)
            found.append(hash_rows(rows))
    finally:
        close(stream)
    hashes = np.concatenate([np.empty(0, np.uint64), *found])
    return compare(hashes, expected) | {
        "in_order": bool(np.array_equal(hashes, expected)),
        "first_batch_samples": batch_samples,
        "view_of_file": view,
    }


def compare(hashes: NDArray[Any], expected: NDArray[Any]) -> dict[str, int]:
    """The counts of all, missing, repeated and foreign samples, in whatever order these come."""
    found = np.sort(hashes)
    if np.array_equal(found, np.sort(expected)):  # the usual case, found far sooner than by the code below
        repeated = int((found[1:] == found[:-1]).sum())
        return {"samples": len(hashes), "missing": 0, "repeated": repeated, "foreign": 0}
    unique, counts = np.unique(hashes, return_counts=True)
    return {
        "samples": len(hashes),
        "missing": int((~np.isin(expected, unique)).sum()),
        "repeated": int((counts - 1).sum()),
        "foreign": int((~np.isin(unique, expected)).sum()),
    }


def busy_cpu_s() -> float:
    """Seconds that all cores of the machine have worked: counts workers' processes and the kernel's part, too."""
    with open("/proc/stat", encoding="ascii") as file:
        numbers = [int(word) for word in file.readline().split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, *_ = numbers
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _check_shape(rows: NDArray[Any], job: Job) -> None:
    if rows.dtype != np.dtype(job.dtype) or rows.shape[1:] != job.shape:
        raise ValueError(f"a batch is {rows.dtype}{rows.shape}, not {job.dtype} rows of {job.shape}")


def _is_file_view(rows: NDArray[Any], folder: Path) -> bool:
    """Return whether a batch is a window into a file of the data rather than separate memory."""
    address = rows.ctypes.data
    with open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:
            span, *_, name = line.rstrip("\n").split(maxsplit=5)
            low, high = (int(end, 16) for end in span.split("-"))
            if low <= address < high:
                return name.startswith(str(folder))
    return False


def close(stream: Iterator[Any]) -> None:
    """Let a stream's threads and processes end."""
    close = getattr(stream, "close", None)
    if close is not None:
        close()
    gc.collect()


@dataclass(frozen=True, slots=True)
class _Place:
    """A contender's class, and what it loads."""

    kind: type[Contender]
    job: Job

    def contender(self, mode: Mode | None) -> Contender:
        """The contender for a mode, or for what is the same in all."""
        wanted = MODES[mode] if mode else self.kind.orders
        return self.kind(replace(self.job, order=next(order for order in wanted if order in self.kind.orders)))


def _perform(place: _Place, order: dict[str, Any]) -> dict[str, Any]:
    """Do one thing that was asked for."""
    contender = place.contender(order.get("mode"))
    if order["op"] == "prepare":
        began = time.perf_counter()
        contender.prepare(contender.open_source())
        return {"seconds": time.perf_counter() - began}
    if order["op"] == "files":
        return {"files": [str(path) for path in contender.files()]}
    if order["op"] == "check":
        return check(contender, np.load(place.job.source.with_suffix(".hashes.npy")))
    return trial(contender, order["warm_s"], order["seconds"])


def _begin(order: dict[str, Any]) -> tuple[_Place, dict[str, Any]]:
    kind, workload = load(order["name"]), Workload.from_json(order["workload"])
    job = Job(
        folder=Path(order["folder"]),
        source=Path(order["source"]),
        shape=workload.shape,
        dtype=workload.dtype,
        samples=workload.samples,
        batch_size=workload.batch_size,
        order="full",
        device=_CPU,
        workers=_WORKERS,
    )
    found = about(order["name"], _CPU, _WORKERS)
    return _Place(kind, job), found | {
        "shuffle": kind.shuffle or "full",
        "modes": [mode for mode, orders in MODES.items() if set(orders) & set(kind.orders)],
        "owns_data": kind(job).owns_data,
    }


def main() -> None:
    """Serve until the input ends."""
    serve(_begin, _perform)


if __name__ == "__main__":
    main()
