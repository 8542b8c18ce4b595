"""Windows of neighbouring rows: as language models draw them from one long row of tokens, or world models from videos.

    python -m benchmarks.clips
    python -m benchmarks.clips --device cuda --batches 8 64 512 --out clips.json
    python -m benchmarks.clips --frames 4000 --batches 64

`gdsload.Windows` of 1025 tokens that begin at any token, in a full shuffle, beside the same number of windows that were
packed as rows of their own, and beside the three lines that people write: `np.memmap`, random begins, `torch.stack`,
and the copy to the device.

With `--frames`, a window is every 5th of 20 frames of 224 x 224 x 3 bytes, and the actions of all 20: beside the same
lines, and torch's loader over an uncompressed HDF5 file with a chunk for each frame.

All are out of the page cache, with default options; in each round each runs once, in turn. The ratios are round by
round, by the rates: medians, and quartiles in brackets. Before that, every byte of some batches is compared.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gdsload
from benchmarks.record import head, keep, ratio, spread
from gdsload.tools.bench.rows import synchronise

__all__ = ["main"]


Arrays = dict[str, np.ndarray[Any, Any]]
PIXELS, ACTIONS = slice(0, 20, 5), slice(0, 20)
"""Offsets of a window's frames, and of its actions."""


def _memmap(
    arrays: Arrays, offsets: dict[str, slice], batch: int, device: torch.device
) -> Iterator[dict[str, torch.Tensor]]:
    """Batches as a training script without a loader makes them."""
    last = min(len(arrays[name]) - offset.stop for name, offset in offsets.items())
    while True:
        begins = np.random.default_rng().integers(0, last + 1, batch)
        yield {
            name: torch.stack([torch.from_numpy(_window(arrays[name], begin, offset).copy()) for begin in begins]).to(
                device
            )
            for name, offset in offsets.items()
        }


def _window(array: Any, begin: int, offset: slice) -> Any:
    return array[begin + offset.start : begin + offset.stop : offset.step]


def _endless(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


class Clips(torch.utils.data.Dataset[dict[str, Any]]):
    """Windows out of an HDF5 file, which each process opens for itself.

    Args:
        path: the file.
        count: how many windows there are.
    """

    def __init__(self, path: str, count: int) -> None:
        self._path, self._count = path, count
        self._file: Any = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._file is None:
            self._file = import_module("h5py").File(self._path)
        # Frame by frame: HDF5 takes 400 times as long for a slice with a step.
        frames = [self._file["pixels"][index + offset] for offset in range(PIXELS.start, PIXELS.stop, PIXELS.step)]
        return {"pixels": np.stack(frames), "action": _window(self._file["action"], index, ACTIONS)}


def _check(windows: gdsload.Windows, arrays: Arrays, batch: int, device: torch.device) -> None:
    """Compare every byte of some batches.

    Raises:
        RuntimeError: if a window holds something else than it should.
    """
    with gdsload.DataLoader(windows, batch, "full", device=device, with_index=True) as loader:
        for found in itertools.islice(loader, 8):
            starts = windows.starts[found["index"].numpy()]
            for name, offsets in windows.offsets.items():
                wanted = np.stack([arrays[name][start + np.array(offsets)] for start in starts])
                if found[name].cpu().numpy().tobytes() != wanted.tobytes():
                    raise RuntimeError("a window holds something else than it should")


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


def _tokens(folder: str, batch: int, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    arrays = {"tokens": np.load(f"{folder}/tokens.npy", mmap_mode="r")}
    windows = gdsload.Windows(f"{folder}/tokens", options.length)
    _check(windows, arrays, batch, device)
    with gdsload.DataLoader(f"{folder}/packed", batch, "full", device=device) as packed:
        rivals = {
            "packed": _endless(packed),
            "memmap": _memmap(arrays, {"tokens": slice(0, options.length)}, batch, device),
        }
        return _case(windows, rivals, batch, options, device)


def _frames(folder: str, batch: int, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    arrays = {name: np.load(f"{folder}/{name}.npy", mmap_mode="r") for name in ("pixels", "action")}
    windows = gdsload.Windows(f"{folder}/frames", offsets={"pixels": range(0, 20, 5), "action": range(20)})
    _check(windows, arrays, batch, device)
    hdf5: Any = torch.utils.data.DataLoader(
        Clips(f"{folder}/frames.h5", len(windows)), batch, shuffle=True, num_workers=options.workers,
        persistent_workers=options.workers > 0, pin_memory=device.type == "cuda",
    )  # fmt: skip
    rivals = {
        "hdf5": ({name: value.to(device) for name, value in found.items()} for found in _endless(hdf5)),
        "memmap": _memmap(arrays, {"pixels": PIXELS, "action": ACTIONS}, batch, device),
    }
    return _case(windows, rivals, batch, options, device)


def _case(
    windows: gdsload.Windows, rivals: dict[str, Any], batch: int, options: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    with gdsload.DataLoader(windows, batch, "full", device=device) as ours:
        runs = {"windows": _endless(ours), **rivals}
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
        "to": {name: ratio(rates["windows"], rates[name]) for name in rivals},
        "bytes_by_path": paths,
    }


def _line(case: dict[str, Any]) -> str:
    shown = "  ".join(f"{name} {found['median'] / 1e3:8.1f} k/s" for name, found in case["rates"].items())
    to = "  ".join(f"to {name} {x['median']:.2f} ({x['q1']:.2f}-{x['q3']:.2f})" for name, x in case["to"].items())
    return f"batch {case['batch']:4}  {shown}  {to}  {', '.join(case['bytes_by_path'])}"


def _write_tokens(folder: str, options: argparse.Namespace) -> None:
    tokens = np.random.default_rng(0).integers(0, 50_000, options.tokens, np.uint16)
    np.save(f"{folder}/tokens.npy", tokens)
    gdsload.convert({"tokens": tokens}, f"{folder}/tokens")
    rows = tokens[: len(tokens) // options.length * options.length].reshape(-1, options.length)
    gdsload.convert({"tokens": rows}, f"{folder}/packed")


def _write_frames(folder: str, options: argparse.Namespace) -> None:
    rng, count = np.random.default_rng(0), options.frames
    arrays: Arrays = {
        "pixels": rng.integers(0, 256, (count, 224, 224, 3), np.uint8),
        "action": rng.standard_normal((count, 2), np.float32),
    }
    gdsload.convert(arrays, f"{folder}/frames")
    with import_module("h5py").File(f"{folder}/frames.h5", "w") as file:
        for name, array in arrays.items():
            np.save(f"{folder}/{name}.npy", array)
            file.create_dataset(name, data=array, chunks=(1, *array.shape[1:]) if name == "pixels" else None)


def _measure(options: argparse.Namespace, device: torch.device, say: Callable[[str], None]) -> list[dict[str, Any]]:
    write, case = (_write_frames, _frames) if options.frames else (_write_tokens, _tokens)
    cases = []
    with tempfile.TemporaryDirectory(prefix="gdsload-bench-") as folder:
        write(folder, options)
        for batch in options.batches:
            cases.append(case(folder, batch, options, device))
            say(_line(cases[-1]))
    return cases


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print a line for each size of a batch."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clips", description="windows of tokens, or of frames")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--length", type=int, default=1025)
    parser.add_argument("--frames", type=int, default=0, help="so many frames, and no tokens")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="of torch's loader")
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
