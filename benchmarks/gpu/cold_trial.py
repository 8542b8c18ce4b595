"""One trial of a cold start, in a process that has never opened the dataset: `benchmarks.gpu.cold_start` runs it.

Reads an order from standard input, and writes what it found to the file that the order names.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gdsload
from benchmarks.contenders.base import spans
from benchmarks.contenders.torch_loader import as_is
from benchmarks.gpu.suite.arrival import copied
from benchmarks.images import OPTIONS
from gdsload.tools.bench.cache_state import drop, fill, look
from gdsload.tools.bench.rows import synchronise
from gdsload.transforms import DecodeImage

__all__ = ["DIFFERENT", "EPOCHS", "FORMS", "GDSLOAD", "check"]

DIFFERENT = 256
"""JPEGs that differ; further ones are these again."""

EPOCHS = 3
"""Epochs of a trial."""
_HALF = "half"
GDSLOAD: dict[str, dict[str, Any]] = {
    "gdsload": {},
    "gdsload-host": {"backend": "host"},
    "gdsload-none": {"cache": "none"},
    "gdsload-half": {"memory": _HALF},
    "gdsload-auto": {"cache": "auto"},
    "gdsload-offsets": {"ragged": "offsets"},
}
"""Options of gdsload's loaders by name; the first one has default options, and with `_HALF` half of the files'
bytes may be registered, as on a machine that has no memory for more."""


class _Rows(torch.utils.data.Dataset[Any]):
    """Rows of one file, a batch at a time, each row by one `preadv` into the batch: the best form for cold files.

    Args:
        file: the rows, one after the other.
        bounds: the first byte of each row, and the end of the last one.
        pinned: whether batches are in pinned memory.
    """

    def __init__(self, file: str, bounds: np.ndarray[Any, Any], *, pinned: bool) -> None:
        self._file, self._bounds, self._pinned = file, bounds, pinned
        self._fd: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        if self._fd is None or self._fd[0] != os.getpid():  # each worker process opens the file
            self._fd = os.getpid(), os.open(self._file, os.O_RDONLY)
        low, high = self._bounds[indices], self._bounds[np.asarray(indices) + 1]
        ends = np.cumsum(high - low)
        out = torch.empty(int(ends[-1]), dtype=torch.uint8, pin_memory=self._pinned)
        memory = memoryview(out.numpy().data)
        for offset, end, size in zip(low.tolist(), ends.tolist(), (high - low).tolist(), strict=True):
            os.preadv(self._fd[1], [memory[end - size : end]], offset)
        return out


Epoch = Callable[[], Iterator[Any]]
"""Makes an epoch of batches on the device."""


def _gdsload(order: dict[str, Any]) -> tuple[Epoch, Callable[[], dict[str, int]]]:
    loader = _loader(order)
    return lambda: iter(loader), lambda: dict(loader.backend.bytes_by_path)


def _loader(order: dict[str, Any]) -> gdsload.DataLoader:
    """A loader with the options of a form, or with default ones."""
    nbytes = sum(file.stat().st_size for file in Path(order["shards"]).glob("*.safetensors"))
    options: dict[str, Any] = {
        name: gdsload.Memory(registered=nbytes // 2) if value is _HALF else value
        for name, value in GDSLOAD.get(order["form"], {}).items()
    }
    if order["decoded"]:
        options["decode"] = {"x": OPTIONS if order["op"] == "epochs" else DecodeImage(size=224)}
    return gdsload.DataLoader(order["shards"], order["batch"], order["shuffle"], device=order["device"], **options)


def _torch(order: dict[str, Any]) -> tuple[Epoch, Callable[[], dict[str, int]]]:
    device = torch.device(order["device"])
    loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
        _Rows(order["rows"], np.load(order["bounds"]), pinned=False),
        order["batch"],
        shuffle=order["shuffle"] is not False,
        num_workers=order["workers"],
        persistent_workers=order["workers"] > 0,
        pin_memory=device.type == "cuda",
        collate_fn=as_is,
    )
    return lambda: copied(iter(loader), device), dict


def _spdl(order: dict[str, Any]) -> tuple[Epoch, Callable[[], dict[str, int]]]:
    builder = importlib.import_module("spdl.pipeline").PipelineBuilder
    device, bounds = torch.device(order["device"]), np.load(order["bounds"])
    rows = _Rows(order["rows"], bounds, pinned=device.type == "cuda")
    rows.__getitems__([0])  # opens the file

    def batches() -> Iterator[Any]:
        count, threads = len(rows), order["workers"]
        ids = np.random.default_rng().permutation(count) if order["shuffle"] is not False else np.arange(count)
        pipeline = (
            builder()
            .add_source([ids[low:high] for low, high in spans(count, order["batch"])])
            .pipe(rows.__getitems__, concurrency=threads, output_order="input")
            .add_sink(2 * threads)
            .build(num_threads=threads)
        )
        with pipeline.auto_stop():
            yield from pipeline

    return lambda: copied(batches(), device), dict


FORMS = {**dict.fromkeys(GDSLOAD, _gdsload), "torch": _torch, "spdl": _spdl}
"""Makes what is measured, by its name."""


def _epochs(order: dict[str, Any], files: list[str]) -> dict[str, Any]:
    """Three epochs from the first `iter` on, of files that are not in the page cache; and the hot rate if asked for."""
    device = torch.device(order["device"])
    torch.zeros(1, device=device)  # CUDA's own start is nobody's
    began = time.perf_counter()
    epoch, paths = FORMS[order["form"]](order)
    open_s = time.perf_counter() - began
    resident = [drop(files).share]
    found: dict[str, Any] = {"open_s": open_s, "first_batch_s": 0.0, "epoch_s": [], "paths": []}
    before = dict[str, int]()
    for number in range(EPOCHS):
        synchronise(device)
        began = time.perf_counter()
        for step, _batch in enumerate(epoch()):
            if number == step == 0:
                synchronise(device)
                found["first_batch_s"] = time.perf_counter() - began
        synchronise(device)
        found["epoch_s"].append(time.perf_counter() - began)
        now = paths()
        found["paths"].append({name: count - before.get(name, 0) for name, count in now.items()})
        before = now
        resident.append(look(files).share)
    return found | {"resident": resident} | ({"hot_s": _hot_s(order, files, device)} if order["hot"] else {})


def _hot_s(order: dict[str, Any], files: list[str], device: torch.device) -> float:
    """Seconds of the third epoch of a new loader with default options, of files that are in the page cache."""
    fill(files)
    with _loader({**order, "form": "gdsload"}) as loader:
        for _ in range(EPOCHS):
            synchronise(device)
            began = time.perf_counter()
            for _batch in loader:
                pass
            synchronise(device)
            seconds = time.perf_counter() - began
    return seconds


def check(order: dict[str, Any], files: list[str]) -> dict[str, Any]:
    """Compare every byte of two epochs with the rows: the first one cold. Of JPEGs, compare pixels with each other.

    Raises:
        RuntimeError: if a row is wrong, or does not come exactly once in an epoch.
    """
    if order["decoded"]:
        return _check_images(order, files)
    rows, bounds = np.memmap(order["rows"], np.uint8, "r"), np.load(order["bounds"])
    epoch, _ = _gdsload(order)
    drop(files)
    for _ in range(2):
        seen = np.zeros(len(bounds) - 1, np.int64)
        for batch in epoch():
            for number, right in _compared(batch["x"], rows, bounds):
                if not right:
                    raise RuntimeError(f"row {number} has other bytes than it should")
                seen[number] += 1
        if not (seen == 1).all():
            raise RuntimeError("an epoch is not the source's rows, each once")
    return {"rows": len(seen)}


def _compared(got: torch.Tensor, rows: Any, bounds: np.ndarray[Any, Any]) -> Iterator[tuple[int, bool]]:
    """The number of each row of a batch, and whether it has its bytes."""
    if not got.is_nested:
        values = got.cpu().numpy().reshape(len(got), -1)
        numbers = values[:, :8].copy().view(np.int64)[:, 0]
        right = (values == rows.reshape(-1, values.shape[1])[numbers]).all(axis=1)
        yield from zip(numbers.tolist(), right.tolist(), strict=True)
        return
    for one in got:
        row = one.cpu().numpy()
        number = int(row[:8].view(np.int64)[0])
        yield number, np.array_equal(row, rows[bounds[number] : bounds[number + 1]])


def _check_images(order: dict[str, Any], files: list[str]) -> dict[str, Any]:
    """See `check`: each number comes once in an epoch, and with the pixels that its JPEG has always."""
    epoch, _ = _gdsload(order)
    drop(files)
    known = dict[int, torch.Tensor]()
    for _ in range(2):
        numbers = []
        for batch in epoch():
            mine = batch["n"].tolist()
            for number, image in zip(mine, batch["x"], strict=True):
                if not torch.equal(known.setdefault(number % DIFFERENT, image), image):
                    raise RuntimeError(f"image {number} has other pixels than its JPEG had before")
            numbers += mine
        if sorted(numbers) != list(range(len(numbers))) or len(known) != min(DIFFERENT, len(numbers)):
            raise RuntimeError("an epoch is not the source's images, each once")
    if len({image.cpu().numpy().tobytes() for image in known.values()}) != len(known):
        raise RuntimeError("different JPEGs have the same pixels")
    return {"rows": len(numbers)}


def main() -> None:
    """Do what standard input asks for."""
    order = json.loads(sys.stdin.read())
    shards = sorted(str(file) for file in Path(order["shards"]).glob("*.safetensors"))
    files = shards if order["form"] in GDSLOAD else [order["rows"]]
    found = (_epochs if order["op"] == "epochs" else check)(order, files)
    Path(order["answer"]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
