"""The decision whether loading limits a training step: a pure function of a benchmark's facts."""

from __future__ import annotations

from typing import Any

from gdsload.tools.bench.facts import STATES, Facts, State, rate
from gdsload.tools.bench.figures import figure, percent

_EASY = 0.9
"""A loader keeps up if the step needs at most this share of its rate, although the times of batches vary."""
_WHEN = {"cold": "in cold epochs", "hot": "once the data are in memory"}


def judge_step(facts: Facts) -> dict[str, Any]:
    """Return whether a step of the time given would wait for its batches.

    The keys: ``answer`` ("no", "yes", "close", "unknown" or "not asked"), ``sentence``, ``do``; ``needs_gb_per_s`` of
    the step, and ``starved_share`` of each state: the share of the time in which a GPU would be idle. Rates are those
    of the row that `backend="auto"` uses.
    """
    step_ms, nbytes = facts.record["conditions"]["step_ms"], facts.record["conditions"]["batch_bytes"]
    rates = {state: rate(row) for state in STATES if (row := facts.chosen(state)) is not None and rate(row) > 0}
    if step_ms is None:
        return {"answer": "not asked", "sentence": _bounds(facts, nbytes, rates), "do": ""}
    need = nbytes / step_ms / 1e6
    starved = {state: max(1 - found / need, 0.0) for state, found in rates.items()}
    tree: dict[str, Any] = {"needs_gb_per_s": need, "starved_share": starved}
    needs = f"a step of {figure(step_ms)} ms needs {figure(need)} GB/s"
    if not rates:
        return tree | {"answer": "unknown", "sentence": f"{needs}; no row was measured.", "do": ""}
    slowest = min(rates, key=rates.__getitem__)
    given = f"the loader reads {figure(rates[slowest])}"
    if need <= _EASY * rates[slowest]:
        least = given if len(rates) == 1 else f"{given} or more"
        return tree | {"answer": "no", "sentence": f"Loading is not your bottleneck: {needs}, {least}.", "do": ""}
    if need <= rates[slowest]:
        sentence = f"Loading just keeps up {_WHEN[slowest]}: {needs}, {given}."
        return tree | {"answer": "close", "sentence": sentence, "do": "Expect waits if the step or the drive changes."}
    return tree | {"answer": "yes", "sentence": _starved(facts, need, rates), "do": _remedy(facts, need, slowest)}


def _bounds(facts: Facts, nbytes: float, rates: dict[State, float]) -> str:
    if not rates:
        return "Not asked."
    times = " or ".join(f"{figure(nbytes / found / 1e6)} ms ({state})" for state, found in rates.items())
    samples = facts.record["conditions"]["batch_size"]
    return f"Not asked. A step on a batch of {samples} that takes longer than {times} does not wait."


def _starved(facts: Facts, need: float, rates: dict[State, float]) -> str:
    short: list[State] = [state for state in STATES if state in rates and need > rates[state]]
    when = "in every epoch" if len(short) == 2 else _WHEN[short[0]]
    state = short[0]
    share = percent(1 - rates[state] / need)
    ceiling = facts.ceiling(state)
    gives = f"the loader reads {figure(rates[state])}"
    if ceiling is not None:
        name, most = ceiling
        if need <= most:
            gives += f" of the {name}'s {figure(most)}"
        else:
            taken = "" if rates[state] >= _EASY * most else f", and the loader reads {figure(rates[state])}"
            gives = f"the {name} delivers at most {figure(most)}{taken}"
    sentence = (
        f"Loading is your bottleneck {when}: you need {figure(need)} GB/s, {gives}; {share} of a step is starved."
    )
    if short == ["cold"] and "hot" in rates and facts.fits_memory:
        sentence += f" From the second epoch on the loader reads {figure(rates['hot'])} from memory."
    return sentence


def _remedy(facts: Facts, need: float, state: State) -> str:
    ceiling = facts.ceiling(state)
    if ceiling is None or need <= ceiling[1]:
        return "Call `loader.diagnose()` in your training to find the cause."
    if ceiling[0] == "drive":
        drives = -(-need // ceiling[1])
        return f'No loader is that fast. Use {drives:.0f} such drives, encoded images or `cache="vram"`.'
    return f'No loader is that fast, since the {ceiling[0]} is the limit. Use encoded images or `cache="vram"`.'
