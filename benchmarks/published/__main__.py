"""The access patterns of benchmarks that others publish, beside their own figures.

    python -m benchmarks.published --device cuda --work-dir /mnt/nvme --out benchmarks/results/published-gpu.json
    python -m benchmarks.published --json
    python -m benchmarks.published --patterns dlrm --bytes 256MiB

Three patterns: many narrow columns (DLRM-B200), large files read cold (unet3d-B200), and windows of frames
(stable-worldmodel). No figure is a result of the benchmark that its pattern is from; README.md has the doubts.

Each trial makes a new loader, fills the page cache with its files or drops them, and asks the kernel whether it did.
Hot, batches are counted for some seconds after some that are not; cold, one epoch from the first `iter` on. Where the
pattern computes, a second trial sleeps for so long after each batch, as the benchmark does: *computing* is the share
of the time that it slept. In the rounds of cold files, D is measured: the files in sequence with O_DIRECT. Before the
rounds, bytes of some batches are compared. Processor seconds are the whole machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, product, repeat
from pathlib import Path
from typing import Any

import torch

from benchmarks.folders import existing_folder
from benchmarks.gpu.free_drive.drives import Clock
from benchmarks.gpu.limits import DirectReads
from benchmarks.published.patterns import PATTERNS, Epochs, Pattern, files_of
from benchmarks.published.table import render
from benchmarks.record import head, save, spread
from benchmarks.worker import busy_cpu_s
from gdsload.system.units import parse_bytes
from gdsload.tools.bench.cache_state import drop, fill
from gdsload.tools.bench.rows import synchronise

__all__ = ["main", "render"]

_SHARES = {"dlrm": 0.25, "unet3d": 1.0, "windows": 0.25}
"""Of `--bytes`, by pattern."""


def _size(batch: Any) -> tuple[int, int]:
    """Samples and bytes of a batch."""
    if isinstance(batch, dict):
        sizes = [_size(value) for value in batch.values()]
        return sizes[0][0], sum(nbytes for _, nbytes in sizes)
    if isinstance(batch, tuple):  # values and offsets
        return len(batch[1]) - 1, batch[0].nbytes
    if isinstance(batch, list):
        return len(batch), sum(one.nbytes for one in batch)
    return len(batch), batch.nbytes


def _timed(epochs: Epochs, state: str, pace_s: float, options: argparse.Namespace, clock: Clock) -> dict[str, float]:
    """Count batches: of one epoch if files are cold, and else of some seconds after others that are not counted."""
    device = torch.device(options.device)
    batches: Iterator[Any] = iter(epochs) if state == "cold" else chain.from_iterable(repeat(epochs))
    if state == "hot":
        until = time.perf_counter() + options.settle_s
        while time.perf_counter() < until:
            next(batches)
    synchronise(device)
    samples = nbytes = steps = 0
    first_s, busy, began = 0.0, busy_cpu_s(), time.perf_counter()
    until = began + (options.cold_s if state == "cold" else options.seconds)
    for batch in batches:
        first_s = first_s or time.perf_counter() - began
        count, size = _size(batch)
        samples, nbytes, steps = samples + count, nbytes + size, steps + 1
        if pace_s:
            clock.wait(time.perf_counter() + pace_s)
        if time.perf_counter() > until:
            break
    synchronise(device)
    elapsed_s = time.perf_counter() - began
    return {
        "samples_s": samples / elapsed_s,
        "gb_s": nbytes / elapsed_s / 1e9,
        "cpu_s_per_gb": (busy_cpu_s() - busy) / (nbytes / 1e9),
        "first_batch_s": first_s,
        "computing": steps * pace_s / elapsed_s,
    }


def _trial(
    pattern: Pattern, name: str, state: str, pace_s: float, options: argparse.Namespace, clock: Clock
) -> dict[str, float]:
    """A new loader of a contender, over files that are in the page cache, or are not.

    Raises:
        RuntimeError: if the kernel says otherwise.
    """
    folder = options.folder / pattern.name / name
    files = files_of(folder)
    left = fill(files) if state == "hot" else drop(files)
    epochs = pattern.loaders[name](folder, torch.device(options.device), state, options.workers)
    try:
        if not (left.hot if state == "hot" else left.cold):
            raise RuntimeError(f"{pattern.name}, {name}: {left}; that is not {state}")
        return _timed(epochs, state, pace_s, options, clock)
    finally:
        getattr(epochs, "close", lambda: None)()


def _measured(pattern: Pattern, options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """All contenders of a pattern, in turns."""
    folder = options.folder / pattern.name
    folder.mkdir()
    pattern.write(folder, int(_SHARES[pattern.name] * parse_bytes(options.bytes, "--bytes")))
    pattern.check(folder, torch.device(options.device))
    names = [name for name in pattern.loaders if (folder / name).exists()]
    trials: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    loaders: dict[str, Any] = {name: {} for name in names}
    drive = []
    for _ in range(options.rounds):
        if "cold" in pattern.states:
            drive.append(_drive(folder / "gdsload"))
        for state, name in product(pattern.states, names):
            for form, pace_s in (("alone", 0.0), ("paced", pattern.compute_s)):
                if pace_s is None or "failed" in loaders[name]:
                    continue
                try:
                    found = _trial(pattern, name, state, pace_s, options, clock)
                except Exception as error:  # whatever a peer raises is its result
                    if name == "gdsload":
                        raise
                    loaders[name]["failed"] = f"{type(error).__name__}: {error}"
                else:
                    trials.setdefault((name, state, form), []).append(found)
    for (name, state, form), runs in trials.items():
        loaders[name].setdefault(state, {})[form] = {key: spread([run[key] for run in runs]) for key in runs[0]}
    return {
        "name": pattern.name,
        "batch": pattern.batch,
        "compute_s": pattern.compute_s,
        "bytes": sum(os.path.getsize(file) for file in files_of(folder / "gdsload")),
        **({"drive_gb_s": spread(drive)} if drive else {}),
        "loaders": loaders,
    }


def _drive(folder: Path) -> float:
    """D, in GB/s."""
    files = files_of(folder)
    reads = DirectReads([Path(file) for file in files], pinned=False)
    drop(files)
    began = time.perf_counter()
    return reads.run() / (time.perf_counter() - began) / 1e9


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print a table for each pattern."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published", description="patterns of public tables")
    names = [pattern.name for pattern in PATTERNS]
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--patterns", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--bytes", default="4GiB", help="of unet3d; a quarter of it of the others (default: 4GiB)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="of torch's loader")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.7, help="of a hot trial")
    parser.add_argument("--settle-s", type=float, default=1.0, help="before it, uncounted")
    parser.add_argument("--cold-s", type=float, default=4.0, help="of a cold trial at most")
    parser.add_argument("--work-dir", type=existing_folder, help="where the data go (default: the temporary folder)")
    parser.add_argument("--out", type=Path, help="where the JSON record goes (default: nowhere)")
    parser.add_argument("--json", action="store_true", help="print the record, and no tables")
    options = parser.parse_args(arguments)
    begin = head("benchmarks.published", arguments, torch.device(options.device))
    shown = {key: value for key, value in vars(options).items() if key not in ("work_dir", "out", "json")}
    record: dict[str, Any] = {**begin, "conditions": shown, "cases": []}
    clock = Clock()
    for pattern in PATTERNS:
        if pattern.name in options.patterns:
            with tempfile.TemporaryDirectory(prefix="gdsload-bench-", dir=options.work_dir) as folder:
                print(f"{pattern.name} …", file=sys.stderr, flush=True)
                options.folder = Path(folder)
                record["cases"].append(_measured(pattern, options, clock))
    if options.out is not None:
        save(record, options.out)
    print(json.dumps(record, indent=1) if options.json else render(record))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
