"""Which settings are fastest here: one setting after the other, each beside what was best until then.

Contenders of a setting are measured in turns, like those of `gdsload bench`. One takes the place of the setting that it
is compared with if it is faster beyond the spread in some state of the cache, and slower in none; so chance alone
changes nothing, and where nothing helps the defaults stay. Trials that are too short to tell decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gdsload.errors import OptionError
from gdsload.system.units import format_bytes
from gdsload.tools.bench.bench_plan import BenchPlan, describe, machine, versions
from gdsload.tools.bench.check import Reference, check_route
from gdsload.tools.bench.measure import conditions, measure_cold, measure_hot
from gdsload.tools.bench.routes import Route, default_bytes
from gdsload.tools.bench.steps import Progress, Steps

__all__ = ["axes", "best_of", "run_tune"]

_THREADS = (4, 8, 16, 32)
_PARTS = (1, 2, 4)
"""A budget is tried whole, and its half and quarter: less memory in flight may stay in a cache."""
_FASTER = 1.05
"""How much faster a setting must be: less is not worth a line in a script."""
_LEAST_TRIALS = 3

_Settings = dict[str, int]
_Entry = dict[str, Any]


def run_tune(
    plan: BenchPlan, budgets: Mapping[str, int] | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Search, and compare bytes before the search and with what came of it.

    Args:
        plan: what is measured; its first backend is used.
        budgets: the most that `prefetch_bytes` and `pinned_bytes` may be (default: the loader's defaults).
        progress: see `Progress`.

    Returns:
        The record: plain dicts, lists, numbers and texts. What was found best is in ``settings``, as far as it differs
        from the loader's defaults; ``measured`` says whether anything could be found out.

    Raises:
        OptionError: if there are too few trials to show a spread.
        ReadError: if a loader hands out wrong bytes, or a file cannot be read.
    """
    if plan.trials < _LEAST_TRIALS:
        raise OptionError(f"trials is {plan.trials}: fewer than {_LEAST_TRIALS} show no spread")
    searched = list(axes(plan, budgets or {}))
    steps = Steps(2 * plan.trials * sum(len(values) + 1 for _, values in searched), progress)
    steps.say("comparing bytes")
    dataset, reference = describe(plan), Reference(plan)
    record: dict[str, Any] = {
        "machine": machine(plan.device),
        "versions": versions(),
        "dataset": dataset,
        "conditions": conditions(plan),
        "verified": [check_route(_route(plan, {}), plan, reference)],
        "measured": False,
        "rounds": [],
    }
    best: _Settings = {}
    for name, values in searched:
        routes = [_route(plan, settings) for settings in _contenders(best, name, values)]
        states = {
            "cold": measure_cold(plan, routes, dataset["file_system"], steps),
            "hot": measure_hot(plan, routes, dataset["file_system"], steps),
        }
        telling = [state["contenders"] for state in states.values() if state["contenders"] and not state["warning"]]
        winner = best_of(telling)
        record["measured"] |= bool(telling)
        best = dict(routes[winner].settings)
        record["rounds"].append({"setting": name, "best": routes[winner].name, **states})
    if best:
        record["verified"].append(check_route(_route(plan, best), plan, reference))
    record["settings"] = best
    return record


def axes(plan: BenchPlan, budgets: Mapping[str, int]) -> Iterator[tuple[str, list[int]]]:
    """The settings that are searched, one after the other, and the values of each."""
    yield "read_threads", list(_THREADS)
    for name in ("prefetch_bytes", "pinned_bytes"):
        if name == "prefetch_bytes" or plan.device.type == "cuda":  # else nothing is pinned
            default = default_bytes(name, plan.device)
            values = [budgets.get(name, default) // part for part in _PARTS]
            yield name, [value for value in values if value != default]


def _contenders(best: _Settings, name: str, values: Sequence[int]) -> list[_Settings]:
    """What was best until now, first, and the same with each value of a setting."""
    return [best, *({**best, name: value} for value in values)]


def _route(plan: BenchPlan, settings: _Settings) -> Route:
    shown = (f"{name}={format_bytes(value) if name.endswith('bytes') else value}" for name, value in settings.items())
    return Route(", ".join(shown) or "defaults", "", plan.backends[0], settings)


def best_of(states: Sequence[Sequence[_Entry]]) -> int:
    """Which contender is best; the first one if there is no reason to change.

    Args:
        states: for each state of the cache the contenders' entries; none where it could not be had.
    """
    measured = [[entry["gb_per_s"] for entry in entries] for entries in states if entries]
    best, gained = 0, 1.0
    for number in range(1, len(measured[0]) if measured else 0):
        pairs = [(rates[number], rates[0]) for rates in measured]
        gain = math.prod(rate["median"] / before["median"] for rate, before in pairs if before["median"])
        faster = any(_is_faster(rate, before) for rate, before in pairs)
        slower = any(_is_faster(before, rate) for rate, before in pairs)
        if faster and not slower and gain > gained:
            best, gained = number, gain
    return best


def _is_faster(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return one["q1"] > other["q3"] and one["median"] > _FASTER * other["median"]
