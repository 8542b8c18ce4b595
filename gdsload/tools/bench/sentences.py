"""Sentences that several verdicts share."""

from __future__ import annotations

import math

from gdsload.system.units import format_bytes
from gdsload.tools.bench.facts import Facts, Row, rate, saved
from gdsload.tools.bench.figures import figure, percent

_MORE_TURNS = 25
_NO_CPU_S = 0.001
"""CPU seconds per GB that do not matter: a hundredth of a core at 10 GB/s."""


def longer(facts: Facts) -> str:
    """The options for a benchmark with more turns and more time."""
    budget_s = facts.record["conditions"]["budget_s"]
    return f"--turns {_MORE_TURNS}" + (f" --budget {math.ceil(4 * budget_s / 60)}min" if budget_s else "")


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
