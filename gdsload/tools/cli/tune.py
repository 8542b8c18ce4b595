"""`gdsload tune PATH`: the settings that are fastest here, as keywords of the loader."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from gdsload.system.units import parse_bytes
from gdsload.tools.bench import make_plan, run_tune
from gdsload.tools.cli.bench import add_what, aligned, as_seconds, conditions, figures, what_of
from gdsload.tools.cli.terminal import plain, say

__all__ = ["add_to", "render_text"]

_HEADINGS = ("", "GB/s", "quartiles", "first batch", "waited")
_STATES = ("cold", "hot")
_BUDGETS = ("prefetch_bytes", "pinned_bytes")
_MIB = 2**20


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("tune", help="measure which settings are fastest here, and print them as keywords")
    add_what(parser)
    parser.add_argument(
        "--seconds", type=as_seconds, default=2.0, metavar="S", help="end a trial after S (default: %(default)g)"
    )
    for name in _BUDGETS:
        parser.add_argument(
            f"--{name.replace('_', '-')}", default=None, metavar="SIZE", help="the most to try (default: the loader's)"
        )
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    given = {name: getattr(chosen, name) for name in _BUDGETS if getattr(chosen, name) is not None}
    budgets = {name: parse_bytes(value, name, at_least=4 * _MIB) for name, value in given.items()}
    record = run_tune(make_plan(**what_of(chosen)), budgets)
    say(json.dumps(record, indent=1) if chosen.json else render_text(record))
    return 0


def render_text(record: dict[str, Any]) -> str:
    """The record for people: conditions, a table for each setting and state of the cache, and what came of it."""
    lines = [*conditions(record)]
    for found in record["rounds"]:
        for state in _STATES:
            lines += ["", *_table(found["setting"], found[state])]
        lines.append(f"best: {found['best']}")
    why = "nothing is faster beyond the spread" if record["measured"] else "no trial was long enough to tell"
    lines += ["", _call(record["settings"]) if record["settings"] else f"the defaults stay: {why}"]
    lines += ["", *(f"- {note}" for note in record["conditions"]["notes"])]
    return "\n".join(map(plain, lines))


def _call(settings: Mapping[str, int]) -> str:
    """The settings as keywords, to be pasted."""
    keywords = (f"{name}={_literal(name, value)}" for name, value in settings.items())
    return f"gdsload.DataLoader(..., {', '.join(keywords)})"


def _literal(name: str, value: int) -> str:
    """A value as Python has it; sizes as people write them, where that is exact."""
    return f'"{value // _MIB}MiB"' if name.endswith("bytes") and not value % _MIB else str(value)


def _table(setting: str, found: dict[str, Any]) -> Iterator[str]:
    if not found["contenders"]:
        yield f"{setting}: {found['state']}"
        return
    yield f"{setting}, {found['state']} ({found['checked']})"
    yield from aligned([_HEADINGS, *map(figures, found["contenders"])])
    if found["warning"]:
        yield f"warning: {found['warning']}"
