"""Training loops of small batches and short steps: gdsload with default options beside torch's loader without workers.

    python -m benchmarks.small_steps
    python -m benchmarks.small_steps --rows 16 4096 --batches 1 64 --steps-ms 0.1 5 --out small-steps.json

A step is a fixed number of small matrix products of one thread, counted out beforehand to take so long alone; so what a
loader takes of the processor and of the interpreter lock makes the loop longer. Every loop is left early, after
`--loop-s` seconds of steps, and what it takes to end the epoch counts, too. Beside gdsload are torch's loader with
`num_workers=0` over a `np.memmap` of the same rows, by samples as it is mostly used, and by batches, its best form.
In each round every loop runs once, in turn, out of the page cache; the last columns are the ratios of gdsload's time to
that of each form of torch's, round by round: medians, and quartiles in brackets. Before that, every byte of an epoch
of each loader is checked.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler
from torch.utils.data import DataLoader as TorchLoader

import gdsload
from benchmarks.record import head, keep, ratio, spread

__all__ = ["main"]

_SAMPLES = 65_536
_PRODUCT = 64
"""Rows and columns of a product: some microseconds each, as of a small model's layers."""
_CONTENDERS = ("gdsload", "torch", "torch-batches")


class _Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Gives a row, or with a list of indices rows, of a memory-mapped array."""

    def __init__(self, rows: np.ndarray[Any, Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> dict[str, torch.Tensor]:
        return {"x": torch.from_numpy(np.array(self._rows[index]))}


def _write(folder: str, nbytes: int, samples: int) -> tuple[str, np.ndarray[Any, Any]]:
    """Rows that hold their number again and again, as shards and as a mapped array."""
    numbers = np.arange(samples, dtype=np.uint32)
    np.save(f"{folder}/rows-{nbytes}.npy", np.repeat(numbers[:, None], nbytes // 4, axis=1))
    rows = np.load(f"{folder}/rows-{nbytes}.npy", mmap_mode="r")
    gdsload.convert({"x": rows}, f"{folder}/shards-{nbytes}")
    return f"{folder}/shards-{nbytes}", rows


def _loaders(path: str, rows: np.ndarray[Any, Any], batch: int) -> dict[str, Iterable[Any]]:
    dataset = _Rows(rows)
    batches: Any = BatchSampler(RandomSampler(dataset), batch, drop_last=False)
    return {
        "gdsload": gdsload.DataLoader(path, batch, shuffle=True, device="cpu"),
        "torch": TorchLoader(dataset, batch, shuffle=True),
        "torch-batches": TorchLoader(dataset, batch_size=None, sampler=batches),
    }


def _check(loader: Iterable[Any], samples: int) -> None:
    """Compare every byte of an epoch.

    Raises:
        RuntimeError: if a byte is wrong, or a sample does not come exactly once.
    """
    found = torch.cat([batch["x"] for batch in loader]).view(torch.int32)
    if not (found == found[:, :1]).all() or found[:, 0].sort().values.tolist() != list(range(samples)):
        raise RuntimeError("an epoch is not the source's rows, each once")


def _products(step_s: float) -> int:
    """The number of products that take this many seconds."""
    one = torch.randn(_PRODUCT, _PRODUCT)
    times = []
    for _ in range(7):
        began = time.perf_counter()
        for _ in range(200):
            torch.mm(one, one)
        times.append((time.perf_counter() - began) / 200)
    return max(round(step_s / min(times)), 1)


def _loop(loader: Iterable[Any], steps: int, products: int) -> tuple[float, float]:
    """Seconds, and seconds of processors, for each step of a loop that is left after so many."""
    one = torch.randn(_PRODUCT, _PRODUCT)
    cpu, began = time.process_time(), time.perf_counter()
    done = 0
    while done < steps:  # one epoch may be shorter
        iterator = iter(loader)
        for _batch in itertools.islice(iterator, steps - done):
            for _ in range(products):
                torch.mm(one, one)
            done += 1
        del iterator
    return (time.perf_counter() - began) / steps, (time.process_time() - cpu) / steps


def _case(loaders: dict[str, Iterable[Any]], step_s: float, options: argparse.Namespace) -> dict[str, Any]:
    """The loops of one case in turns."""
    products = _products(step_s)
    steps = max(round(options.loop_s / step_s), 8)
    wall: dict[str, list[float]] = {name: [] for name in (*loaders, "steps alone")}
    cpu: dict[str, list[float]] = {name: [] for name in wall}
    alone: dict[str, Iterable[Any]] = {"steps alone": [None] * steps}
    for _ in range(options.rounds):
        for name, loader in (loaders | alone).items():
            took, busy = _loop(loader, steps, products)
            wall[name].append(took)
            cpu[name].append(busy)
    return {
        "step_ms": step_s * 1e3,
        "steps": steps,
        "wall_us": {name: spread([one * 1e6 for one in found]) for name, found in wall.items()},
        "cpu_us": {name: statistics.median(found) * 1e6 for name, found in cpu.items()},
        "to": {name: ratio(wall["gdsload"], wall[name]) for name in _CONTENDERS[1:]},
    }


def _line(case: dict[str, Any]) -> str:
    wall = "  ".join(f"{name} {found['median']:7.1f}" for name, found in case["wall_us"].items())
    to = "  ".join(f"to {name} {x['median']:.2f} ({x['q1']:.2f}-{x['q3']:.2f})" for name, x in case["to"].items())
    return f"{case['row_bytes']:5} B  batch {case['batch']:3}  step {case['step_ms']:4.1f} ms  us: {wall}  {to}"


def _measure(folder: str, options: argparse.Namespace, say: Callable[[str], None]) -> list[dict[str, Any]]:
    cases = []
    for nbytes in options.rows:
        path, rows = _write(folder, nbytes, options.samples)
        for batch in options.batches:
            loaders = _loaders(path, rows, batch)
            for loader in loaders.values():
                _check(loader, options.samples)
            for step_ms in options.steps_ms:
                case = {"row_bytes": nbytes, "batch": batch, **_case(loaders, step_ms / 1e3, options)}
                say(_line(case))
                cases.append(case)
    return cases


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print a line for each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_steps", description="loops of small batches")
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 256, 4096], help="bytes of a row")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64], help="rows of a batch")
    parser.add_argument("--steps-ms", type=float, nargs="+", default=[0.1, 1.0, 5.0], help="milliseconds of a step")
    parser.add_argument("--loop-s", type=float, default=0.3, help="seconds of steps in a loop")
    parser.add_argument("--samples", type=int, default=_SAMPLES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=None, help="where the JSON record goes (default: nowhere)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    begin = head("benchmarks.small_steps", arguments, torch.device("cpu"))
    print(begin["machine"], begin["versions"], sep="\n")
    with tempfile.TemporaryDirectory(prefix="gdsload-bench-") as folder:
        cases = _measure(folder, options, lambda line: print(line, flush=True))
    keep(begin, options, cases)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
