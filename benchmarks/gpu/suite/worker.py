"""The process of one contender; `benchmarks.serving` has the protocol.

Each has its own process, and so its own CUDA context, for the whole run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import about, load
from benchmarks.contenders.base import Contender, Job
from benchmarks.gpu.suite.cases import Case, Rows
from benchmarks.gpu.suite.data import Stored
from benchmarks.gpu.suite.measures import run_measure
from benchmarks.gpu.suite.trial import check, cold_trial, hot_trial
from benchmarks.serving import serve


@dataclass(frozen=True, slots=True)
class _Place:
    """A contender's place in a worker: its class, folder, device and rows.

    Attributes:
        name: its key in the registry.
        kind: its class.
        folder: its folder, which no other contender uses.
        device: the device of batches.
        workers: how many processes or threads it may use, if it uses any.
        rows: all rows, by name.
        own_samples: how many samples at most are written in its own format.
    """

    name: str
    kind: type[Contender]
    folder: Path
    device: torch.device
    workers: int
    rows: dict[str, Stored]
    own_samples: dict[str, int]

    def stored(self, case: Case) -> Stored:
        """The rows of a case."""
        return self.rows[case.rows_of(self.name)]

    def contender(self, case: Case) -> Contender:
        """The contender for a case."""
        stored = self.stored(case)
        samples = self.own_samples[case.rows] if self.kind.own_format else stored.rows.samples
        return self.kind(
            Job(
                folder=self.folder / case.rows,
                source=stored.files[0],
                shape=stored.rows.shape,
                dtype="uint8",
                samples=samples,
                batch_size=case.batch_size,
                order=case.order,
                device=self.device,
                workers=self.workers,
            )
        )


def _start(order: dict[str, Any]) -> tuple[_Place, dict[str, Any]]:
    plan, data = order["workload"], Path(order["source"])
    rows = [Rows(**{**found, "shape": tuple(found["shape"])}) for found in plan["rows"]]
    place = _Place(
        name=order["name"],
        kind=load(order["name"]),
        folder=Path(order["folder"]),
        device=torch.device(plan["device"]),
        workers=plan["workers"],
        rows={each.name: Stored(each, data / each.name) for each in rows},
        own_samples=plan["own_samples"],
    )
    return place, about(place.name, place.device, place.workers)


def _perform(place: _Place, order: dict[str, Any]) -> dict[str, Any]:
    if order["op"] == "measure":
        rows = place.rows[order["rows"]]
        return run_measure(order["name"], rows.folder, place.device, order["arguments"])
    case = Case.from_json(order["case"])
    contender = place.contender(case)
    if order["op"] == "prepare":
        return _prepared(contender)
    if order["op"] == "files":
        return {"files": [str(path) for path in contender.files()]}
    if order["op"] == "check":
        return check(contender, place.stored(case).hashes[: contender.job.samples])
    if case.cold:
        return cold_trial(contender, order["cold_s"])
    return hot_trial(contender, order["warm_s"], order["seconds"])


def _prepared(contender: Contender) -> dict[str, Any]:
    """Write the contender's own files, if it has any and they are not there."""
    began, folder = time.perf_counter(), contender.job.folder
    if contender.owns_data and not folder.exists():
        folder.mkdir(parents=True)
        contender.prepare(contender.open_source())
    return {"seconds": time.perf_counter() - began}


if __name__ == "__main__":
    serve(_start, _perform)
