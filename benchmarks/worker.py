"""The process of one contender: told on its standard input what to do, one line of JSON at a time, it answers alike.

A contender never shares a process with another: libraries change thread pools, start methods and signal handlers.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.contenders import load
from benchmarks.contenders.base import Contender, Mode
from benchmarks.serving import serve
from benchmarks.workloads import Workload, hash_rows

__all__ = ["busy_cpu_s", "check", "close", "compare", "trial"]


def trial(contender: Contender, mode: Mode, warm_s: float, seconds: float) -> dict[str, float]:
    """Read epoch after epoch for a while and count.

    The clock runs from one batch to a later one, after a warm-up under full load: no batch that was fetched while
    nobody waited is counted beyond those that wait at the end. Starts of epochs in between are part of the time.
    """
    began = time.perf_counter()
    stream = contender.batches(mode, endless=True)
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


def check(contender: Contender, mode: Mode, expected: NDArray[np.uint64]) -> dict[str, Any]:
    """Read one epoch and compare its rows with the source's, by hash: how many are missing, repeated, or of neither."""
    found: list[NDArray[np.uint64]] = []
    view, batch_samples = False, 0
    stream = contender.batches(mode, endless=False)
    try:
        for batch in stream:
            rows = contender.rows(batch)
            _check_shape(rows, contender.workload)
            if not found:
                view, batch_samples = _is_file_view(rows, contender.source.parent), len(rows)
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
    """How many samples there are, and how many are missing, repeated, or of neither, in whatever order."""
    found = np.sort(hashes)
    if np.array_equal(found, np.sort(expected)):  # as it should be, and told far sooner than by what follows
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


def _check_shape(rows: NDArray[Any], workload: Workload) -> None:
    if rows.dtype != np.dtype(workload.dtype) or rows.shape[1:] != workload.shape:
        raise ValueError(f"a batch is {rows.dtype}{rows.shape}, not {workload.dtype} rows of {workload.shape}")


def _is_file_view(rows: NDArray[Any], folder: Path) -> bool:
    """Whether a batch is a window into a file of the data rather than memory of its own."""
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


def _perform(contender: Contender, order: dict[str, Any]) -> dict[str, Any]:
    """Do one thing that was asked for."""
    if order["op"] == "prepare":
        began = time.perf_counter()
        contender.prepare(contender.open_source())
        return {"seconds": time.perf_counter() - began}
    if order["op"] == "files":
        return {"files": [str(path) for path in contender.files()]}
    if order["op"] == "check":
        return check(contender, order["mode"], np.load(contender.source.with_suffix(".hashes.npy")))
    return trial(contender, order["mode"], order["warm_s"], order["seconds"])


def _begin(order: dict[str, Any]) -> tuple[Contender, dict[str, Any]]:
    kind, workload = load(order["name"]), Workload.from_json(order["workload"])
    contender = kind(Path(order["folder"]), Path(order["source"]), workload)
    return contender, {
        "title": kind.title,
        "package": kind.package,
        "version": contender.version,
        "settings": kind.settings,
        "shuffle": kind.shuffle,
        "modes": list(kind.modes),
        "owns_data": kind.owns_data,
    }


def main() -> None:
    """Serve until the input ends."""
    serve(_begin, _perform)


if __name__ == "__main__":
    main()
