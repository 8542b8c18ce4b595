"""`gdsload doctor [PATH]`: what keeps data from the GPU here, and what to do about it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from gdsload.system.paths import refuse_empty
from gdsload.system.units import counted
from gdsload.tools.cli.terminal import Bar, paint, plain, say, terminal_width, wrapped
from gdsload.tools.cli.usage import Commands, Parser, as_seconds

if TYPE_CHECKING:
    from gdsload.tools.doctor import Finding, Report

_TITLES = {
    "machine": "Machine", "gpu": "GPU", "cufile": "cuFile", "storage": "Storage", "topology": "Topology",
    "memory": "Memory", "packages": "Packages",
}  # fmt: skip
_MARKS = {"ok": "ok", "info": "--", "warning": "!", "error": "ERROR", "unknown": "?"}
_COLOURS = {"ok": "green", "warning": "yellow", "error": "red", "unknown": "cyan"}
_OF_A_GPU = ("gpu", "cufile")
"""Groups whose findings do not matter without a GPU."""
_NAME_WIDTH = 14
_INDENT = " " * 8
_WIDTH = 80
_EXAMPLES = """
gdsload doctor /data/shards
gdsload doctor /data/shards --json > report.json
gdsload doctor /data/shards --strict             for start scripts
"""

Paint = Callable[[str, str], str]


def add_to(commands: Commands[Parser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor", help="say which backend data at a path get on this machine, and why", example=_EXAMPLES,
        usage="gdsload doctor [PATH] [options]",
        description="Say which backend data at PATH get on this machine, why, and what would make it better.",
    )  # fmt: skip
    parser.add_argument(
        "path", metavar="PATH", nargs="?", default=".", help="where the data are (default: this folder)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--device", default=None, help="the GPU, or cpu (default: the current accelerator)")
    parser.add_argument("--no-probe", action="store_true", help="do not ask cuFile itself")
    parser.add_argument(
        "--timeout",
        type=as_seconds,
        default=30.0,
        metavar="S",
        help="seconds for each process with CUDA (default: 30)",
    )
    parser.add_argument("--all", action="store_true", help="list also what does not matter without a GPU")
    parser.add_argument("--strict", action="store_true", help="exit with 1 unless the verdict is gds")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    refuse_empty(chosen.path)
    with closing(Bar(sys.stderr)) as bar:
        bar.say("asking the machine…")
        from gdsload.tools.doctor import diagnose

        report = diagnose(chosen.path, chosen.device, probe=not chosen.no_probe, timeout_s=chosen.timeout)
    if chosen.json:
        say(render_json(report))
    else:
        width = terminal_width(sys.stdout) or _WIDTH
        say(render_text(report, width=width, everything=chosen.all, painted=partial(paint, stream=sys.stdout)))
    return 1 if chosen.strict and report.verdict.backend != "gds" else 0


def render_json(report: Report) -> str:
    """The report as JSON: ``machine``, ``findings``, ``verdict``."""
    tree = {
        "machine": report.machine,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        "verdict": dataclasses.asdict(report.verdict),
    }
    return json.dumps(tree, indent=1)


def render_text(
    report: Report, *, width: int = _WIDTH, everything: bool = False, painted: Paint = lambda text, _colour: text
) -> str:
    """The report for people: the verdict, what would make it better, and a line for each finding.

    Args:
        report: the report.
        width: how long lines may be.
        everything: whether facts are listed that do not matter without a GPU.
        painted: gives a text a colour.
    """
    verdict = report.verdict
    lines = [f"{painted('Verdict:', 'bold')} {painted(verdict.backend, 'bold')}"]
    lines += wrapped(plain(verdict.why), width, first="  ", rest="  ")
    if verdict.improvements:
        lines.append("To make it better:")
    for count, text in enumerate(verdict.improvements, 1):
        lines += wrapped(plain(text), width, first=f"  {count}. ", rest="     ")
    useless = not everything and any(one.check == "gpu.device" and one.severity == "info" for one in report.findings)
    for group, title in _TITLES.items():
        found = [finding for finding in report.findings if finding.check.partition(".")[0] == group]
        shown = found
        if useless and group in _OF_A_GPU:
            shown = [one for one in found if one.severity in ("warning", "error") or one.check == "gpu.device"]
        if found:
            lines += ["", painted(title, "bold"), *(line for one in shown for line in _lines(one, width, painted))]
        if len(shown) < len(found):
            left = counted(len(found) - len(shown), f"{'more ' if shown else ''}check")
            lines.append(f"   --  {left} for machines with a GPU; --all lists them")
    return "\n".join(lines)


def _lines(finding: Finding, width: int, painted: Paint) -> list[str]:
    mark, name = f"{_MARKS[finding.severity]:>5}", f"{finding.check.partition('.')[2]:<{_NAME_WIDTH}}"
    first = f"{mark}  {name} "
    lines = wrapped(plain(finding.message), width, first=first, rest=" " * len(first))
    if finding.severity in _COLOURS:
        lines[0] = painted(mark, _COLOURS[finding.severity]) + lines[0][len(mark) :]
    if finding.remedy and finding.severity in ("warning", "error"):
        lines += wrapped(plain(finding.remedy), width, first=f"{_INDENT}-> ", rest=f"{_INDENT}   ")
    return lines
