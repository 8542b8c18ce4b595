"""`gdsload doctor [PATH]`: the read path of the data on this machine, and the steps to GPUDirect Storage."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING

from gdsload.system.paths import refuse_empty
from gdsload.system.units import counted
from gdsload.tools.cli.terminal import Bar, page_width, paint, plain, say, wrapped
from gdsload.tools.cli.usage import Commands, Parser, as_seconds

if TYPE_CHECKING:
    from gdsload.tools.doctor import Finding, Report, Way

_TITLES = {"gpu": "GPU", "cufile": "cuFile"}
_MARKS = {"ok": "ok", "info": "·", "warning": "!", "error": "ERROR", "unknown": "?"}
_COLOURS = {"ok": "green", "warning": "yellow", "error": "red", "unknown": "cyan"}
_NAME_WIDTH = 16
_WIDTH = 80
_TWO_COLUMNS = 100
"""The width from which the two ways are side by side."""
_EXAMPLES = """
gdsload doctor /data/shards
gdsload doctor /data/shards --fix                print commands to paste
gdsload doctor /data/shards --json > report.json
gdsload doctor /data/shards --strict             for start scripts
"""

Paint = Callable[[str, str], str]


def add_to(commands: Commands[Parser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor", help="show the read path of data on this machine, and what GDS needs", example=_EXAMPLES,
        usage="gdsload doctor [PATH] [options]",
        description="Show which backend reads data at PATH on this machine, why, and the steps to GPUDirect Storage.",
    )  # fmt: skip
    parser.add_argument(
        "path", metavar="PATH", nargs="?", default=".", help="the file or folder of the data (default: this folder)"
    )
    parser.add_argument("--fix", action="store_true", help="print the commands of the nearest way to GDS")
    parser.add_argument("--all", action="store_true", help="list every check")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--device", default=None, help="the GPU, or cpu (default: the current accelerator)")
    parser.add_argument(
        "--probe", action=argparse.BooleanOptionalAction, default=None,
        help="make a trial read with cuFile (default: unless it is known to hang this machine)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=as_seconds, default=30.0, metavar="S", help="seconds for each process with CUDA (default: 30)"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 unless the verdict is gds")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    refuse_empty(chosen.path)
    with closing(Bar(sys.stderr)) as bar:
        bar.say("checking the machine…")
        from gdsload.tools.doctor import diagnose

        report = diagnose(chosen.path, chosen.device, probe=chosen.probe, timeout_s=chosen.timeout)
    if chosen.json:
        say(render_json(report))
    elif chosen.fix:
        say(render_script(report))
    else:
        width = page_width()
        say(render_text(report, width=width, everything=chosen.all, painted=partial(paint, stream=sys.stdout)))
    return 1 if chosen.strict and report.verdict.backend != "gds" else 0


def render_json(report: Report) -> str:
    """The report as JSON: ``machine``, ``findings``, ``verdict``, ``ways``."""
    return json.dumps(dataclasses.asdict(report), indent=1)


def render_script(report: Report) -> str:
    """The commands of all steps, as a shell script."""
    from gdsload.tools.doctor import script

    lines = script(_shown_ways(report), [one for one in _others(report) if one.bad])
    return "\n".join(map(plain, lines)) or "# nothing to do"


def render_text(
    report: Report, *, width: int = _WIDTH, everything: bool = False, painted: Paint = lambda text, _colour: text
) -> str:
    """The report as text of a given width; with `everything` it lists every check.

    It has the data and the machine, the backend, what is missing for DMA, the ways to it, and what else is not as it
    should be.
    """
    verdict, ways, others = report.verdict, _shown_ways(report), _others(report)
    path, room = shlex.quote(plain(report.machine["path"])), width - _indent(width)
    fine = sum(one.severity in ("ok", "info") for one in report.findings)
    sections = [
        ("Data", _data(report)),
        ("Machine", _machine(report)),
        ("You get", f"{verdict.backend}: {verdict.why}"),
        ("Missing", verdict.missing),
        ("Worth it?", verdict.worth.replace("PATH", path)),
    ]
    lines: list[str] = []
    for title, text in sections:
        lines += _section(title, wrapped(plain(text), room), width, painted) if text else []
    if ways:
        host = "; root is the host's" if report.machine["container"] else ""
        hint = wrapped(f"`gdsload doctor {path} --fix` prints the commands{host}", room)
        lines += ["", *_section("For GDS", [*_steps(ways, room), *hint], width, painted)]
    if others:
        lines += ["", painted("Also", "bold"), *(line for one in others for line in _lines(one, width, painted))]
    if everything:
        lines += _groups(report.findings, width, painted)
    else:
        lines += ["", *_section("Fine", [f"{counted(fine, 'check')} (--all)"], width, painted)]
    return "\n".join(lines)


def _shown_ways(report: Report) -> tuple[Way, ...]:
    return report.ways if report.verdict.backend in ("bounce", "mapped") else ()


def _others(report: Report) -> list[Finding]:
    """The findings that need attention, without those of the ways."""
    from gdsload.tools.doctor.verdict import CONDITIONS

    steps = [step for way in _shown_ways(report) for step in way.steps]
    said = {step.check for step in steps} | {"cufile.probe"}
    said |= {check for way in _shown_ways(report) for check in CONDITIONS[way.name]}
    found = [one for one in report.findings if one.severity not in ("ok", "info")]
    if report.verdict.backend == "host":
        return [one for one in found if not one.check.startswith("cufile.")]
    return [one for one in found if not (steps and one.check in said) and one.fix not in [step.fix for step in steps]]


def _data(report: Report) -> str:
    machine = report.machine
    path = next((one.message for one in report.findings if one.check == "storage.path"), machine["path"])
    on = f" on {machine['device_of_data']}" if machine["device_of_data"] else ""
    return f"{path}, {machine['filesystem']}{on}" if machine["filesystem"] else path


def _machine(report: Report) -> str:
    machine = report.machine
    kind = "open" if machine["open_driver"] else "proprietary"
    words = [
        machine["gpu"] or "no NVIDIA GPU",
        f"driver {machine['driver']} ({kind})" if machine["driver"] else "",
        f"libcufile {machine['libcufile']}" if machine["libcufile"] and machine["gpu"] else "",
        f"Linux {machine['kernel']}" if machine["kernel"] else "",
        f"torch {machine['torch']}" if machine["torch"] else "no torch",
        "container" if machine["container"] else "",
    ]
    return ", ".join(filter(None, words))


def _indent(width: int) -> int:
    return 12 if width >= 60 else 2


def _section(title: str, lines: Iterable[str], width: int, painted: Paint) -> list[str]:
    """Indented lines with a title before the first one, or above them in a narrow terminal."""
    first, *rest = (" " * _indent(width) + line for line in lines)
    if _indent(width) <= len(title):
        return [painted(title, "bold"), first, *rest]
    return [painted(title, "bold") + first[len(title) :], *rest]


def _steps(ways: Sequence[Way], width: int) -> list[str]:
    """The steps of the ways: the common ones, then those of each way, side by side if there is room."""
    from gdsload.tools.doctor.verdict import TITLES, nearest_first

    common = ways[0].steps[: ways[0].common]
    lines = wrapped("first, for both ways:", width) if common else []
    lines += _numbered(common, 1, "", width)
    side = (width - 4) // 2 if width + _indent(width) >= _TWO_COLUMNS else width
    columns = []
    for letter, way in zip("AB", ways, strict=False):
        near = "; nearest" * (way == nearest_first(ways)[0])
        met = f"{way.holds} of {way.of} requirements met"
        column = wrapped(f"{letter}. {TITLES[way.name]} ({met}{near})", side, rest="   ")
        failing = [f"not possible here: {plain(text)}" for text in way.obstacles]
        for text in (*failing, *(f"unknown: {plain(text)}" for text in way.unclear)):
            column += wrapped(text, side, first="   ", rest="   ")
        own = way.steps[way.common :]
        column += [] if way.obstacles else _numbered(own, len(common) + 1, letter.lower(), side)
        columns.append(column)
    if side == width:
        return lines + [line for column in columns for line in column]
    return lines + [f"{left:<{side}}    {right}".rstrip() for left, right in zip_longest(*columns, fillvalue="")]


def _numbered(steps: Sequence[Finding], start: int, letter: str, width: int) -> list[str]:
    lines: list[str] = []
    for number, step in enumerate(steps, start):
        first = f"{f'{number}{letter}.':<4}{step.fix.who:<10}"
        takes = f" ({step.fix.takes})" if step.fix.takes else ""
        lines += wrapped(
            plain(step.fix.does + takes), width, first=first, rest=" " * (len(first) if width >= 36 else 4)
        )
    return lines


def _groups(findings: Sequence[Finding], width: int, painted: Paint) -> list[str]:
    lines: list[str] = []
    for group, found in groupby(findings, lambda one: one.check.partition(".")[0]):
        title = _TITLES.get(group, group.capitalize())
        lines += ["", painted(title, "bold"), *(line for one in found for line in _lines(one, width, painted))]
    return lines


def _lines(finding: Finding, width: int, painted: Paint) -> list[str]:
    mark, name = f"{_MARKS[finding.severity]:>5}", f"{finding.check.partition('.')[2]:<{_NAME_WIDTH}}"
    first = f"{mark}  {name} "
    rest = " " * (len(first) if width >= 60 else 7)
    lines = wrapped(plain(finding.message), width, first=first, rest=rest)
    if finding.severity in _COLOURS:
        lines[0] = painted(mark, _COLOURS[finding.severity]) + lines[0][len(mark) :]
    if finding.remedy and finding.severity != "info":
        lines += wrapped(plain(finding.remedy), width, first="       -> ", rest="          ")
    return lines
