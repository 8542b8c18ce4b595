"""Rounds: in each, every contender runs once, in turn, so that what the machine does meanwhile hits all alike."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.processes import Launch, Process, WorkerError
from benchmarks.record import faults, ratio, summarise
from benchmarks.residency import Residency, keep_warm, warm
from benchmarks.worker import MODES, Mode, busy_cpu_s
from benchmarks.workloads import Workload, generate

__all__ = ["Plan", "busy_cores", "run_workload"]

_PREPARE_S = 1800
_CHECK_S = 600
_START_S = 120
"""Limits, generous: they are there to end what hangs."""
_IDLE_S = 0.5


@dataclass(frozen=True)
class Plan:
    """The plan of a run: contenders, rounds, and seconds."""

    names: tuple[str, ...]
    rounds: int
    seconds: float
    warm_s: float
    pythons: dict[str, str]
    scratch: Path


@dataclass
class _Runner:
    """A contender during the run of a workload."""

    process: Process
    entries: dict[Mode, dict[str, Any]]
    files: list[Path]
    least: Residency | None = None


def run_workload(workload: Workload, plan: Plan, folder: Path) -> dict[str, Any]:
    """One workload: make the data, let every contender write its own, check all bytes, then run the rounds."""
    folder.mkdir(parents=True)
    source = folder / "rows.npy"
    _say(f"{workload.title}: generating {workload.samples * workload.row_bytes / 2**30:.2f} GiB")
    generate(workload, source)
    result: dict[str, Any] = {**workload.to_json(), "title": workload.title, "samples": workload.samples}
    result["row_bytes"] = workload.row_bytes
    result["modes"] = {mode: [] for mode in MODES}
    result["busy_cores_before_rounds"] = []
    with _processes(workload, plan, folder, source) as processes:
        runners = [runner for process in processes if (runner := _ready(process, result))]
        for runner in runners:
            _check(runner)
        for number in range(plan.rounds):
            result["busy_cores_before_rounds"].append(busy_cores())
            # Nobody is always the first, or the last.
            shift = number * len(runners) // plan.rounds
            _round(runners[shift:] + runners[:shift], plan)
            _say(f"{workload.title}: round {number + 1} of {plan.rounds}")
    _finish(runners, result)
    return result


@contextmanager
def _processes(workload: Workload, plan: Plan, folder: Path, source: Path) -> Iterator[list[Process]]:
    processes: list[Process] = []
    try:
        for name in plan.names:
            launch = Launch(plan.pythons.get(name, sys.executable), plan.scratch)
            processes.append(Process(name, folder / name, source, workload, launch))
        yield processes
    finally:
        for process in processes:
            process.stop()


def _ready(process: Process, result: dict[str, Any]) -> _Runner | None:
    """Start a contender and have it write its data. If that fails, its entries say so."""
    stage, about = "import", dict[str, Any](title=process.name, modes=list(MODES))
    try:
        about |= process.start()
        stage = "prepare"
        _say(f"  {process.name}: preparing")
        prepared = process.ask({"op": "prepare"}, _PREPARE_S)
        files = [Path(file) for file in process.ask({"op": "files"}, _START_S)["files"]]
    except WorkerError as error:
        _say(f"  {process.name}: {stage} failed: {error}")
        for mode in about["modes"]:
            failed = {"stage": stage, "reason": str(error)}
            result["modes"][mode].append({"name": process.name, **about, "failed": failed})
        return None
    entries: dict[Mode, dict[str, Any]] = {}
    for mode in about["modes"]:
        entries[mode] = {"name": process.name, **about, "prepare_s": prepared["seconds"], "trials": []}
        result["modes"][mode].append(entries[mode])
    runner = _Runner(process, entries, files)
    os.sync()  # so that no write-back of what was just written falls into a trial
    warm(runner.files)
    return runner


def _check(runner: _Runner) -> None:
    """Compare every byte of an epoch, untimed; what does not fit is a failure, not a speed."""
    for mode, entry in runner.entries.items():
        try:
            found = runner.process.ask({"op": "check", "mode": mode}, _CHECK_S)
        except WorkerError as error:
            _fail(runner, mode, "check", str(error))
            continue
        entry["check"] = found
        if reason := faults(found):
            _fail(runner, mode, "check", reason)


def _round(runners: list[_Runner], plan: Plan) -> None:
    for mode in MODES:
        for runner in runners:
            entry = runner.entries.get(mode)
            if entry is None or "failed" in entry:
                continue
            try:
                _note_residency(runner)
                order = {"op": "trial", "mode": mode, "warm_s": plan.warm_s, "seconds": plan.seconds}
                entry["trials"].append(runner.process.ask(order, _START_S + plan.seconds))
            except WorkerError as error:
                _fail(runner, mode, "trial", str(error))


def _note_residency(runner: _Runner) -> None:
    """Ask the kernel before each trial, and keep the worst answer."""
    found = keep_warm(runner.files)
    if runner.least is None or found.fraction < runner.least.fraction:
        runner.least = found


def _fail(runner: _Runner, mode: Mode, stage: str, reason: str) -> None:
    _say(f"  {runner.process.name}, {mode}: {stage} failed: {reason}")
    runner.entries[mode]["failed"] = {"stage": stage, "reason": reason}


def _finish(runners: list[_Runner], result: dict[str, Any]) -> None:
    """Medians, residency, ratios; and the table's order, since those that failed early were noted first."""
    for runner in runners:
        for entry in runner.entries.values():
            if "failed" not in entry:
                summarise(entry)
            if runner.least is not None:
                least = runner.least
                entry["cache"] = {
                    "files": least.files,
                    "bytes": least.bytes,
                    "least_resident": least.fraction,
                }
    order = list(CONTENDERS)
    result["ratios"] = {}
    for mode, entries in result["modes"].items():
        entries.sort(key=lambda entry: order.index(entry["name"]))
        rates = {
            entry["name"]: [trial["rate"] for trial in entry["trials"]] for entry in entries if "failed" not in entry
        }
        result["ratios"][mode] = {
            f"{above}/{below}": ratio(rates[above], rates[below])
            for above in ("gdsload", "gdsload-block")
            for below in ("numpy", "copy")
            if above in rates and below in rates
        }


def busy_cores() -> float:
    """The number of cores that work while no contender does: on a quiet machine hardly any."""
    busy, start = busy_cpu_s(), time.perf_counter()
    time.sleep(_IDLE_S)
    return (busy_cpu_s() - busy) / (time.perf_counter() - start)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
