"""Rounds: in each, every contender runs every case once, in turn, so that what the machine does meanwhile hits all."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.gpu.suite.cases import Case, Measure, Rows
from benchmarks.gpu.suite.data import Stored
from benchmarks.processes import Launch, Process, WorkerError
from benchmarks.record import faults, ratio, spread
from gdsload.tools.bench.cache_state import drop, fill, look

__all__ = ["Plan", "placed", "run"]

_START_S, _PREPARE_S, _CHECK_S, _TRIAL_S = 120, 240, 120, 60
"""Limits, generous: they are there to end what hangs."""
_ROWS = "rows"
"""The folder that all rows are in."""
_FILLS = 3
_SLOW_S, _SLOW_EVERY = 5, 3
"""A contender that needs so many seconds for a trial, start and end included, takes part in every third round only."""
_BEGAN = time.monotonic()
_NUMBERS = {"gb_s", "gb_s_after_first", "samples_s", "cpu_s_per_gb", "first_batch_s"}


@dataclass(frozen=True)
class Plan:
    """The plan of a run: contenders, rows, cases, measures and times.

    Attributes:
        names: contenders that may take part.
        rows: the rows, by name.
        own_samples: how many of them at most are written in a format of a contender's own.
        cases: the cases.
        measures: the measures besides.
        device: the device of batches.
        workers: of each contender that uses workers.
        rounds: how many.
        times: ``warm_s``, ``seconds`` and ``cold_s`` of a trial.
        end: when the last round should have ended, by `time.monotonic`.
    """

    names: tuple[str, ...]
    rows: dict[str, Rows]
    own_samples: dict[str, int]
    cases: tuple[Case, ...]
    measures: tuple[Measure, ...]
    device: str
    workers: int
    rounds: int
    times: dict[str, float]
    end: float

    def to_json(self) -> dict[str, Any]:
        """The part of the plan that workers need."""
        rows = [asdict(each) for each in self.rows.values()]
        return {"device": self.device, "workers": self.workers, "rows": rows, "own_samples": self.own_samples}


class _Runner:
    """A contender during the run: its process, which is started again if it was lost."""

    def __init__(self, name: str, plan: Plan, folder: Path, scratch: Path) -> None:
        self.name, self._plan, self._folder, self._scratch = name, plan, folder, scratch
        self.about: dict[str, Any] = {"title": name, "checked": False}
        self.failed: dict[str, str] | None = None
        self.files: dict[str, list[str]] = {}
        self.process = self._started()

    def _started(self) -> Process:
        return Process(
            self.name,
            self._folder / self.name,
            self._folder / _ROWS,
            self._plan,
            Launch(sys.executable, self._scratch, "benchmarks.gpu.suite.worker"),
        )

    def open(self) -> None:
        """Wait until it has imported the library; if it is not installed, its entries will say so."""
        try:
            self.about |= self.process.start()
        except WorkerError as error:
            absent = str(error).startswith(("ModuleNotFoundError", "PackageNotFoundError"))
            self.failed = {"stage": "not installed" if absent else "import", "reason": str(error)}

    def ask(self, order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Have something done, in a new process if the one before was lost."""
        if self.process.lost:
            self.process.stop()
            self.process = self._started()
            self.process.start()
        return self.process.ask(order, timeout_s)


Found = list[dict[str, Any]]


def run(plan: Plan, folder: Path, scratch: Path) -> Iterator[tuple[Found, Found]]:
    """All cases and measures.

    Args:
        plan: what.
        folder: an empty folder, where the rows go and what contenders make of them.
        scratch: where libraries may leave what they like.

    Yields:
        After each round what goes into the record of the cases, and of the measures.
    """
    cases = [case.to_json() | {"entries": []} for case in plan.cases]
    measures = [measure.to_json() | {"trials": []} for measure in plan.measures]
    with _runners(plan, folder, scratch) as runners:
        turns = [turn for case, found in zip(plan.cases, cases, strict=True) for turn in _turns(case, found, runners)]
        _prepare(turns)
        os.sync()  # so that nothing is measured beside the write-back of what was just written
        _say("files are written")
        for case in plan.cases:
            _check([turn for turn in turns if turn.case == case])
        _say("bytes are compared")
        longest_s = 0.0
        for number in range(plan.rounds):
            began = time.monotonic()
            if number and began + longest_s > plan.end:
                _say(f"no time for more than {number} of {plan.rounds} rounds")
                break
            for case in plan.cases:
                own = [turn for turn in turns if turn.case == case]
                shift = number * len(own) // plan.rounds  # nobody is always the first, or the last
                for turn in own[shift:] + own[:shift]:
                    _trial(turn, plan, number)
            for measure, found in zip(plan.measures, measures, strict=True):
                if measure.every_round or not number:
                    _measure(measure, found, runners, folder)
            longest_s = max(longest_s, time.monotonic() - began)
            _say(f"round {number + 1} of {plan.rounds}")
            for found in cases:
                _finish_case(found)
            for found in measures:
                _finish_measure(found)
            yield cases, measures


@contextmanager
def _runners(plan: Plan, folder: Path, scratch: Path) -> Iterator[dict[str, _Runner]]:
    """Everybody who takes part; started at the same time, since importing takes seconds."""
    wanted = {name for case in plan.cases for name in case.contenders} | {each.contender for each in plan.measures}
    runners: dict[str, _Runner] = {}
    try:
        for name in CONTENDERS:
            if name in wanted and name in plan.names:
                runners[name] = _Runner(name, plan, folder, scratch)
        _write(plan, folder)  # meanwhile
        for runner in runners.values():
            runner.open()
            _say(f"{runner.name}: {runner.failed['stage'] if runner.failed else 'ready'}")
        yield runners
    finally:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda runner: runner.process.stop(), runners.values()))


def _write(plan: Plan, folder: Path) -> None:
    """All rows that are needed, at the same time."""
    needed = {case.rows_of(name) for case in plan.cases for name in case.contenders}
    needed |= {each.rows for each in plan.measures}
    (folder / _ROWS).mkdir()
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda name: Stored(plan.rows[name], folder / _ROWS / name).write(), sorted(needed)))


@dataclass
class _Turn:
    """A contender in a case."""

    case: Case
    runner: _Runner
    entry: dict[str, Any]

    def ask(self, op: str, timeout_s: float, **more: Any) -> dict[str, Any] | None:
        """Have something done; None, and noted, if it failed."""
        return self.noted(op, lambda: self.runner.ask(self.order(op, **more), timeout_s))

    def order(self, op: str, **more: Any) -> dict[str, Any]:
        """An order to its process."""
        return {"op": op, "case": self.case.to_json(), **more}

    def answer(self, op: str, timeout_s: float) -> dict[str, Any] | None:
        """The answer to an order that was sent; None, and noted, if it failed."""
        return self.noted(op, lambda: self.runner.process.answer(timeout_s))

    def noted(self, stage: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Do something; None, and noted, if it failed or something has failed before."""
        if "failed" in self.entry:
            return None
        began = time.monotonic()
        try:
            return work()
        except Exception as error:
            self.fail(stage, str(error))
            return None
        finally:
            if (taken := time.monotonic() - began) > _SLOW_S:
                _say(f"  {self.case.name}, {self.runner.name}: {stage} took {taken:.0f} s")

    def fail(self, stage: str, reason: str) -> None:
        """Note that it is out."""
        _say(f"  {self.case.name}, {self.runner.name}: {stage} failed: {reason}")
        self.entry["failed"] = {"stage": stage, "reason": reason[:500]}


def _turns(case: Case, found: dict[str, Any], runners: dict[str, _Runner]) -> Iterator[_Turn]:
    for name in case.contenders:
        if name in runners:
            runner = runners[name]
            entry: dict[str, Any] = {"name": name, **runner.about, "trials": []}
            if runner.failed:
                entry["failed"] = runner.failed
            found["entries"].append(entry)
            yield _Turn(case, runner, entry)


def _prepare(turns: list[_Turn]) -> None:
    """Have all contenders write their files at the same time: nothing of this is timed."""
    for turn in _first_of_rows(turns):
        if "failed" not in turn.entry:
            turn.runner.process.send(turn.order("prepare"))
    for first in _first_of_rows(turns):
        found = first.answer("prepare", _PREPARE_S)
        for turn in turns:
            if turn.runner is first.runner and turn.case.rows == first.case.rows:
                if found:
                    turn.entry["prepare_s"] = found["seconds"]
                else:
                    turn.entry["failed"] = first.entry["failed"]
    for turn in turns:
        if found := turn.ask("files", _START_S):
            turn.runner.files[turn.case.name] = found["files"]


def _first_of_rows(turns: list[_Turn]) -> list[_Turn]:
    """For each contender and kind of rows one turn: files are written once for all cases."""
    first: dict[tuple[str, str], _Turn] = {}
    for turn in turns:
        first.setdefault((turn.runner.name, turn.case.rows), turn)
    return list(first.values())


def _check(turns: list[_Turn]) -> None:
    """Everybody's bytes of one epoch are compared, at the same time: what does not fit is a failure, not a speed."""
    # Being asked for its files, one that was lost is started again.
    able = [turn for turn in turns if turn.runner.about["checked"] and turn.ask("files", _START_S)]
    for turn in able:
        turn.runner.process.send(turn.order("check"))
    for turn in able:
        if found := turn.answer("check", _CHECK_S):
            turn.entry["check"] = found
            if reason := faults(found):
                turn.fail("check", reason)


def _trial(turn: _Turn, plan: Plan, number: int) -> None:
    if number % _SLOW_EVERY and any(trial["wall_s"] > _SLOW_S for trial in turn.entry["trials"]):
        return
    resident = turn.noted("page cache", lambda: placed(turn.runner.files[turn.case.name], cold=turn.case.cold))
    began = time.monotonic()
    if resident and (found := turn.ask("trial", _TRIAL_S, **plan.times)):
        turn.entry["trials"].append(found | resident | {"round": number, "wall_s": time.monotonic() - began})


def placed(files: list[str], *, cold: bool) -> dict[str, Any]:
    """Read files into the page cache, or drop them from it; the kernel is asked to, right before a trial."""
    found = drop(files) if cold else look(files)
    for _ in range(_FILLS):
        if not cold and not found.hot:
            found = fill(files)
    if not (found.cold if cold else found.hot):
        raise RuntimeError(f"the files cannot be made {'cold' if cold else 'hot'}: {found}")
    return {"resident": found.share}


def _measure(measure: Measure, found: dict[str, Any], runners: dict[str, _Runner], folder: Path) -> None:
    runner = runners.get(measure.contender)
    if runner is None or "failed" in found:
        return
    try:
        shards = sorted(str(path) for path in (folder / _ROWS / measure.rows).glob("*.safetensors"))
        resident = placed(shards, cold=False)
        order = {"op": "measure", "name": measure.name, "rows": measure.rows, "arguments": measure.arguments}
        found["trials"].append(runner.ask(order, _TRIAL_S) | resident)
    except Exception as error:
        _say(f"  {measure.name}: {error}")
        found["failed"] = {"stage": "measure", "reason": str(error)[:500]}


def _finish_case(found: dict[str, Any]) -> None:
    """Medians and quartiles, and ratios round by round."""
    rates: dict[str, dict[int, float]] = {}
    for entry in found["entries"]:
        if entry["trials"] and "failed" not in entry:
            rates[entry["name"]] = {trial["round"]: trial["gb_s"] for trial in entry["trials"]}
            for number in entry["trials"][0].keys() & _NUMBERS:
                entry[number] = spread([trial[number] for trial in entry["trials"]])
    found["ratios"] = {
        f"{above}/{below}": _paired(rates[above], rates[below])
        for above in rates
        for below in rates
        if above != below and (below == found["limit"] or above.startswith("gdsload"))
    }


def _paired(above: dict[int, float], below: dict[int, float]) -> dict[str, float]:
    """Of the rounds that both took part in: the first, at least."""
    both = sorted(above.keys() & below.keys())
    return ratio([above[number] for number in both], [below[number] for number in both])


def _finish_measure(found: dict[str, Any]) -> None:
    numbers = [key for key, value in found["trials"][0].items() if isinstance(value, float)] if found["trials"] else []
    found["numbers"] = {number: spread([trial[number] for trial in found["trials"]]) for number in numbers}


def _say(text: str) -> None:
    print(f"{time.monotonic() - _BEGAN:5.0f} s  {text}", file=sys.stderr, flush=True)
