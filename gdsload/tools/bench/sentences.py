"""Sentences that several answers have in common, and the answer to whether loading is a step's bottleneck."""

from __future__ import annotations

import math
from typing import Any

from gdsload.system.units import format_bytes
from gdsload.tools.bench.facts import STATES, Facts, Row, State, figure, percent, rate, saved

_MORE_TURNS = 25
_NO_CPU_S = 0.001
"""CPU seconds a GB that nobody notices: a hundredth of a core at 10 GB/s."""
_EASY = 0.9
"""A loader that has this share of its rate to do keeps up although batches take unequal times."""
_WHEN = {"cold": "in cold epochs", "hot": "once the data are in memory"}


def longer(facts: Facts) -> str:
    """The options for a benchmark with more turns and more time."""
    budget_s = facts.record["conditions"]["budget_s"]
    return f"--turns {_MORE_TURNS}" + (f" --budget {math.ceil(4 * budget_s / 60)}min" if budget_s else "")


def longer_turns(facts: Facts) -> str:
    """The option of a benchmark with longer turns."""
    given = facts.record["conditions"]
    if given["budget_s"]:
        return f"--budget {math.ceil(4 * given['budget_s'] / 60)}min"
    return f"--seconds {math.ceil(4 * given['turn_s'])}"


def shares_taken(facts: Facts, gds: Row, other: Row) -> str:
    """The shares of the limit that the two rows reach."""
    ceiling = facts.ceiling(facts.decisive)
    if ceiling is None:
        return f"{other['name']} reads {figure(rate(other))} GB/s, and gds {figure(rate(gds))} GB/s."
    shares = [percent(rate(row) / ceiling[1]) for row in (other, gds)]
    return f"{other['name']} reaches {shares[0]} of the speed of the {ceiling[0]}, and gds {shares[1]}."


def later_epochs(facts: Facts) -> str:
    """A sentence on whether later epochs read the drive again."""
    size, hot = format_bytes(facts.record["dataset"]["bytes"]), facts.chosen("hot")
    if not facts.fits_memory:
        return f"Your {size} do not fit into the page cache ({memory_text(facts)}), so every epoch reads the drive."
    drive = facts.limit("drive")
    if hot is None or drive is None or rate(hot) <= drive:
        return f"Your {size} fit into memory, so only the first epoch reads the drive."
    name = "the loader" if hot["name"] == "auto" else hot["name"]
    faster = f"from the second epoch on {name} is {figure(rate(hot) / drive)} times as fast as the drive"
    return f"Your {size} fit into memory, so {faster}."


def memory_text(facts: Facts) -> str:
    """The size of the memory that the page cache can use."""
    return format_bytes(facts.record["dataset"]["memory_bytes"])


def saving(facts: Facts, gds: Row, other: Row) -> str:
    """A sentence on the CPU time that gds saves compared with another row; empty if it is negligible or unknown."""
    less = saved(gds, other)
    if less is None or abs(less) < _NO_CPU_S:
        return ""
    word, cores = ("saves", less) if less >= 0 else ("costs", -less)
    spent = f"{figure(cores * rate(gds))} of {facts.cores} cores while it reads"
    return f"gds {word} {figure(cores)} CPU seconds per GB compared with {other['name']}: {spent}."


def spending(other: Row) -> str:
    """A sentence on the CPU time of a row; empty if unknown."""
    cores = other.get("cpu_s_per_gb")
    if cores is None:
        return ""
    busy = f"{figure(cores)} CPU seconds per GB ({figure(cores * rate(other))} cores)"
    return f"{other['name']} takes {busy}; gds takes almost none."


def chosen_by_itself(facts: Facts) -> str:
    """The advice to do nothing, with the backends that a loader chooses automatically."""
    cold, hot = facts.chosen("cold"), facts.chosen("hot")
    names = [row["name"] for row in (cold, hot) if row is not None and "auto" in row["asked"] and row["name"] != "auto"]
    if not names:
        return "nothing."
    return f"nothing: `DataLoader(...)` uses {', then '.join(dict.fromkeys(names))} automatically."


def would_help(facts: Facts, name: str) -> str:
    """A sentence on when GDS would help."""
    drive, hot = facts.limit("drive"), facts.row("hot", name)
    parts = [f"more than {memory_text(facts)} of data and a busy CPU"] if facts.fits_memory else ["a busy CPU"]
    if drive and hot and rate(hot) > drive:
        drives = int(rate(hot) / drive) + 1
        parts.append(f"{drives} such drives ({name} reads at most about {figure(rate(hot))} GB/s)")
    return f"It would help with {', or with '.join(parts)}."


def may_help(facts: Facts) -> str:
    """A sentence on when GDS may help, if the data are in memory."""
    return f"It may help with more than {memory_text(facts)} of data, or in first epochs."


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
