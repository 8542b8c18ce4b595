"""The process of one contender: it writes the samples on command, and reports the time."""

from __future__ import annotations

import mmap
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.convert.data import Samples
from benchmarks.convert.writers import NAMES, Writer
from benchmarks.residency import files_under
from benchmarks.serving import serve
from benchmarks.worker import busy_cpu_s, compare
from benchmarks.workloads import hash_rows

__all__ = ["main"]

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, asm-generic/mman-common.h; Linux 5.14


def _begin(order: dict[str, Any]) -> tuple[tuple[Writer, Path], dict[str, Any]]:
    kind = NAMES[order["name"]]
    writer = kind(Path(order["source"]), Samples(**order["workload"]))
    about = {"title": kind.title, "package": kind.package, "version": writer.version, "settings": kind.settings}
    return (writer, Path(order["folder"]) / "out"), about


def _perform(contender: tuple[Writer, Path], order: dict[str, Any]) -> dict[str, Any]:
    writer, out = contender
    _touch_memory(writer.samples.nbytes + min(writer.samples.nbytes, 2 * 2**30))
    answer = _timed(writer, out)
    if order["op"] == "check":
        hashes = [hash_rows(rows) for rows in writer.rows(out)]
        answer |= compare(np.concatenate(hashes), np.load(writer.source.with_suffix(".hashes.npy")))
    shutil.rmtree(out)
    return answer


def _touch_memory(nbytes: int) -> None:
    """Have memory that is free at hand: a virtual machine may have given it to its host, and gets it back slowly.

    Without this, the contender after a pause pays for it, which can take longer than the writing.
    """
    with mmap.mmap(-1, nbytes) as memory:
        memory.madvise(_POPULATE_WRITE)


def _timed(writer: Writer, out: Path) -> dict[str, Any]:
    """Write everything, until all of it is on the disk: who has not synced a file himself has it done for him."""
    busy, began = busy_cpu_s(), time.perf_counter()
    writer.write(out)
    wrote = time.perf_counter()
    files = files_under(out)
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    ended = time.perf_counter()
    return {
        "seconds": ended - began,
        "sync_s": ended - wrote,
        "busy_cores": (busy_cpu_s() - busy) / (ended - began),
        "written_bytes": sum(file.stat().st_size for file in files),
    }


def main() -> None:
    """Serve until the input ends."""
    serve(_begin, _perform)


if __name__ == "__main__":
    main()
