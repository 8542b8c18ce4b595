"""Ranks of one host, a GPU and a process each, beside one of them alone while the others rest.

    python -m benchmarks.gpu.ranks --out benchmarks/results/gpu-ranks.json
    python -m benchmarks.gpu.ranks --out ranks.json --device cpu --bytes 64MiB

Every rank has the loader of its share, open and warm, with its shards registered, all the time. In each round every
rank runs a trial by itself, and then all of them run one together. Copies out of pinned memory and reads out of the
page cache into it, without a loader, are measured alike: they say what the host allows.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import gdsload
from benchmarks.gpu.limits import PinnedCopies, PlainReads
from benchmarks.gpu.shapes import KINDS, Case, Loads, case_parser, compare
from benchmarks.gpu.suite.trial import cpu_s, synchronise
from benchmarks.record import head, publish, ratio, spread
from gdsload.system.units import parse_bytes

__all__ = ["CASES", "Rank", "Ranks", "main", "render", "started", "world_size_of"]

_KIND, _SMALL_BYTES, _PATIENCE_S = "images", 2**22, 300.0
CASES = (
    Case("in-order", _KIND, 256, False),
    Case("full", _KIND, 256, "full"),
    Case("block", _KIND, 256, "block"),
    Case("bounce-full", _KIND, 256, "full", {"backend": "bounce"}),
)
LIMITS = ("plain copies", "plain reads")
"""The limits of the host: copies of 256 MiB out of pinned memory, and reads of the files into pinned memory."""


class _Plain:
    """One of the `LIMITS`, in the place of a loader.

    Args:
        name: which.
        files: the files.
        device: the GPU.
        sample_bytes: bytes that count as a sample.
    """

    def __init__(self, name: str, files: list[Path], device: torch.device, sample_bytes: float) -> None:
        self._sample_bytes, self._nbytes = sample_bytes, sum(path.stat().st_size for path in files)
        self._copies = PinnedCopies(device) if name == "plain copies" else None
        self._reads = PlainReads(files, pinned=device.type == "cuda")

    def epoch(self) -> float:
        """Copy or read the bytes of all files; returns how many samples they are."""
        nbytes = self._reads.run() if self._copies is None else self._copies.run(self._nbytes)
        return nbytes / self._sample_bytes

    def registered(self) -> int:
        """The number of shards in tiers: none."""
        return 0

    def paths(self) -> dict[str, int]:
        """Bytes by path: not counted."""
        return {}

    def close(self) -> None:
        """Nothing is open."""


class Rank:
    """A rank's end of the benchmark.

    Args:
        folder: the samples.
        kind: the type of its device.
        rank: its number.
        world_size: number of ranks.
    """

    def __init__(self, folder: Path, kind: str, rank: int, world_size: int) -> None:
        self._folder, self._share = folder, {"ranks": (rank, world_size)}
        self._device = torch.device("cpu") if kind == "cpu" else torch.device(kind, rank)
        self._files = sorted((folder / "full" / _KIND).glob("*.safetensors"))
        nbytes = sum(path.stat().st_size for path in self._files)
        self._sample_bytes = nbytes / len(gdsload.ShardDataset(folder / "full" / _KIND))
        self._loads: Loads | _Plain
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def open(self, case: Case | str, warm_s: float) -> dict[str, Any]:
        """Compare the bytes of a case, open its loader, and read until nothing is registered any more."""
        if isinstance(case, str):
            self._loads = _Plain(case, self._files, self._device, self._sample_bytes)
        else:
            case = Case(case.name, case.kind, case.batch_size, case.shuffle, {**case.options, **self._share})
            compare(case, self._folder / "small", self._device)
            self._loads = Loads(case.open(self._folder / "full", self._device), 1)
        grown = time.perf_counter()
        before = 0  # shards that are registered; a rank in order needs but its own, so there is no number to wait for
        while time.perf_counter() - grown < warm_s:
            self._loads.epoch()
            if (now := self._loads.registered()) > before:
                before, grown = now, time.perf_counter()
        return {}

    def trial(self, seconds: float) -> dict[str, Any]:
        """Whole epochs of this rank's share, until the GPU has ended all work."""
        samples, cpu, start = 0.0, cpu_s(), time.perf_counter()
        while time.perf_counter() - start < seconds:
            samples += self._loads.epoch()
        synchronise(self._device)
        took, nbytes = time.perf_counter() - start, samples * self._sample_bytes
        return {"gb_s": nbytes / took / 1e9, "cpu_s_per_gb": (cpu_s() - cpu) / (nbytes / 1e9)}

    def close(self) -> dict[str, Any]:
        """Close the loader; says which paths its bytes took."""
        paths = self._loads.paths()
        self._loads.close()
        return {"bytes_by_path": paths}


def _serve(pipe: Connection, make: Callable[..., Any], *args: Any) -> None:
    """A rank's process: executes commands until there are no more."""
    try:
        rank = make(*args)
        while (order := pipe.recv()) is not None:
            pipe.send(getattr(rank, order[0])(*order[1:]))
    except Exception:
        pipe.send({"error": traceback.format_exc()})


class Ranks:
    """The processes, seen from outside."""

    def __init__(self, pipes: list[Connection]) -> None:
        self._pipes = pipes

    def __len__(self) -> int:
        return len(self._pipes)

    def tell(self, *order: Any, ranks: list[int] | None = None) -> list[dict[str, Any]]:
        """Have all ranks, or some, do the same at once, and wait for their answers.

        Raises:
            RuntimeError: if one failed or does not answer.
        """
        chosen = self._pipes if ranks is None else [self._pipes[rank] for rank in ranks]
        for pipe in chosen:
            pipe.send(order)
        answers = []
        for pipe in chosen:
            if not pipe.poll(_PATIENCE_S):
                raise RuntimeError(f"a rank did not answer within {_PATIENCE_S:.0f} s")
            answers.append(pipe.recv())
            if "error" in answers[-1]:
                raise RuntimeError(answers[-1]["error"])
        return answers


@contextmanager
def started(make: Callable[..., Any], folder: Path, kind: str, world_size: int) -> Iterator[Ranks]:
    """The processes of all ranks; they end with the context.

    Args:
        make: makes what does a rank's part, in its process, of the folder, the kind of device, rank and world size.
        folder: the samples.
        kind: the type of their devices.
        world_size: number of ranks.
    """
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(world_size)]
    processes = [
        context.Process(target=_serve, args=(there, make, folder, kind, rank, world_size), daemon=True)
        for rank, (_, there) in enumerate(pairs)
    ]
    for process in processes:
        process.start()
    try:
        yield Ranks([here for here, _ in pairs])
        for here, _ in pairs:
            here.send(None)
        for process in processes:
            process.join(_PATIENCE_S)
    finally:
        for process in processes:
            process.kill()


def world_size_of(options: argparse.Namespace) -> int:
    """The number of ranks that a command line asks for: by default the GPUs, or two on the CPU."""
    on_gpu = torch.device(options.device).type == "cuda"
    return int(options.world_size or (torch.cuda.device_count() if on_gpu else 2))


def _chosen(options: argparse.Namespace) -> list[Case | str]:
    """The limits, and the cases that a command line asks for and that its device can run."""
    on_gpu = torch.device(options.device).type == "cuda"
    every = [case for case in CASES if on_gpu or "backend" not in case.options]
    return [*LIMITS, *(case for case in every if not options.cases or case.name in options.cases)]


@contextmanager
def _images_written(options: argparse.Namespace) -> Iterator[Path]:
    """A folder of as many images as a command line asks for (`full`), and of a few to compare (`small`)."""
    with tempfile.TemporaryDirectory(prefix="gdsload-bench-", dir=options.work_dir) as name:
        folder, nbytes = Path(name), parse_bytes(options.bytes, "--bytes")
        KINDS[_KIND].write(folder / "full" / _KIND, nbytes)
        KINDS[_KIND].write(folder / "small" / _KIND, min(_SMALL_BYTES, nbytes), shards=3)
        yield folder


def _measured(case: Case | str, ranks: Ranks, rounds: int, seconds: float) -> dict[str, Any]:
    """A case's trials, and what follows from them."""
    ranks.tell("open", case, seconds)
    alone: list[list[dict[str, Any]]] = [[] for _ in range(len(ranks))]
    together: list[list[dict[str, Any]]] = [[] for _ in range(len(ranks))]
    for _ in range(rounds):
        for rank, trials in enumerate(alone):
            trials.extend(ranks.tell("trial", seconds, ranks=[rank]))
        for trials, trial in zip(together, ranks.tell("trial", seconds), strict=True):
            trials.append(trial)
    paths = [answer["bytes_by_path"] for answer in ranks.tell("close")]
    found = [
        {"alone": before, "together": beside, "bytes_by_path": by_path, "ratio": ratio(_rates(beside), _rates(before))}
        for before, beside, by_path in zip(alone, together, paths, strict=True)
    ]
    if isinstance(case, str):
        return {"name": case, "ranks": found}
    return {"name": f"{case.name}, batch {case.batch_size}", "ranks": found}


def _rates(trials: list[dict[str, Any]]) -> list[float]:
    return [trial["gb_s"] for trial in trials]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write the record."""
    parser = case_parser("benchmarks.gpu.ranks", "ranks beside one alone", [case.name for case in CASES])
    parser.add_argument("--world-size", type=int, help="ranks (default: the GPUs; 2 on the CPU)")
    parser.add_argument("--seconds-per-trial", type=float, default=2.0, help="timed seconds (default: 2)")
    parser.add_argument("--bytes", default="16GiB", help="of images of 3×224×224 (default: 16GiB)")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    found, world_size = [], world_size_of(options)
    with _images_written(options) as folder, started(Rank, folder, device.type, world_size) as ranks:
        for case in _chosen(options):
            found.append(_measured(case, ranks, options.rounds, options.seconds_per_trial))
            print(f"{found[-1]['name']}: done", file=sys.stderr, flush=True)
    begin = head("benchmarks.gpu.ranks", arguments, device)
    return publish(begin, options, render, world_size=world_size, seconds=options.seconds_per_trial, cases=found)


def render(record: dict[str, Any]) -> str:
    """The table of a record."""
    where = record["machine"]
    on = f"{record['world_size']} × {where.get('gpu', where['cpu'])}, {where['cores']} cores"
    lines = [
        f"{on}, torch {record['versions']['torch']}, {record['date'][:10]}; images out of the page cache.",
        f"Median (quartiles) of {record['rounds']} rounds, trials of {record['seconds']:g} s; bytes compared before.",
        "",
        "| case | rank | alone, GB/s | with the others, GB/s | ratio | CPU seconds a GB | bytes by path |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for entry in record["cases"]:
        for rank, found in enumerate(entry["ranks"]):
            alone, together = spread(_rates(found["alone"])), spread(_rates(found["together"]))
            over, cpu = found["ratio"], spread([trial["cpu_s_per_gb"] for trial in found["together"]])
            lines.append(
                f"| {entry['name']} | {rank} "
                f"| {alone['median']:.2f} ({alone['q1']:.2f}–{alone['q3']:.2f}) "
                f"| {together['median']:.2f} ({together['q1']:.2f}–{together['q3']:.2f}) "
                f"| {over['median']:.3f} ({over['q1']:.3f}–{over['q3']:.3f}) | {cpu['median']:.3f} "
                f"| {', '.join(found['bytes_by_path'])} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
