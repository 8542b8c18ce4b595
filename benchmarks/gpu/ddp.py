"""DistributedDataParallel on one GPU and on several, on batches of a loader and on one batch that stays.

    python -m benchmarks.gpu.ddp --out benchmarks/results/gpu-ddp.json
    python -m benchmarks.gpu.ddp --out ddp.json --device cpu --small --bytes 1MiB --rounds 2 --seconds-per-trial 0.1

Scaling is images a second of all ranks over those of one rank alone. What the loader takes of it shows beside the same
steps on a batch that stays in memory. One epoch is trained before, whose indices have to be each sample's once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import gdsload
from benchmarks.gpu.ranks import Ranks, started, world_size_of
from benchmarks.gpu.resnet import ResNet
from benchmarks.gpu.shapes import KINDS, Kind, case_parser
from benchmarks.gpu.suite.trial import synchronise
from benchmarks.record import head, publish, ratio, spread
from benchmarks.table import short
from gdsload.system.units import parse_bytes

__all__ = ["MODELS", "check_union", "main", "render"]

MODELS = ("resnet18", "resnet50")
_IMAGES, _SMALL = KINDS["images"], Kind({"x": gdsload.Field("uint8", (3, 32, 32))})
_BATCH, _SMALL_BATCH, _LEAST_STEPS = 256, 4, 2
_WAYS = ("alone", "loaded")


class _Trainer:
    """A rank's end of the benchmark; see `ranks.started`."""

    def __init__(self, folder: Path, kind: str, rank: int, world_size: int) -> None:
        self._folder, self._world_size = folder, world_size
        self._device = torch.device("cpu") if kind == "cpu" else torch.device(kind, rank)
        if kind == "cuda":
            torch.cuda.set_device(self._device)
        else:
            torch.set_num_threads(1)
        backend, meet = "gloo" if kind == "cpu" else "nccl", f"file://{folder}/meet-{world_size}"
        dist.init_process_group(backend, init_method=meet, rank=rank, world_size=world_size)
        self._loader: gdsload.DataLoader
        self._step: ResNet
        self._kept: torch.Tensor
        self._batches: Iterator[torch.Tensor]

    def open(self, model: str, batch_size: int) -> dict[str, Any]:
        """Train an epoch; says which samples it was of, each that counts once."""
        torch.manual_seed(0)
        index = [self._device.index] if self._device.type == "cuda" else None
        wrap = partial(nn.parallel.DistributedDataParallel, device_ids=index)
        self._step = ResNet(model, self._device, wrap)
        self._loader = gdsload.DataLoader(
            self._folder / "images", batch_size, "full", device=self._device, with_index=True, with_real=True
        )
        seen: list[int] = []
        for batch in self._loader:
            seen += batch["index"][batch["real"].cpu()].tolist()
            if len(batch["x"]) > 1:  # of a single tiny image nothing can be normalised
                self._step(batch["x"])
            if len(batch["x"]) == batch_size:
                self._kept = batch["x"]
        self._kept, self._batches = self._kept.clone(), self._endless()
        return {"seen": seen, "samples": len(gdsload.ShardDataset(self._folder / "images"))}

    def _endless(self) -> Iterator[torch.Tensor]:
        while True:
            for batch in self._loader:
                if len(batch["x"]) == len(self._kept):
                    yield batch["x"]

    def trial(self, way: str, steps: int) -> dict[str, Any]:
        """As many steps; images a second of all ranks, and the loader's share of the time."""
        batches = iter(lambda: self._kept, None) if way == "alone" else self._batches
        self._step(next(batches))
        synchronise(self._device)
        dist.barrier()
        waited, start = self._loader.stats.host_wait_s, time.perf_counter()
        for _ in range(steps):
            self._step(next(batches))
        synchronise(self._device)
        took = time.perf_counter() - start
        images = steps * len(self._kept) * self._world_size
        return {"s": took, "images_s": images / took, "stall": (self._loader.stats.host_wait_s - waited) / took}

    def close(self) -> dict[str, Any]:
        """Close the loader; says which paths its bytes took."""
        paths = self._loader.backend.bytes_by_path
        self._loader.close()
        return {"bytes_by_path": paths}

    def end(self) -> dict[str, Any]:
        """Leave the others."""
        dist.destroy_process_group()
        return {}


def check_union(answers: list[dict[str, Any]]) -> int:
    """Number of samples of an epoch.

    Raises:
        RuntimeError: if not every one of them came once.
    """
    seen = sorted(number for answer in answers for number in answer["seen"])
    samples = int(answers[0]["samples"])
    if seen != list(range(samples)):
        raise RuntimeError(f"an epoch of {samples} samples had {len(seen)}, {len(set(seen))} different ones")
    return samples


def _measured(model: str, worlds: dict[int, Ranks], batch_size: int, rounds: int, seconds: float) -> dict[str, Any]:
    """A model's trials in all worlds. A trial's numbers are those of the slowest rank."""
    samples = [check_union(ranks.tell("open", model, batch_size)) for ranks in worlds.values()]
    tried = worlds[1].tell("trial", "alone", _LEAST_STEPS)[0]["s"]
    steps = max(round(seconds / tried * _LEAST_STEPS), _LEAST_STEPS)
    trials: dict[str, dict[str, list[dict[str, Any]]]] = {str(size): {way: [] for way in _WAYS} for size in worlds}
    for _ in range(rounds):
        for size, ranks in worlds.items():
            for way in _WAYS:
                found = ranks.tell("trial", way, steps)
                trials[str(size)][way].append(min(found, key=lambda one: one["images_s"]))
    paths = {str(size): ranks.tell("close")[0]["bytes_by_path"] for size, ranks in worlds.items()}
    most = str(max(worlds))

    def rates(size: str, way: str) -> list[float]:
        return [trial["images_s"] for trial in trials[size][way]]

    return {
        "name": model,
        "samples": samples[0],
        "steps": steps,
        "trials": trials,
        "bytes_by_path": paths,
        "images_s": {size: {way: spread(rates(size, way)) for way in _WAYS} for size in trials},
        "stall": {size: spread([trial["stall"] for trial in trials[size]["loaded"]]) for size in trials},
        "scaling": {way: ratio(rates(most, way), rates("1", way)) for way in _WAYS},
        "loaded_over_alone": {size: ratio(rates(size, "loaded"), rates(size, "alone")) for size in trials},
    }


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = case_parser("benchmarks.gpu.ddp", "training on one GPU and on several", list(MODELS))
    parser.add_argument("--world-size", type=int, help="ranks (default: the GPUs; 2 on the CPU)")
    parser.add_argument("--seconds-per-trial", type=float, default=1.5, help="timed seconds, about (default: 1.5)")
    parser.add_argument("--bytes", default="2GiB", help="of images of 3×224×224 (default: 2GiB)")
    parser.add_argument("--small", action="store_true", help="tiny images in tiny batches: a smoke test")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write the record."""
    options = _parsed(arguments)
    device = torch.device(options.device)
    world_size = world_size_of(options)
    models = [model for model in MODELS if not options.cases or model in options.cases]
    images, batch_size = (_SMALL, _SMALL_BATCH) if options.small else (_IMAGES, _BATCH)
    found = []
    with tempfile.TemporaryDirectory(prefix="gdsload-bench-", dir=options.work_dir) as name, ExitStack() as stack:
        images.write(Path(name) / "images", parse_bytes(options.bytes, "--bytes"))
        worlds = {
            size: stack.enter_context(started(_Trainer, Path(name), device.type, size))
            for size in sorted({1, world_size})
        }
        for model in models:
            found.append(_measured(model, worlds, batch_size, options.rounds, options.seconds_per_trial))
            print(f"{model}: done", file=sys.stderr, flush=True)
        for ranks in worlds.values():
            ranks.tell("end")
    return publish(
        head("benchmarks.gpu.ddp", arguments, device),
        options,
        render,
        small=options.small,
        world_size=world_size,
        batch_size=batch_size,
        cache="all files were written just before, and read once: they are in the page cache",
        union="each epoch that was checked had every sample once, all ranks together",
        cases=found,
    )


def render(record: dict[str, Any]) -> str:
    """The table of a record."""
    where, most = record["machine"], str(record["world_size"])
    on = f"{most} × {where.get('gpu', where['cpu'])}, {where['cores']} cores, torch {record['versions']['torch']}"
    lines = [
        *(["Small: these numbers mean nothing."] if record["small"] else []),
        f"{on}, {record['date'][:10]}; out of the page cache, fully shuffled, {record['batch_size']} images a rank.",
        f"Median (quartiles) of {record['rounds']} rounds; the union of an epoch's samples was exact.",
        "",
        f"| model | images/s, 1 rank | {most} ranks | scaling | on a batch that stays | loaded over that | stall |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for entry in record["cases"]:
        rates, over = entry["images_s"], entry["scaling"]["loaded"]
        lines.append(
            f"| {entry['name']} | {short(rates['1']['loaded']['median'])} | {short(rates[most]['loaded']['median'])} "
            f"| {over['median']:.3f} ({over['q1']:.3f}–{over['q3']:.3f}) "
            f"| {entry['scaling']['alone']['median']:.3f} | {entry['loaded_over_alone'][most]['median']:.4f} "
            f"| {entry['stall'][most]['median']:.4f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
