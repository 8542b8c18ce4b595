"""Ranks that get the same batches: all of them read everything, beside each reads a part and they exchange them.

    python -m benchmarks.gpu.fan_out --out benchmarks/results/gpu-fan-out.json
    python -m benchmarks.gpu.fan_out --out fan-out.json --device cpu --bytes 64MiB

All ranks are peers of tensor parallelism. Both loaders of a case are open and warm all the time, and take turns; before
that, batches of both are compared with those of the CPU, byte by byte, at every rank.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import gdsload
from benchmarks.gpu.ranks import Ranks, chosen, images_written, started, world_size_of
from benchmarks.gpu.shapes import Case, case_parser
from benchmarks.gpu.suite.trial import cpu_s, synchronise
from benchmarks.record import head, publish, ratio, spread
from gdsload.tools.bench.cache_state import drop

__all__ = ["CASES", "main", "render"]

_KIND, _WAYS, _MOST_WARM_S = "images", ("all", "shared"), 15.0
CASES = (
    Case("mapped-full", _KIND, 256, "full"),
    Case("mapped-full-32", _KIND, 32, "full"),
    Case("bounce-full", _KIND, 256, "full", {"backend": "bounce"}),
    Case("bounce-cold", _KIND, 256, "full", {"backend": "bounce"}),
)
"""Those called cold begin each trial with files that are not in the page cache, which ``bounce`` reads past it."""


class _Peer:
    """A rank's end of the benchmark; see `ranks.started`."""

    def __init__(self, folder: Path, kind: str, rank: int, world_size: int) -> None:
        self._folder, self._rank, self._kind = folder, rank, kind
        self._device = torch.device("cpu") if kind == "cpu" else torch.device(kind, rank)
        if kind == "cuda":
            torch.cuda.set_device(self._device)
        backend = "gloo" if kind == "cpu" else "nccl"
        dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=world_size)
        self._mesh = init_device_mesh(kind, (world_size,), mesh_dim_names=("tp",))
        self._files = [str(path) for path in (folder / "full" / _KIND).glob("*.safetensors")]
        self._loaders: dict[str, gdsload.DataLoader] = {}

    def _open(self, case: Case, folder: str, way: str) -> gdsload.DataLoader:
        return case.open(self._folder / folder, self._device, mesh=self._mesh, fan_out=way == "shared")

    def open(self, case: Case) -> dict[str, Any]:
        """Compare the bytes of a case, and open its loaders."""
        for way in _WAYS:
            plain = gdsload.DataLoader(
                self._folder / "small" / _KIND, case.batch_size, case.shuffle, device="cpu", rank=0, world_size=1
            )
            loader = self._open(case, "small", way)
            for _ in range(2):
                for found, wanted in zip(loader, plain, strict=True):
                    if not torch.equal(found["x"].cpu(), wanted["x"]):
                        raise RuntimeError(f"{case.name}, {way}: a batch is not that of the CPU")
            loader.close()
        self._loaders = {way: self._open(case, "full", way) for way in _WAYS}
        return {}

    def warm(self) -> dict[str, Any]:
        """An epoch of each loader; says how many shards are registered then."""
        for loader in self._loaders.values():
            for _ in loader:
                pass
        synchronise(self._device)
        tiers = [tier for loader in self._loaders.values() for tier in loader.cache.tiers.values()]
        return {"registered": sum(tier.shards for tier in tiers)}

    def drop(self) -> dict[str, Any]:
        """Drop the samples from the page cache; says how much of them is left."""
        left = drop(self._files)
        return {"cold": left.cold, "left": str(left)}

    def trial(self, way: str, epochs: int) -> dict[str, Any]:
        """Whole epochs, until the GPU has ended all work."""
        loader = self._loaders[way]
        before, nbytes, cpu, start = dict(loader.backend.bytes_by_path), 0, cpu_s(), time.perf_counter()
        for _ in range(epochs):
            for batch in loader:
                nbytes += batch["x"].nbytes
        synchronise(self._device)
        took, read = time.perf_counter() - start, loader.backend.bytes_by_path
        return {
            "s": took,
            "gb_s": nbytes / took / 1e9,
            "cpu_s_per_gb": (cpu_s() - cpu) / (nbytes / 1e9),
            "bytes_by_path": {path: count - before.get(path, 0) for path, count in read.items()},
        }

    def close(self) -> dict[str, Any]:
        """Close the loaders of a case."""
        for loader in self._loaders.values():
            loader.close()
        return {}

    def joined(self) -> dict[str, Any]:
        """Whether GPUs reach each other's memory."""
        count = torch.cuda.device_count() if self._kind == "cuda" else 0
        others = [index for index in range(count) if index != self._rank]
        return {"peer_access": all(torch.cuda.can_device_access_peer(self._rank, index) for index in others)}

    def end(self) -> dict[str, Any]:
        """Leave the others."""
        dist.destroy_process_group()
        return {}


def _measured(case: Case, ranks: Ranks, rounds: int, seconds: float) -> dict[str, Any]:
    """A case's trials, and what follows from them. A trial's rate is that of the slowest rank."""
    cold = case.name.endswith("cold") and case.options
    ranks.tell("open", case)
    before, grown, began = -1, time.perf_counter(), time.perf_counter()
    while time.perf_counter() - grown < seconds and time.perf_counter() - began < _MOST_WARM_S:
        if (now := sum(found["registered"] for found in ranks.tell("warm"))) > before:
            before, grown = now, time.perf_counter()
    trials: dict[str, list[dict[str, Any]]] = {way: [] for way in _WAYS}
    epochs = 1
    if not cold:
        slowest = max(found["s"] for way in _WAYS for found in ranks.tell("trial", way, 1))
        epochs = max(round(seconds / slowest), 1)
    for number in range(rounds):
        for way in _WAYS if number % 2 == 0 else reversed(_WAYS):
            left = ranks.tell("drop", ranks=[0])[0] if cold else {"cold": False, "left": ""}
            if cold and not left["cold"]:
                raise RuntimeError(f"{case.name}: the files are not out of the page cache: {left['left']}")
            found = ranks.tell("trial", way, epochs)
            trials[way].append(min(found, key=lambda one: one["gb_s"]))
    ranks.tell("close")
    rates = {way: [trial["gb_s"] for trial in trials[way]] for way in _WAYS}
    return {
        "name": case.name,
        "batch_size": case.batch_size,
        "epochs": epochs,
        "trials": trials,
        **{way: spread(rates[way]) for way in _WAYS},
        "shared_over_all": ratio(rates["shared"], rates["all"]),
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write the record."""
    parser = case_parser("benchmarks.gpu.fan_out", "peers that share reading out", [case.name for case in CASES])
    parser.add_argument("--world-size", type=int, help="ranks (default: the GPUs; 2 on the CPU)")
    parser.add_argument("--seconds-per-trial", type=float, default=1.0, help="timed seconds, about (default: 1)")
    parser.add_argument("--bytes", default="4GiB", help="of images of 3×224×224 (default: 4GiB)")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    found, world_size = [], world_size_of(options)
    with images_written(options, small_bytes=2**25) as folder, started(_Peer, folder, device.type, world_size) as ranks:
        joined = ranks.tell("joined")[0]
        for case in chosen(CASES, options):
            found.append(_measured(case, ranks, options.rounds, options.seconds_per_trial))
            print(f"{case.name}: done", file=sys.stderr, flush=True)
        ranks.tell("end")
    return publish(
        head("benchmarks.gpu.fan_out", arguments, device),
        options,
        render,
        **joined,
        world_size=world_size,
        cache="files are in the page cache, but for cases called cold, which begin without any of them there",
        cases=found,
    )


def render(record: dict[str, Any]) -> str:
    """The table of a record."""
    where = record["machine"]
    on = f"{record['world_size']} × {where.get('gpu', where['cpu'])}, {where['cores']} cores"
    joined = "with" if record["peer_access"] else "without"
    lines = [
        f"{on}, torch {record['versions']['torch']}, {record['date'][:10]}; {joined} access to each other's memory.",
        f"GB/s of batches at the slowest rank, bytes compared before: median (quartiles) of {record['rounds']} rounds.",
        "",
        "| case | each reads all | each reads a part | shared over all | CPU seconds a GB, all | shared | paths |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for entry in record["cases"]:
        cpu = {way: spread([trial["cpu_s_per_gb"] for trial in entry["trials"][way]])["median"] for way in _WAYS}
        paths = sorted({path for way in _WAYS for one in entry["trials"][way] for path in one["bytes_by_path"]})
        rates = " | ".join(
            f"{entry[way]['median']:.2f} ({entry[way]['q1']:.2f}–{entry[way]['q3']:.2f})" for way in _WAYS
        )
        over = entry["shared_over_all"]
        lines.append(
            f"| {entry['name']}, batch {entry['batch_size']} | {rates} "
            f"| {over['median']:.3f} ({over['q1']:.3f}–{over['q3']:.3f}) | {cpu['all']:.3f} | {cpu['shared']:.3f} "
            f"| {', '.join(paths)} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
