"""Training steps on batches of a loader, beside the same steps on one batch that stays in VRAM.

    python -m benchmarks.gpu.training --out benchmarks/results/gpu-training.json

What the loader costs a training run is the ratio of the two rates. Small networks are made to take a given part of what
the link can deliver; ResNets are what many people train.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gdsload
from benchmarks.gpu.free_drive.trials import link
from benchmarks.gpu.resnet import ResNet
from benchmarks.gpu.shapes import KINDS, Kind, case_parser
from benchmarks.gpu.suite.trial import synchronise
from benchmarks.gpu.suite.work import Network, seconds
from benchmarks.record import head, publish, ratio, spread
from benchmarks.table import short
from gdsload.system.units import parse_bytes

__all__ = ["CASES", "Case", "main", "render"]

Step = Callable[[torch.Tensor], None]
_LEAST_STEPS = 8
_IMAGES, _BATCH = KINDS["images"], 256
_SMALL, _SMALL_BATCH = Kind({"x": gdsload.Field("uint8", (3, 32, 32))}), 8


@dataclass(frozen=True, slots=True)
class Case:
    """One training run.

    Attributes:
        model: ``"network"``, or the name of a ResNet.
        backend: the loader's.
        of_p: bytes a second that a network takes, as a share of P.
    """

    model: str
    backend: str
    of_p: float = 0.0

    @property
    def name(self) -> str:
        """Its key."""
        return f"{self.model}{f'-{self.of_p:g}' if self.of_p else ''}-{self.backend}"


CASES = (
    Case("network", "auto", 0.5),
    Case("network", "auto", 0.4),
    Case("network", "bounce", 0.4),
    *(Case(model, backend) for model in ("resnet18", "resnet50") for backend in ("auto", "bounce")),
)


def _step(case: Case, batch: torch.Tensor, p: float) -> Step:
    """A step of a case's training on batches like this one, where the link gives so many GB/s."""
    if case.model == "network":
        return Network(batch, batch.nbytes / (case.of_p * p * 1e9))
    return ResNet(case.model, batch.device)


class _Entry:
    """A case, its loader, which is open and warm, its step, and its trials.

    Args:
        case: the case.
        folder: the images.
        device: the device.
        batch_size: images of a batch.
        p: GB/s of the link.
        wanted_s: about how long a trial takes.
    """

    def __init__(
        self, case: Case, folder: Path, device: torch.device, batch_size: int, p: float, wanted_s: float
    ) -> None:
        self.case, self.device = case, device
        options: dict[str, Any] = {} if device.type == "cpu" else {"backend": case.backend}
        self.loader = gdsload.DataLoader(folder, batch_size, "full", drop_last=True, device=device, **options)
        for batch in self.loader:
            kept = batch["x"]
        self._kept, self._batches = kept.clone(), self._endless()
        self.step = _step(case, self._kept, p)
        taken = partial(self._run, _LEAST_STEPS, iter(lambda: self._kept, None))
        taken()
        self.steps = max(round(wanted_s / seconds(device, taken) * _LEAST_STEPS), _LEAST_STEPS)
        self.alone: list[float] = []
        self.loaded: list[float] = []

    def _endless(self) -> Iterator[torch.Tensor]:
        while True:
            for batch in self.loader:
                yield batch["x"]

    def _run(self, steps: int, batches: Iterator[torch.Tensor]) -> None:
        for _ in range(steps):
            self.step(next(batches))

    def trial(self) -> None:
        """As many steps on the batch that stays, and on batches of the loader; images a second of each."""
        for found, batches in ((self.alone, iter(lambda: self._kept, None)), (self.loaded, self._batches)):
            self._run(2, batches)
            synchronise(self.device)
            found.append(self.steps * len(self._kept) / seconds(self.device, partial(self._run, self.steps, batches)))

    def to_json(self, p: float) -> dict[str, Any]:
        """As it goes into the record."""
        return {
            "name": self.case.name,
            "steps": self.steps,
            "images_s_alone": spread(self.alone),
            "images_s_loaded": spread(self.loaded),
            "loaded_over_alone": ratio(self.loaded, self.alone),
            "alone_of_p": spread([rate * self._kept[0].nbytes / (p * 1e9) for rate in self.alone]),
            "bytes_by_path": self.loader.backend.bytes_by_path,
        }

    def close(self) -> None:
        """Close the loader."""
        self.loader.close()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = case_parser("benchmarks.gpu.training", "what training loses", [case.name for case in CASES])
    parser.add_argument("--seconds-per-trial", type=float, default=1.0, help="timed seconds (default: 1)")
    parser.add_argument("--bytes", default="16GiB", help="of images of 3×224×224 (default: 16GiB)")
    parser.add_argument("--small", action="store_true", help="tiny images in tiny batches: a smoke test")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write the record."""
    options = parse(arguments)
    device, wanted_s = torch.device(options.device), options.seconds_per_trial
    cases = [case for case in CASES if not options.cases or case.name in options.cases]
    with tempfile.TemporaryDirectory(prefix="gdsload-bench-", dir=options.work_dir) as name:
        images, batch_size = (_SMALL, _SMALL_BATCH) if options.small else (_IMAGES, _BATCH)
        images.write(Path(name) / "images", parse_bytes(options.bytes, "--bytes"))
        p = link(device, 0.3)["gb_s"]
        found = []
        # One after the other: steps and loaders of all at once would not be what anybody runs.
        for case in cases:
            entry = _Entry(case, Path(name) / "images", device, batch_size, p, wanted_s)
            try:
                for _ in range(options.rounds):
                    entry.trial()
            finally:
                entry.close()
            found.append(entry.to_json(p))
            print(f"{case.name}: done", file=sys.stderr, flush=True)
    begin = head("benchmarks.gpu.training", arguments, device)
    return publish(begin, options, render, small=options.small, p_gb_s=p, cases=found)


def render(record: dict[str, Any]) -> str:
    """The table of a record."""
    where = record["machine"]
    on = f"{where.get('gpu', where['cpu'])}, {where['cores']} cores, torch {record['versions']['torch']}"
    lines = [
        *(["Small: these numbers mean nothing."] if record["small"] else []),
        f"{on}, {record['date'][:10]}; out of the page cache, fully shuffled. P: {record['p_gb_s']:.1f} GB/s.",
        f"Median (quartiles) of {record['rounds']} rounds, each with the same steps on one batch in memory.",
        "",
        "| step | images/s alone | that is, of P | images/s loaded | loaded over alone |",
        "| --- | --- | --- | --- | --- |",
    ]
    for entry in record["cases"]:
        over = entry["loaded_over_alone"]
        lines.append(
            f"| {entry['name']} | {short(entry['images_s_alone']['median'])} | {entry['alone_of_p']['median']:.2f} "
            f"| {short(entry['images_s_loaded']['median'])} "
            f"| {over['median']:.4f} ({over['q1']:.4f}–{over['q3']:.4f}) |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
