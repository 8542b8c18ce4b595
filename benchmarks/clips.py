"""Windows of consecutive rows, as language models draw them from one long row of tokens.

    python -m benchmarks.clips
    python -m benchmarks.clips --device cuda --batches 8 64 512 --out clips.json

`gdsload.Windows` of 1025 tokens that begin at any token, in a full shuffle, beside the same number of windows that were
packed as rows of their own, and beside the three lines that people write: `np.memmap`, random begins, `torch.stack`,
and the copy to the device. All are out of the page cache, with default options; in each round each runs once, in turn.
The ratios are round by round, by the rates: medians, and quartiles in brackets. Before that, every byte of some batches
is compared with the tokens.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gdsload
from benchmarks.record import head, keep, ratio, spread
from gdsload.tools.bench.routes import synchronise

__all__ = ["main"]


def _memmap(tokens: np.ndarray[Any, Any], length: int, batch: int, device: torch.device) -> Iterator[torch.Tensor]:
    """Batches as a training script without a loader makes them."""
    while True:
        begins = np.random.default_rng().integers(0, len(tokens) - length, batch)
        yield torch.stack([torch.from_numpy(tokens[begin : begin + length].copy()) for begin in begins]).to(device)


def _endless(loader: gdsload.DataLoader) -> Iterator[torch.Tensor]:
    while True:
        for batch in loader:
            yield batch["tokens"]


def _check(windows: gdsload.Windows, tokens: np.ndarray[Any, Any], batch: int, device: torch.device) -> None:
    """Compare every byte of some batches.

    Raises:
        RuntimeError: if a window holds other tokens than it should.
    """
    with gdsload.DataLoader(windows, batch, "full", device=device, with_index=True) as loader:
        for found in itertools.islice(loader, 8):
            for row, number in zip(found["tokens"].cpu().numpy(), found["index"].tolist(), strict=True):
                begin = int(windows.starts[number])
                if not (row == tokens[begin : begin + len(row)]).all():
                    raise RuntimeError("a window holds other tokens than it should")


def _rate(batches: Iterator[Any], batch: int, seconds: float, device: torch.device) -> float:
    """Windows a second."""
    synchronise(device)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(8):
            next(batches)
            count += batch
    synchronise(device)
    return count / (time.perf_counter() - began)


def _case(folder: str, batch: int, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    tokens = np.load(f"{folder}/tokens.npy", mmap_mode="r")
    windows = gdsload.Windows(f"{folder}/tokens", options.length)
    _check(windows, tokens, batch, device)
    with (
        gdsload.DataLoader(windows, batch, "full", device=device) as ours,
        gdsload.DataLoader(f"{folder}/packed", batch, "full", device=device) as packed,
    ):
        runs = {
            "windows": _endless(ours), "packed": _endless(packed),
            "memmap": _memmap(tokens, options.length, batch, device),
        }  # fmt: skip
        rates: dict[str, list[float]] = {name: [] for name in runs}
        for batches in runs.values():
            _rate(batches, batch, options.settle_s, device)
        for _ in range(options.rounds):
            for name, batches in runs.items():
                rates[name].append(_rate(batches, batch, options.seconds, device))
        paths = dict(ours.backend.bytes_by_path)
    return {
        "batch": batch,
        "rates": {name: spread(found) for name, found in rates.items()},
        "to": {name: ratio(rates["windows"], rates[name]) for name in ("packed", "memmap")},
        "bytes_by_path": paths,
    }


def _line(case: dict[str, Any]) -> str:
    shown = "  ".join(f"{name} {found['median'] / 1e3:8.1f} k/s" for name, found in case["rates"].items())
    to = "  ".join(f"to {name} {x['median']:.2f} ({x['q1']:.2f}-{x['q3']:.2f})" for name, x in case["to"].items())
    return f"batch {case['batch']:4}  {shown}  {to}  {', '.join(case['bytes_by_path'])}"


def _write(folder: str, options: argparse.Namespace) -> None:
    tokens = np.random.default_rng(0).integers(0, 50_000, options.tokens, np.uint16)
    np.save(f"{folder}/tokens.npy", tokens)
    gdsload.convert({"tokens": tokens}, f"{folder}/tokens")
    rows = tokens[: len(tokens) // options.length * options.length].reshape(-1, options.length)
    gdsload.convert({"tokens": rows}, f"{folder}/packed")


def _measure(options: argparse.Namespace, device: torch.device, say: Callable[[str], None]) -> list[dict[str, Any]]:
    cases = []
    with tempfile.TemporaryDirectory(prefix="gdsload-bench-") as folder:
        _write(folder, options)
        for batch in options.batches:
            cases.append(_case(folder, batch, options, device))
            say(_line(cases[-1]))
    return cases


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print a line for each size of a batch."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clips", description="windows of consecutive tokens")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--length", type=int, default=1025)
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--seconds", type=float, default=0.7, help="of a trial")
    parser.add_argument("--settle-s", type=float, default=1.0, help="before them: until a GPU has shards registered")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=None, help="where the JSON record goes (default: nowhere)")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    begin = head("benchmarks.clips", arguments, device)
    print(begin["machine"], begin["versions"], sep="\n")
    cases = _measure(options, device, lambda line: print(line, flush=True))
    keep(begin, options, cases)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
