"""The verdict on a benchmark: a pure function of its record, with a table of cases.

Each case answers from the facts, or passes to the next one. "No verdict" is an answer, too: rows whose difference may
be chance are never called different.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from gdsload.system.units import counted, format_bytes
from gdsload.tools.bench.compare import CHANCE, EQUAL, FEWEST, Comparison
from gdsload.tools.bench.facts import STATES, Facts, Row, compared, cores_saved, figure, gain_text, percent, rate, saved
from gdsload.tools.bench.sentences import (
    chosen_by_itself,
    judge_step,
    later_epochs,
    longer,
    longer_turns,
    may_help,
    saving,
    shares_taken,
    spending,
    would_help,
)

Gds = Literal["no", "yes", "unavailable", "worse", "unknown"]

TOO_NOISY = 0.15
"""If two measurements of the same row differ by more, there is no verdict."""
_WIDE = 0.15
"""Rows are called equal only if their difference is known to be smaller."""
_WORTH = 1.1
"""The factor between the limit and a row's rate from which an improvement is worthwhile."""
_MANY_CORES = 0.1
"""The share of the machine's CPU cores that is worth saving by itself."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict on GDS.

    `gds` is "worse" where it is not to be used, and "unknown" without a verdict. `case` is that of the table, `why` the
    evidence, `otherwise` the conditions under which the verdict would change. `saves` and `cpu_s_per_gb_saved` are of
    CPU time, and `comparison` is gds compared with the best other row, if both were measured.
    """

    gds: Gds
    case: str
    sentence: str
    why: str = ""
    saves: str = ""
    do: str = ""
    otherwise: str = ""
    comparison: Comparison | None = None
    cpu_s_per_gb_saved: float | None = None


def verdict(record: dict[str, Any]) -> dict[str, Any]:
    """The verdict on a record of `run_bench`, as JSON types.

    The keys are those of `Answer`, with the comparison as ``gain``, ``gain_interval`` (95 %) and ``chance``; and
    ``limit`` ("drive", "link", "memory", "loader" or None), ``fits_memory``, ``noise`` (a share), ``loading`` (see
    `judge_step`) and ``next``, commands to go on with.
    """
    facts = Facts(record)
    answer = next(found for case in _CASES if (found := case(facts)) is not None)
    tree = asdict(answer)
    found = tree.pop("comparison")
    tree |= {
        "gain": found and found["gain"],
        "gain_interval": found and [found["low"], found["high"]],
        "chance": found and found["chance"],
        "noise": facts.noise(facts.decisive),
        "limit": facts.limited_by(facts.decisive),
        "fits_memory": facts.fits_memory,
        "loading": judge_step(facts),
    }
    return tree | {"next": _next(facts, answer)}


def _next(facts: Facts, answer: Answer) -> list[str]:
    """Commands to go on with, which keep the options that chose what was measured."""
    data, given = facts.record["dataset"], facts.record["conditions"]
    made_in = data.get("made_in")  # the dataset is gone
    place = shlex.quote(made_in or data["path"])

    def bench(more: str = "", **changed: str) -> str:
        options = given.get("options", {}) | {f"--{name}": value for name, value in changed.items()}
        words = shlex.join(word for option in options.items() for word in option)
        target = f"--make 8GiB {place}" if made_in else place
        return " ".join(filter(None, ("gdsload bench", target, words, more)))

    found = []
    if answer.gds == "unavailable":
        found.append(f"gdsload doctor {place}")
    if answer.case in ("noisy", "undecided", "too short"):
        short = answer.case == "too short" and _fewest(facts.rows(facts.decisive))[1] < FEWEST
        found.append(bench(longer_turns(facts) if short else longer(facts)))
    if answer.case == "not asked":
        found.append(bench(backends="auto,gds,bounce"))
    if answer.case == "not cold":
        found.append("gdsload bench --make 8GiB DIR")
    if answer.case == "stopped":
        found.append(bench())
    if given["step_ms"] is None:
        found.append(bench("--step-ms MS"))
    if made_in is None and facts.limit("drive") is not None:
        found.append(bench("--commands"))  # to check the limit with fio
    return found


# No verdict


def _nothing(facts: Facts) -> Answer | None:
    if any(facts.rows(state) or facts.refusal(state) for state in STATES):
        return None
    return Answer(
        "unknown", "stopped", "No verdict: the run was stopped before each row had a turn.",
        do="Let it finish, or limit its time: --budget 30s.",
    )  # fmt: skip


def _noisy(facts: Facts) -> Answer | None:
    noise = facts.noise(facts.decisive)
    if noise is None or noise <= TOO_NOISY:
        return None
    load = facts.record["machine"].get("load")
    why = ""
    if load is not None:
        cores = f"load {figure(load)} on {facts.cores} cores"
        busy = load > facts.cores / 2
        why = f"Other processes are busy ({cores})." if busy else f"The drive or its host is not steady ({cores})."
    return Answer(
        "unknown", "noisy", f"No verdict: the same row measured twice differs by {percent(noise)}.",
        why=why, do=f"Try again when the machine is quiet, or with {longer(facts)}.",
    )  # fmt: skip


def _no_gpu(facts: Facts) -> Answer | None:
    if facts.on_gpu:
        return None
    device = str(facts.record["conditions"]["device"])
    where = "The batches stay on the CPU, so this run says nothing about GPU memory"
    if device != "cpu":
        where = f"GDS does not work here: cuFile only reads into NVIDIA GPUs, and the batches go to {device}"
    cold, hot, drive = facts.chosen("cold"), facts.chosen("hot"), facts.limit("drive")
    share = f", {percent(rate(cold) / drive)} of the drive's {figure(drive)}" if cold and drive else ""
    parts = [f"Cold, the loader reads {figure(rate(cold))} GB/s{share}"] if cold else []
    parts += [f"From memory the loader reads {figure(rate(hot))} GB/s"] if hot else []
    why = facts.refusal("cold")
    slow = bool(cold and drive and rate(cold) < 0.7 * drive) and facts.record["conditions"]["shuffle"] == "full"
    return Answer(
        "unknown" if device == "cpu" else "no", "no gpu", ". ".join([where, *parts]) + ".",
        why=f"Cold reads were not measured: {why}." if why else "",
        do="Run it on the machine with the NVIDIA GPU."
        + (' `shuffle="block"` makes longer reads from the drive.' if slow else ""),
    )  # fmt: skip


def _too_little(facts: Facts) -> Answer | None:
    """A row had too few turns to be compared, or turns that were too short for a rate."""
    rows = facts.rows(facts.decisive)
    turns, batches = _fewest(rows)
    if not rows or min(turns, batches) >= FEWEST:
        return None
    more = longer(facts) if batches >= FEWEST else longer_turns(facts)
    return Answer(
        "unknown", "too short",
        f"No verdict: a row had {counted(turns, 'turn')}, and {batches} batches in the shortest; {FEWEST} of both are "
        "needed.",
        do=f"Let it finish, or give it more time: {more}.",
    )  # fmt: skip


def _fewest(rows: Sequence[Row]) -> tuple[int, int]:
    """The fewest turns of a row, and the fewest batches of a turn."""
    turns = [row["turns"] for row in rows]
    return min(map(len, turns), default=0), min((turn["batches"] for some in turns for turn in some), default=0)


def _not_cold(facts: Facts) -> Answer | None:
    state = next((one for one in STATES if facts.refusal(one)), None)
    if state is None or facts.rows("cold") or (state == "hot" and facts.rows("hot")):
        return None
    hot = facts.chosen("hot")
    do = "Stop the process that uses the files, copy the dataset, or measure a generated one: --make 8GiB DIR."
    why = (
        f"{hot['name']} reads {figure(rate(hot))} GB/s from memory, which says nothing about the drive." if hot else ""
    )
    return Answer(
        "unknown", f"not {state}", f"No verdict on {state} reads: {facts.refusal(state)}.",
        why=why,
        do=do if state == "cold" else "Leave --hot-only out: data that do not fit into memory come from the drive.",
    )  # fmt: skip


def _absent(facts: Facts) -> Answer | None:
    """Cold rows were measured, and gds is not among them."""
    state = facts.decisive
    other = facts.best(state)
    if other is None or facts.row(state, "gds"):
        return None
    if state == "hot":
        return _absent_in_memory(facts, other)
    lacks = facts.record["conditions"]["unavailable"].get("gds", "")
    if not lacks and not any("auto" in row["asked"] for row in facts.rows(state)):
        return _not_asked("it was not measured")
    ceiling, name = facts.ceiling(state), other["name"]
    if ceiling is None:
        why = facts.record["limits"].get("drive_why") or "its rate was not measured"
        return Answer(
            "unavailable", "unavailable, no limit",
            "GDS is not available here, and its possible gain is unknown, because the drive was not measured.",
            why=f"The drive: {why}.", do="Run gdsload doctor, which lists what GDS lacks.",
        )  # fmt: skip
    return _unavailable(facts, other, ceiling, (lacks or f"auto uses {name}: {other['reason']}").rstrip(". "))


def _absent_in_memory(facts: Facts, other: Row) -> Answer:
    drive = facts.limit("drive")
    if drive is None or drive > rate(other):
        return Answer(
            "unknown", "hot only", "No verdict on GDS: only reads of the page cache were measured.",
            why=f"{other['name']} reads {figure(rate(other))} GB/s from it.", do="Leave --hot-only out.",
        )  # fmt: skip
    return _in_memory(facts, other, f"the drive delivers {figure(drive)} GB/s")


def _in_memory(facts: Facts, other: Row, drive: str) -> Answer:
    link = facts.limit("link")
    share = f" ({percent(rate(other) / link)} of the link)" if link else ""
    return Answer(
        "no", "in memory",
        f"Data in memory need no GDS: {other['name']} reads {figure(rate(other))} GB/s{share}, and {drive}.",
        do=chosen_by_itself(facts), otherwise=may_help(facts),
    )  # fmt: skip


def _not_asked(what: str) -> Answer:
    do = "Measure gds and another backend: --backends auto,gds,bounce."
    return Answer("unknown", "not asked", f"No verdict on GDS: {what}.", do=do)


def _unavailable(facts: Facts, other: Row, ceiling: tuple[str, float], lacks: str) -> Answer:
    possible, share = ceiling[1] / rate(other), rate(other) / ceiling[1]
    cores, name = other.get("cpu_s_per_gb"), other["name"]
    takes = "all of it" if share >= 0.95 else f"{percent(share)} of it"
    if possible > max(_WORTH, 1 + (facts.noise(facts.decisive) or 0.0)):
        return Answer(
            "unavailable", "unavailable, could help",
            f"GDS is not available here; it could be at most {figure(possible)} times as fast: {name} reaches "
            f"{percent(share)} of the speed of the {ceiling[0]}.",
            why=f"{lacks}. {later_epochs(facts)}", saves=spending(other),
            do="Run gdsload doctor, which lists what GDS lacks and the steps to set it up.",
            otherwise=f"It would not help with a {ceiling[0]} below {figure(rate(other))} GB/s.",
        )  # fmt: skip
    spends = "" if cores is None else f" for {figure(cores)} CPU seconds per GB ({figure(cores * rate(other))} cores)"
    return Answer(
        "unavailable", "unavailable, useless",
        f"GDS would not help: your {ceiling[0]} delivers {figure(ceiling[1])} GB/s, and {name} reads {takes}{spends}.",
        why=f"{lacks}. {later_epochs(facts)}", do=chosen_by_itself(facts), otherwise=would_help(facts, name),
    )  # fmt: skip


# gds beside another row


def _beside(facts: Facts) -> Answer:
    state = facts.decisive
    gds, other = facts.row(state, "gds"), facts.best(state, but="gds")
    if gds is None or other is None:
        return _not_asked("nothing else was measured")
    found, noise = compared(gds, other), facts.noise(state) or 0.0
    rates = f"{figure(rate(gds))} instead of {figure(rate(other))} GB/s"
    different = found.different(noise)
    if not different and max(-found.low, found.high) > _WIDE:
        return Answer(
            "unknown", "undecided",
            f"No verdict: the difference between gds and {other['name']} may be anything from "
            f"{gain_text(found.low)} to {gain_text(found.high)}.",
            why=f"The turns of a row vary too much; so far gds reads {rates}.", comparison=found,
            do=f"Try again when the machine is quiet, or with {longer(facts)}.",
        )  # fmt: skip
    answered = _equal if not different else _helps if found.gain > 0 else _worse
    return replace(
        answered(facts, gds, other, found),
        comparison=found, saves=saving(facts, gds, other), cpu_s_per_gb_saved=saved(gds, other),
    )  # fmt: skip


def _helps(facts: Facts, gds: Row, other: Row, found: Comparison) -> Answer:
    state, cores, auto = facts.decisive, cores_saved(gds, other), "auto" in gds["asked"]
    also = f", with {figure(cores)} fewer busy cores" if cores >= 0.05 else ""
    used = " `auto` uses it." if auto else ""
    return Answer(
        "yes", "helps",
        f"GDS helps: {figure(rate(gds))} instead of {figure(rate(other))} GB/s in {state} epochs "
        f"({gain_text(found.gain)}){also}.{used}",
        why=f"{shares_taken(facts, gds, other)} {later_epochs(facts)}",
        do="nothing: `DataLoader(...)` uses gds automatically." if auto else 'Pass `backend="gds"`.',
        otherwise=f"It would not help with a drive below {figure(rate(other))} GB/s, or with data in memory.",
    )  # fmt: skip


def _worse(facts: Facts, gds: Row, other: Row, _found: Comparison) -> Answer:
    state, size = facts.decisive, facts.record["dataset"]["read_bytes"]
    if state == "hot":
        return _in_memory(facts, other, f"gds, which always reads the drive, reads {figure(rate(gds))} GB/s")
    small = f"; a read has only {format_bytes(size)}" if size < 64 * 2**10 else ""
    auto = facts.chosen(state)
    asked = auto is not None and "auto" in auto["asked"]
    used = f" `auto` uses {auto['name']}." if asked and auto and auto["name"] != "gds" else ""
    return Answer(
        "worse", "worse",
        f"Do not use GDS here: {figure(rate(gds))} instead of {figure(rate(other))} GB/s{small}.{used}",
        why=shares_taken(facts, gds, other),
        do=f"Pass `backend=\"{other['name']}\"`." if asked and not used else chosen_by_itself(facts),
        otherwise='Larger reads (`shuffle="block"`), or a drive on the PCIe switch of the GPU, may change that.',
    )  # fmt: skip


def _equal(facts: Facts, gds: Row, other: Row, found: Comparison) -> Answer:
    cores = cores_saved(gds, other)
    many = cores >= _MANY_CORES * facts.cores
    small = found.chance < CHANCE and abs(found.gain) <= EQUAL
    apart = (
        f"A difference of {gain_text(found.gain)} does not matter." if small else "The difference is within the noise."
    )
    return Answer(
        "no", "saves processors" if many else "fits memory" if facts.fits_memory else "equal",
        f"GDS is no faster here, but it saves {figure(cores)} of {facts.cores} cores in {facts.decisive} epochs."
        if many else "GDS does not help you here.",
        why=f"{shares_taken(facts, gds, other)} {apart} {later_epochs(facts)}",
        do='Pass `backend="gds"` if the CPU is busy.'
        if many and "auto" not in gds["asked"] else chosen_by_itself(facts),
        otherwise=would_help(facts, other["name"]),
    )  # fmt: skip


_CASES: tuple[Callable[[Facts], Answer | None], ...] = (
    _nothing, _noisy, _no_gpu, _too_little, _not_cold, _absent, _beside,
)  # fmt: skip
"""The cases in order; the first one that answers counts."""
