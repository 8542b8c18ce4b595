"""A measurement from begin to end, and its record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from gdsload.loader.loader import DataLoader
from gdsload.system.probe.mounts import IN_MEMORY
from gdsload.system.probe.tree import Tree
from gdsload.system.ram import memory_room
from gdsload.system.units import format_bytes
from gdsload.tools.bench.bench_plan import BenchPlan, describe, machine, versions
from gdsload.tools.bench.cache_state import drop, fill, look, why_blind
from gdsload.tools.bench.check import Reference, check_route
from gdsload.tools.bench.routes import Route, make_routes
from gdsload.tools.bench.trial import run_trial, summarise

Progress = Callable[[str, int, int], None]
"""Called with a text on the present step, the trials that are done, and the number of trials. An error that it raises
ends the measurement."""

_MOST_UNTIMED = 4
_SHORT_S = 0.5


def run_bench(
    plan: BenchPlan, *, cold: bool = True, hot: bool = True, progress: Progress | None = None
) -> dict[str, Any]:
    """Compare bytes, then measure.

    Args:
        plan: what is measured.
        cold: whether to measure with the shards out of the page cache.
        hot: whether to measure with the shards in it.
        progress: see `Progress`.

    Returns:
        The record: plain dicts, lists, numbers and texts. ``cold`` and ``hot`` are None if not asked for; if that state
        of the cache was not possible, they have no contenders, and ``state`` has the reason.

    Raises:
        ReadError: if a contender hands out wrong bytes, or a file cannot be read.
        BackendUnavailableError: if a backend cannot be used.
    """
    routes, dataset = make_routes(plan), describe(plan)
    trials = plan.trials * len(routes)
    steps = _Steps(trials * (cold + hot), progress)
    steps.say("comparing bytes")
    reference = Reference(plan)
    record: dict[str, Any] = {
        "machine": machine(plan.device),
        "versions": versions(),
        "dataset": dataset,
        "conditions": _conditions(plan),
        "contenders": [
            {"name": route.name, "way": route.way, "backend": route.backend or "host, then copied"} for route in routes
        ],
        "verified": [check_route(route, plan, reference) for route in routes],
    }
    states = [("cold", _measure_cold)] * cold + [("hot", _measure_hot)] * hot
    record |= {"cold": None, "hot": None}
    for number, (name, measure) in enumerate(states):
        steps.done = trials * number
        steps.say(f"{name}, preparing")
        try:
            if blind := why_blind(plan.files):
                raise _RefusedError(blind)
            record[name] = measure(plan, routes, dataset["file_system"], steps)
        except _RefusedError as why:
            record[name] = {"state": f"not {name}: {why}", "contenders": []}
    return record


class _RefusedError(Exception):
    """The page cache cannot be in the state that trials are to begin in, and why."""


class _Steps:
    """The trials of a measurement, counted as they begin."""

    def __init__(self, trials: int, progress: Progress | None) -> None:
        self._of, self._progress, self.done = trials, progress, 0

    def say(self, what: str) -> None:
        """Report a step."""
        if self._progress is not None:
            self._progress(what, self.done, self._of)

    def trial(self, state: str) -> None:
        """Begin a trial."""
        self.say(f"{state}, trial {self.done + 1} of {self._of}")
        self.done += 1


def _conditions(plan: BenchPlan) -> dict[str, Any]:
    notes = [
        "cold: not in this kernel's page cache; what caches drives and hosts below it have is not known",
        "cold: each trial has a new loader, and what it opens for its first batch is in the time",
        "hot: each contender keeps its loader, and untimed epochs come first",
        "the consumer does nothing with the batches",
    ]
    if not plan.on_device:
        notes.insert(0, "no accelerator: batches of all contenders end in RAM, and no number here is about VRAM")
    return {
        "device": str(plan.device),
        "batch_size": plan.batch_size,
        "shuffle": plan.shuffle or "none",
        "ragged": "offsets",
        "trials": plan.trials,
        "seconds": plan.seconds,
        "notes": notes,
    }


def turns(routes: Sequence[Route], trials: int) -> Iterator[tuple[int, Route]]:
    """Every contender once a round, each round beginning with the next one."""
    for number in range(trials):
        first = number % len(routes)
        for route in [*routes[first:], *routes[:first]]:
            yield number, route


def _measure_cold(plan: BenchPlan, routes: Sequence[Route], file_system: str, steps: _Steps) -> dict[str, Any]:
    """Trials with the shards out of the page cache."""
    trials: dict[str, list[dict[str, Any]]] = {route.name: [] for route in routes}
    most = 0.0
    for number, route in turns(routes, plan.trials):
        with route.open(plan, shuffle=plan.shuffle) as loader:
            found = drop(plan.files)
            if not found.cold:
                why = "another process maps, reads or writes them, or the file system keeps them"
                why = f"a {file_system} has its files in memory alone" if file_system in IN_MEMORY else why
                raise _RefusedError(f"{found}, after they were dropped: {why}")
            most = max(most, found.share)
            steps.trial("cold")
            trial = run_trial(route, loader, plan, number)
        trials[route.name].append({"resident_share_before": found.share} | trial)
    state = {"state": "cold", "checked": f"{found}, before the last trial", "most_resident_share": most}
    return state | _measured(routes, trials)


def _measure_hot(plan: BenchPlan, routes: Sequence[Route], file_system: str, steps: _Steps) -> dict[str, Any]:
    """Trials with the shards in the page cache."""
    room = memory_room(Tree()) or 0
    if plan.num_bytes > room and file_system not in IN_MEMORY:
        size = format_bytes(plan.num_bytes)
        raise _RefusedError(f"the dataset has {size}, and {format_bytes(room)} of memory are to be had")
    if not (found := fill(plan.files)).hot:
        raise _RefusedError(f"{found}, after they were read")
    trials: dict[str, list[dict[str, Any]]] = {route.name: [] for route in routes}
    with ExitStack() as stack:
        loaders = {route.name: stack.enter_context(route.open(plan, shuffle=plan.shuffle)) for route in routes}
        steps.say("hot, epochs that are not timed")
        untimed = {route.name: settle(route, loaders[route.name], plan) for route in routes}
        for number, route in turns(routes, plan.trials):
            steps.trial("hot")
            trials[route.name].append(run_trial(route, loaders[route.name], plan, number))
        found = look(plan.files)
    if not found.hot:
        raise _RefusedError(f"{found}, after the last trial")
    state = {"state": "hot", "checked": f"{found}, after the last trial", "untimed_epochs": untimed}
    return state | _measured(routes, trials)


def _measured(routes: Sequence[Route], trials: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    shortest = min(trial["seconds"] for entries in trials.values() for trial in entries)
    warning = ""
    if shortest < _SHORT_S:
        warning = f"a trial took {shortest * 1000:.3g} ms alone: so short, begin and chance weigh more than the path"
    return {"warning": warning, "contenders": [summarise(route, trials[route.name]) for route in routes]}


def settle(route: Route, loader: DataLoader, plan: BenchPlan) -> int:
    """Run epochs until bytes take the same paths as in the epoch before: registering shards takes a while."""
    before: dict[str, float] = {}
    for number in range(_MOST_UNTIMED):
        moved = run_trial(route, loader, plan, number, whole=not number)["bytes_by_path"]
        shares = {path: round(count / sum(moved.values()), 2) for path, count in moved.items()}
        if shares == before:
            return number + 1
        before = shares
    return _MOST_UNTIMED
