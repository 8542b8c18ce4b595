"""What a sampler costs: the loader with it, beside its own shuffle and beside the sampler alone.

    python -m benchmarks.samplers
    python -m benchmarks.samplers --row-bytes 150528 --batch-size 64 --samples 16384

Each trial is an epoch out of the page cache, timed from its first batch or index on: most samplers draw all at their
begin, when nobody has anything to do yet (the column "first"). In each round everything runs once, in turn; shown are
medians and quartiles. The last column is, round by round, the loader with the sampler to the slower of the other two.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler

import gdsload
from benchmarks.record import machine, ratio, spread, versions

__all__ = ["main"]


def _samplers(samples: int, batch_size: int) -> dict[str, dict[str, Any]]:
    """What the loader is given, by name."""
    every: Any = range(samples)
    drawn = RandomSampler(every, generator=torch.Generator().manual_seed(1))
    return {
        "RandomSampler": {"sampler": drawn},
        "RandomSampler, replacement": {"sampler": RandomSampler(every, replacement=True)},
        "WeightedRandomSampler": {"sampler": WeightedRandomSampler([1.0] * samples, samples)},
        "DistributedSampler": {"sampler": DistributedSampler(every, 1, 0)},
        "BatchSampler": {"batch_sampler": BatchSampler(drawn, batch_size, drop_last=False)},
        "a tensor": {"sampler": torch.randperm(samples)},
    }


def _run(samples: int, epoch: Iterable[Any]) -> tuple[float, float]:
    """An epoch that nobody looks at: seconds until its first batch, and samples a second from there on."""
    began = time.perf_counter()
    iterator = iter(epoch)
    next(iterator)
    first = time.perf_counter()
    deque(iterator, maxlen=0)
    return first - began, samples / (time.perf_counter() - first)


def _trials(folder: str, options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Rates by sampler: with it, of it alone, and of the loader's own shuffle."""
    batch_size = options.batch_size
    made = _samplers(options.samples, batch_size)
    own = gdsload.DataLoader(folder, batch_size, "full", device="cpu", tuned=False)
    found: dict[str, dict[str, list[float]]] = {
        name: {"with": [], "alone": [], "full": [], "first": []} for name in made
    }
    for name, given in made.items():
        size = {} if "batch_sampler" in given else {"batch_size": batch_size}
        with gdsload.DataLoader(folder, **size, device="cpu", tuned=False, **given) as loader:
            runs: dict[str, Iterable[Any]] = {"with": loader, "alone": next(iter(given.values())), "full": own}
            for number in range(options.rounds + 1):
                for kind, run in runs.items():
                    first, rate = _run(options.samples, run)
                    if number:  # the first round warms up
                        found[name][kind].append(rate)
                    if number and kind == "with":
                        found[name]["first"].append(first)
    own.close()
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.samplers", description="what a sampler costs")
    parser.add_argument("--samples", type=int, default=400_000)
    parser.add_argument("--row-bytes", type=int, default=3072)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gdsload-bench-") as folder:
        path = f"{folder}/shards"
        with gdsload.ShardWriter(path, {"x": gdsload.Field("uint8", (options.row_bytes,))}) as writer:
            for low in range(0, options.samples, 4096):
                rows = min(4096, options.samples - low)
                writer.write_batch({"x": np.full((rows, options.row_bytes), low % 251, np.uint8)})
        found = _trials(path, options)
    print(machine(), versions(), vars(options), sep="\n")
    for name, rates in found.items():
        slower = [min(pair) for pair in zip(rates["alone"], rates["full"], strict=True)]
        first = spread(rates.pop("first"))["median"]
        shown = {kind: spread(values) for kind, values in rates.items()}
        compared = ratio(rates["with"], slower)
        speeds = "".join(f"{kind} {value['median'] / 1e6:7.3f} M/s  " for kind, value in shown.items())
        to = f"{compared['median']:.2f} ({compared['q1']:.2f}-{compared['q3']:.2f})"
        print(f"{name:28}{speeds}first {first * 1e3:5.1f} ms  to the slower: {to}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
