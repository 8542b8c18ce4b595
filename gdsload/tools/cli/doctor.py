"""`gdsload doctor [PATH]`: what keeps data from the GPU here, and what to do about it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import textwrap

from gdsload.system.units import format_bytes
from gdsload.tools.cli.terminal import plain, say, table
from gdsload.tools.doctor import Finding, Report, diagnose

__all__ = ["add_to", "render_json", "render_text"]

_TITLES = {
    "machine": "Machine", "gpu": "GPU", "cufile": "cuFile", "storage": "Storage", "topology": "Topology",
    "memory": "Memory", "packages": "Packages",
}  # fmt: skip
_MARKS = {"ok": "ok", "info": "--", "warning": "!", "error": "ERROR", "unknown": "?"}
_COLOURS = {"ok": "32", "warning": "33", "error": "31", "unknown": "36"}
_NAME_WIDTH = 14
_INDENT = " " * 8
_WIDTH = 120


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("doctor", help="say which backend data at a path get on this machine, and why")
    parser.add_argument(
        "path", metavar="PATH", nargs="?", default=".", help="where the data lie (default: this folder)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--device", default=None, help="the GPU, or cpu (default: the current accelerator)")
    parser.add_argument("--no-probe", action="store_true", help="do not ask cuFile itself")
    parser.add_argument("--refresh", action="store_true", help="ask cuFile even if its answer is known from before")
    parser.add_argument(
        "--timeout",
        type=float,
        default=20.0,
        metavar="S",
        help="seconds for CUDA, and for loading and asking cuFile each (default: 20)",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 unless the verdict is gds")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    report = diagnose(
        chosen.path,
        chosen.device,
        probe=not chosen.no_probe,
        refresh=chosen.refresh,
        timeout_s=max(chosen.timeout, 0.0),
    )
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    say(render_json(report) if chosen.json else render_text(report, colour=colour))
    return 1 if chosen.strict and report.verdict.backend != "gds" else 0


def render_json(report: Report) -> str:
    """The report as JSON: ``machine``, ``findings``, ``verdict``."""
    tree = {
        "machine": report.machine,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        "verdict": dataclasses.asdict(report.verdict),
    }
    return json.dumps(tree, indent=1)


def render_text(report: Report, *, colour: bool = False) -> str:
    """The report for people: one line for each finding, remedies below those that need one, the verdict last."""
    lines = []
    for group, title in _TITLES.items():
        found = [finding for finding in report.findings if finding.check.partition(".")[0] == group]
        if found:
            lines += [title, *(line for finding in found for line in _lines(finding, colour)), ""]
    lines += _drives(report)
    verdict = report.verdict
    lines += [f"Verdict: {verdict.backend}", f"  {plain(verdict.why)}"]
    if verdict.improvements:
        lines.append("To make it better:")
    for count, text in enumerate(verdict.improvements, 1):
        lines += textwrap.wrap(
            plain(text), _WIDTH, initial_indent=f"  {count}. ", subsequent_indent="     ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)


def _drives(report: Report) -> list[str]:
    """Drive by drive what lies there, and how far it is from each GPU; nothing if all lies on one."""
    found = next((finding.evidence for finding in report.findings if finding.check == "topology.drives"), {})
    mounts, gpus = found.get("mounts", []), found.get("gpus", [])
    if len(mounts) < 2:
        return []
    rows = [("mount", "device", "PCI", "node", "shards", "size", *(f"to GPU {gpu}" for gpu in gpus))]
    for mount in mounts:
        what = (str(mount["shards"]), format_bytes(mount["bytes"]))
        for drive in mount["drives"] or [{"pci": "-", "node": None, "gpus": {}}]:
            node = "-" if drive["node"] is None else str(drive["node"])
            far = [drive["gpus"].get(gpu, "unknown") for gpu in gpus]
            rows.append((plain(mount["mount"]), plain(mount["device"]), drive["pci"], node, *what, *far))
            what = ("", "")
    return ["Drives", *(f"  {line}" for line in table(rows)), ""]


def _lines(finding: Finding, colour: bool) -> list[str]:
    mark = f"{_MARKS[finding.severity]:>5}"
    if colour and finding.severity in _COLOURS:
        mark = f"\x1b[{_COLOURS[finding.severity]}m{mark}\x1b[0m"
    lines = [f"{mark}  {finding.check.partition('.')[2]:<{_NAME_WIDTH}} {plain(finding.message)}"]
    if finding.remedy and finding.severity in ("warning", "error"):
        lines += textwrap.wrap(
            plain(finding.remedy), _WIDTH, initial_indent=f"{_INDENT}-> ", subsequent_indent=f"{_INDENT}   ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return lines
