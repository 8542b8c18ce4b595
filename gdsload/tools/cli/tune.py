"""`gdsload tune PATH`: the settings that are fastest here, as keywords of the loader."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gdsload.system.units import parse_bytes
from gdsload.tools.cli.bench import add_what, conditions, figures, notes, shown_while, what_of
from gdsload.tools.cli.terminal import plain, say, table, terminal_width, wrapped
from gdsload.tools.cli.usage import Commands, Parser, as_seconds

__all__ = ["add_to", "render_text"]

_HEADINGS = ("", "GB/s", "quartiles", "first batch", "waited")
_STATES = ("cold", "hot")
_BUDGETS = ("prefetch_bytes", "pinned_bytes")
_MIB = 2**20
_WIDTH = 80


def add_to(commands: Commands[Parser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "tune", help="measure which settings are fastest here, and print them as keywords",
        usage="gdsload tune PATH [options]", example="gdsload tune shards/ --batch-size 256 --shuffle full",
        description="Measure which settings of the loader are fastest here, and print them as its keywords.",
    )  # fmt: skip
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

    def measure(progress: Callable[[str, int, int], None]) -> dict[str, Any]:
        from gdsload.tools.bench import make_plan, run_tune

        return run_tune(make_plan(**what_of(chosen)), budgets, progress)

    record = shown_while(measure)
    say(json.dumps(record, indent=1) if chosen.json else render_text(record, terminal_width(sys.stdout) or _WIDTH))
    return 0


def render_text(record: dict[str, Any], width: int = _WIDTH) -> str:
    """The record for people: conditions, a table for each setting and state of the cache, and what came of it."""
    lines = [*conditions(record, width)]
    for found in record["rounds"]:
        for state in _STATES:
            lines += ["", *_table(found["setting"], found[state], width)]
        lines += wrapped(f"best: {found['best']}", width, rest="  ")
    why = "nothing is faster beyond the spread" if record["measured"] else "no trial was long enough to tell"
    lines += ["", _call(record["settings"]) if record["settings"] else f"the defaults stay: {why}"]
    return "\n".join([*lines, *notes(record, width)])


def _call(settings: Mapping[str, int]) -> str:
    """The settings as keywords, to be pasted."""
    keywords = (f"{name}={_literal(name, value)}" for name, value in settings.items())
    return f"gdsload.DataLoader(..., {', '.join(keywords)})"


def _literal(name: str, value: int) -> str:
    """A value as Python has it; sizes as people write them, where that is exact."""
    return f'"{value // _MIB}MiB"' if name.endswith("bytes") and not value % _MIB else str(value)


def _table(setting: str, found: dict[str, Any], width: int) -> Iterator[str]:
    if not found["contenders"]:
        yield from wrapped(plain(f"{setting}: {found['state']}"), width, rest="  ")
        return
    yield from wrapped(f"{setting}, {found['state']} ({found['checked']})", width, rest="  ")
    rows = [figures(entry) for entry in found["contenders"]]
    best = rows[0][0]  # until then; the others have that, too, and one setting more
    if best != "defaults":
        yield from wrapped(f"as before: {best}", width, rest="  ")
        rows = [(row[0].removeprefix(f"{best}, ").replace(best, "as before"), *row[1:]) for row in rows]
    yield from table([_HEADINGS, *rows])
    if found["warning"]:
        yield from wrapped(f"warning: {found['warning']}", width, rest="  ")
