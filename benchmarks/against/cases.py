"""The cases of the suites with gdsload as the only contender, to compare two trees by."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS, names
from benchmarks.gpu.suite import cases as gpu
from benchmarks.gpu.suite.data import Stored
from benchmarks.gpu.suite.rounds import Plan, placed
from benchmarks.processes import Jsonable, Launch, Process
from benchmarks.residency import files_under, keep_warm, warm
from benchmarks.workloads import FULL, SMALL, generate

__all__ = ["Case", "cpu_cases", "cpu_names", "gpu_cases", "gpu_names"]

_PREPARE_S = 600
_CPU = {
    "shuffled": [name for name in names("cpu", "cpu") if CONTENDERS[name].package == "gdsload"],
    "sequential": ["gdsload"],
}
_TIMES = {"warm_s": 0.5, "seconds": 1.0, "cold_s": 1.5}
_SMALL_TIMES = {"warm_s": 0.02, "seconds": 0.05, "cold_s": 0.05}


@dataclass(frozen=True, slots=True)
class Case:
    """A load that both trees have, and how its contender's process is asked for a trial of it.

    Attributes:
        name: case and contender.
        contender: its key in the registry.
        module: the worker that the suite runs.
        folder: the contender's own files.
        source: the rows.
        workload: what the rows are.
        order: what says in an order to the worker which case it is, and how long a trial takes.
        rate: which number of a trial is its rate.
        unit: of the rate.
        place: puts files into the page cache, or drops them, and says which share is there.
    """

    name: str
    contender: str
    module: str
    folder: Path
    source: Path
    workload: Jsonable
    order: dict[str, Any]
    rate: str
    unit: str
    place: Callable[[list[str]], float]

    def process(self, scratch: Path, packages: Path | None = None) -> Process:
        """A fresh process of the contender."""
        launch = Launch(sys.executable, scratch, self.module, packages)
        return Process(self.contender, self.folder, self.source, self.workload, launch)


def cpu_names() -> list[str]:
    """Cases of the suite on the CPU."""
    return [f"{load.name}-{mode}/{name}" for load in FULL for mode, chosen in _CPU.items() for name in chosen]


def cpu_cases(wanted: set[str], folder: Path, scratch: Path, *, small: bool) -> Iterator[Case]:
    """The cases of the suite on the CPU, whose data are there while one of them is out."""
    for load in SMALL if small else FULL:
        place = folder / load.name
        cases = [
            Case(
                name=f"{load.name}-{mode}/{name}",
                contender=name,
                module="benchmarks.worker",
                folder=place / "gdsload",  # the same files for all of them
                source=place / "rows.npy",
                workload=load,
                order={"mode": mode, **(_SMALL_TIMES if small else _TIMES)},
                rate="rate",
                unit="samples/s",
                place=lambda files: keep_warm([Path(file) for file in files]).fraction,
            )
            for mode, chosen in _CPU.items()
            for name in chosen
        ]
        cases = [case for case in cases if case.name in wanted]
        if cases:
            place.mkdir(parents=True)
            generate(load, cases[0].source)
            process = cases[0].process(scratch)
            try:
                process.start()
                process.ask({"op": "prepare"}, _PREPARE_S)
            finally:
                process.stop()
            warm(files_under(cases[0].folder))
            yield from cases
            shutil.rmtree(place)


def gpu_names() -> list[str]:
    """Cases of the suite on a GPU."""
    return [f"{case.name}/{name}" for case in gpu.CASES for name in _ours(case)]


def _ours(case: gpu.Case) -> list[str]:
    return [name for name in case.contenders if CONTENDERS[name].package == "gdsload"]


def gpu_cases(wanted: set[str], folder: Path, device: str, nbytes: int) -> Iterator[Case]:
    """The cases of the suite on a GPU. On a CPU they are kilobytes, for a smoke test."""
    small = device == "cpu"
    rows, cases, _ = gpu.small() if small else (gpu.make_rows(nbytes, multiple=1), gpu.CASES, ())
    pairs = [(case, name) for case in cases for name in _ours(case) if f"{case.name}/{name}" in wanted]
    plan = Plan((), rows, {}, (), (), device, 1, 0, {}, 0.0)
    source = folder / "rows"
    source.mkdir(parents=True)
    for name in sorted({case.rows_of(name) for case, name in pairs}):
        Stored(rows[name], source / name).write()
    for case, name in pairs:
        yield Case(
            name=f"{case.name}/{name}",
            contender=name,
            module="benchmarks.gpu.suite.worker",
            folder=folder / name,
            source=source,
            workload=plan,
            order={"case": case.to_json(), **(_SMALL_TIMES if small else _TIMES)},
            rate="gb_s",
            unit="GB/s",
            place=lambda files, cold=case.cold: placed(files, cold=cold)["resident"],  # type: ignore[misc]
        )
