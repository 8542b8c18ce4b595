"""Benchmark of samplers: the loader with one, beside its own shuffle and beside the sampler alone.

    python -m benchmarks.samplers
    python -m benchmarks.samplers --row-bytes 150528 --batch-size 64 --samples 16384
    python -m benchmarks.samplers --device cuda --row-bytes 4096 --batch-size 2048 --samples 1048576 --out samplers.json

Each trial is an epoch out of the page cache, timed from its first batch or index on: most samplers draw all at their
begin, when nobody has anything to do yet (the column "first"). In each round everything runs once, in turn; shown are
medians and quartiles. The last column is, round by round, the loader with the sampler to the slower of the other two.
Before that, every byte of an epoch of each loader is compared with the samples that its batches name; on a GPU, epochs
follow until all bytes come out of registered pages.
"""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, Subset, WeightedRandomSampler

import gdsload
from benchmarks.record import public, ratio, spread
from gdsload.tools.bench.bench_plan import machine, versions
from gdsload.tools.bench.rows import synchronise

__all__ = ["main"]

_MOST_EPOCHS = 20
"""Epochs after which all shards should be registered."""


def _given(samples: int, batch_size: int) -> dict[str, dict[str, Any]]:
    """The options of each loader, by name."""
    every: Any = range(samples)
    drawn = RandomSampler(every, generator=torch.Generator().manual_seed(1))
    each = {"batch_size": batch_size}
    return {
        "RandomSampler": {"sampler": drawn, **each},
        "WeightedRandomSampler": {"sampler": WeightedRandomSampler([1.0] * samples, samples), **each},
        "BatchSampler": {"batch_sampler": BatchSampler(drawn, batch_size, drop_last=False)},
        "a tensor": {"sampler": torch.randperm(samples), **each},
        "a function": {"sampler": functools.partial(_weighted, samples), **each},
    }


def _weighted(samples: int, epoch: int) -> torch.Tensor:
    return torch.multinomial(torch.ones(samples), samples, True, generator=torch.Generator().manual_seed(epoch))


def _run(samples: int, epoch: Iterable[Any], device: torch.device) -> tuple[float, float]:
    """An epoch that nobody looks at: seconds until its first batch, and samples a second from there on."""
    synchronise(device)
    began = time.perf_counter()
    iterator = iter(epoch)
    next(iterator)
    first = time.perf_counter()
    deque(iterator, maxlen=0)
    synchronise(device)
    return first - began, samples / (time.perf_counter() - first)


def _check(loader: gdsload.DataLoader) -> None:
    """Compare every byte of an epoch with what was written of the samples that its batches name.

    Raises:
        RuntimeError: if a sample is another.
    """
    for batch in loader:
        expected = (batch["index"] % 251).to(batch["x"].device, torch.uint8)
        if not (batch["x"] == expected[:, None]).all():
            raise RuntimeError("a batch holds other samples than it says")


def _settle(loader: gdsload.DataLoader, device: torch.device) -> None:
    """Run epochs until bytes come from where they will come from.

    Raises:
        RuntimeError: if they do not come out of registered pages.
    """
    for _ in range(_MOST_EPOCHS if device.type == "cuda" else 1):
        before = dict(loader.backend.bytes_by_path)
        deque(loader, maxlen=0)
        moved = {name for name, count in loader.backend.bytes_by_path.items() if count != before.get(name)}
        if device.type != "cuda" or moved == {"mapped"}:
            return
    raise RuntimeError(f"bytes came from {sorted(moved)}, not only out of registered pages")


def _trials(path: str, options: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Rates by what the loader is given: with it, of it alone, and of the loader's own shuffle."""
    made = _given(options.samples, options.batch_size)
    dataset, middle = gdsload.ShardDataset(path), options.samples // 2
    mixture = gdsload.Mix([Subset(dataset, range(middle)), Subset(dataset, range(middle, options.samples))], [0.7, 0.3])
    found: list[dict[str, Any]] = []

    def opened(stack: ExitStack, dataset: object = path, **given: Any) -> gdsload.DataLoader:
        with gdsload.DataLoader(dataset, device=device, with_index=True, **given) as checked:
            _check(checked)
        loader = stack.enter_context(gdsload.DataLoader(dataset, device=device, **given))
        _settle(loader, device)
        return loader

    with ExitStack() as stack:
        own = opened(stack, batch_size=options.batch_size, shuffle="full")
        for name, given in made.items():
            with ExitStack() as inner:
                alone: Any = given.get("sampler", given.get("batch_sampler"))
                runs: dict[str, Iterable[Any]] = {"with": opened(inner, **given), "full": own}
                runs |= {} if callable(alone) else {"alone": alone}
                found.append(_rounds(name, runs, options, device))
        with ExitStack() as inner:
            mixed = opened(inner, mixture, batch_size=options.batch_size, shuffle="full")
            found.append(_rounds("a mixture", {"with": mixed, "full": own}, options, device))
    return found


def _rounds(
    name: str, runs: dict[str, Iterable[Any]], options: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """Trials in turns."""
    entry: dict[str, Any] = {"name": name, "first_s": [], "with": [], "alone": [], "full": []}
    for number in range(options.rounds + 1):
        for kind, run in runs.items():
            first, rate = _run(options.samples, run, device)
            if number:  # the first round warms up
                entry[kind].append(rate)
            if number and kind == "with":
                entry["first_s"].append(first)
    slower = [min(pair) for pair in zip(entry["alone"] or entry["full"], entry["full"], strict=True)]
    return {**entry, "to_the_slower": ratio(entry["with"], slower)}


def _line(entry: dict[str, Any]) -> str:
    shown = {kind: spread(entry[kind])["median"] / 1e6 for kind in ("with", "alone", "full") if entry[kind]}
    speeds = "".join(f"{kind} {value:7.3f} M/s  " for kind, value in shown.items())
    first, to = spread(entry["first_s"])["median"] * 1e3, entry["to_the_slower"]
    compared = f"{to['median']:.2f} ({to['q1']:.2f}-{to['q3']:.2f})"
    return f"{entry['name']:28}{speeds}first {first:5.1f} ms  to the slower: {compared}"


def _write(path: str, samples: int, row_bytes: int) -> None:
    """Rows that hold their numbers, modulo 251, in each byte."""
    with gdsload.ShardWriter(path, {"x": gdsload.Field("uint8", (row_bytes,))}) as writer:
        for low in range(0, samples, 4096):
            numbers = np.arange(low, min(low + 4096, samples)) % 251
            writer.write_batch({"x": np.repeat(numbers.astype(np.uint8)[:, None], row_bytes, axis=1)})


def main(arguments: list[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.samplers", description="what a sampler costs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=400_000)
    parser.add_argument("--row-bytes", type=int, default=3072)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=None, help="where the JSON record goes (default: nowhere)")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    with tempfile.TemporaryDirectory(prefix="gdsload-bench-") as folder:
        _write(f"{folder}/shards", options.samples, options.row_bytes)
        entries = _trials(f"{folder}/shards", options, device)
    conditions = {name: value for name, value in vars(options).items() if name != "out"}
    record = {
        "format": 1,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": ["python", "-m", "benchmarks.samplers", *public(arguments or sys.argv[1:])],
        "machine": machine(device),
        "versions": versions(),
        "conditions": conditions,
        "samplers": entries,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(record["machine"], record["versions"], conditions, *map(_line, entries), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
