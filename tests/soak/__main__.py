"""Simulated trainings as a command: ``python -m tests.soak --seconds 3600``; exit code 1 if anything is wrong.

Each training follows from its seed: ``--processes 1 --training SEED`` repeats it, with the same --scale and --devices.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any


def damage(path: Path) -> None:
    """Change one byte in the middle of each shard."""
    for shard in path.glob("*.safetensors"):
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)


def collect(folder: Path, processes: list[Any]) -> dict[str, int]:
    """Wait for the processes, and add up what they have done."""
    total: Counter[str] = Counter(wrong=0)
    for number, process in enumerate(processes):
        process.join()
        found = json.loads((folder / f"{number}.json").read_text())
        if process.exitcode:
            sys.stderr.write(f"process {number} ended with exit code {process.exitcode}, in {found['doing']}\n")
            total["wrong"] += 1
        total.update(found["counts"])
        for name in ("descriptors", "memory"):  # that one process has more at the end
            total[name] = max(total[name], found[name])
    return total


def main() -> int:
    """Write the datasets, and have processes train with them."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--devices", help="such as cuda:0,cuda:1; default: all GPUs, or the CPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--training", type=int, nargs="+", metavar="SEED", help="these, each to its end, and no others")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the samples of all datasets, at most 1")
    parser.add_argument("--out", type=Path, help="a file for the figures")
    parser.add_argument("--break", dest="damage", action="store_true", help="damage all shards, which must be found")
    chosen = parser.parse_args()
    import torch

    from tests.soak.formula import KINDS, write
    from tests.soak.worker import work

    devices = chosen.devices.split(",") if chosen.devices else None
    devices = devices or [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        for kind in KINDS:
            if kind != "jpegs" or importlib.util.find_spec("PIL"):
                write(folder, kind, chosen.scale)
                if chosen.damage:
                    damage(folder / kind)
        context = multiprocessing.get_context("spawn")
        given = [(number, folder, devices[number % len(devices)], chosen) for number in range(chosen.processes)]
        processes = [context.Process(target=work, args=each) for each in given]
        for process in processes:
            process.start()
        total = collect(folder, processes)
    shown = {"seed": chosen.seed, "processes": chosen.processes, "devices": devices, "torch": torch.__version__}
    line = json.dumps({**shown, "seconds": round(time.monotonic() - begun), **dict(sorted(total.items()))})
    if chosen.out:
        chosen.out.write_text(line + "\n")
    sys.stdout.write(line + "\n")
    return min(total["wrong"], 1)


if __name__ == "__main__":
    sys.exit(main())
