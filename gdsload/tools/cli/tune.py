"""`gdsload tune PATH`: the settings that are fastest here, for later loaders to take."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from gdsload.loader.tuned import check_file, check_setting, save
from gdsload.system.units import parse_bytes
from gdsload.tools.bench import make_plan, run_tune
from gdsload.tools.bench.tuning import key_of
from gdsload.tools.cli.bench import add_what, aligned, as_seconds, conditions, figures, what_of
from gdsload.tools.cli.terminal import plain, say

__all__ = ["add_to", "render_text"]

_HEADINGS = ("", "GB/s", "quartiles", "first batch", "waited")
_STATES = ("cold", "hot")
_BUDGETS = ("prefetch_bytes", "pinned_bytes")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("tune", help="measure which settings are fastest here, for loaders to take")
    add_what(parser)
    parser.add_argument(
        "--seconds", type=as_seconds, default=2.0, metavar="S", help="end a trial after S (default: %(default)g)"
    )
    for name in _BUDGETS:
        parser.add_argument(
            f"--{name.replace('_', '-')}", default=None, metavar="SIZE", help="the most to try (default: the loader's)"
        )
    parser.add_argument("--dry-run", action="store_true", help="keep nothing")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    given = {name: getattr(chosen, name) for name in _BUDGETS if getattr(chosen, name) is not None}
    budgets = {name: parse_bytes(value, name, at_least=4 * 2**20) for name, value in given.items()}
    for name, value in budgets.items():
        check_setting(name, value)
    plan = make_plan(**what_of(chosen))
    if not chosen.dry_run:
        check_file()  # before minutes of measuring
    record = run_tune(plan, budgets)
    record["file"] = None
    try:
        if record["measured"] and not chosen.dry_run:
            rounds = {"rounds": _medians(record)}
            record["file"] = save(key_of(plan), record["settings"], record["conditions"] | rounds)
    finally:
        say(json.dumps(record, indent=1) if chosen.json else render_text(record))
    return 0


def _medians(record: dict[str, Any]) -> dict[str, dict[str, float]]:
    """GB/s of every contender, for people who look into the file."""
    return {
        f"{found['setting']}, {state}": {
            entry["contender"]: entry["gb_per_s"]["median"] for entry in found[state]["contenders"]
        }
        for found in record["rounds"]
        for state in _STATES
    }


def render_text(record: dict[str, Any]) -> str:
    """The record for people: conditions, a table for each setting and state of the cache, and what came of it."""
    lines = [*conditions(record)]
    for found in record["rounds"]:
        for state in _STATES:
            lines += ["", *_table(found["setting"], found[state])]
        lines.append(f"best: {found['best']}")
    settings = ", ".join(f"{name}={value}" for name, value in record["settings"].items())
    why = "nothing is faster beyond the spread" if record["measured"] else "no trial was long enough to tell"
    lines += ["", f"settings   {settings or f'the defaults: {why}'}"]
    lines.append(f"kept in    {record['file'] or 'no file'}")
    lines += ["", *(f"- {note}" for note in record["conditions"]["notes"])]
    return "\n".join(map(plain, lines))


def _table(setting: str, found: dict[str, Any]) -> Iterator[str]:
    if not found["contenders"]:
        yield f"{setting}: {found['state']}"
        return
    yield f"{setting}, {found['state']} ({found['checked']})"
    yield from aligned([_HEADINGS, *map(figures, found["contenders"])])
    if found["warning"]:
        yield f"warning: {found['warning']}"
