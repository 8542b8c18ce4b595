"""`gdsload verify PATH`: a dataset's structure, its bytes against their checksums, and what its bytes mean."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import closing
from dataclasses import asdict
from typing import Any

from gdsload.errors import FormatError, GdsloadError
from gdsload.system.units import counted, format_bytes
from gdsload.tools.cli.faults import show_fault
from gdsload.tools.cli.terminal import Bar, elapsed, paint, say, say_wrapped, terminal_width, wrapped
from gdsload.tools.cli.usage import Commands, Parser

_SHOWN = 20


def add_to(commands: Commands[Parser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "verify", help="check a dataset's structure and every byte against its checksum",
        usage="gdsload verify PATH [options]", example="gdsload verify shards/\ngdsload verify shards/ --deep --json",
        description="Check a dataset's structure, and every byte against its checksum.\n"
        "The exit code is 1 if something is wrong; which samples are spoiled is printed.",
    )  # fmt: skip
    parser.add_argument("path", metavar="PATH", help="a dataset's folder, a folder of safetensors files, or one file")
    parser.add_argument(
        "--deep", action="store_true", help="also check that samples can be made of the bytes, and count NaN and Inf"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    began = time.monotonic()
    try:
        with closing(Bar(sys.stderr)) as bar:
            bar.say("looking at the shards…")
            from gdsload.shards.catalog import open_catalog
            from gdsload.shards.verify import verify_shards

            found = open_catalog(chosen.path, whole=False)
            report = verify_shards(
                found.sources, found.stored, deep=chosen.deep, progress=lambda done, of: bar.show(done, of, nbytes=done)
            )
    except GdsloadError as error:
        if chosen.json:
            say(json.dumps(_unsound(chosen.path, error), indent=1))
        elif isinstance(error, FormatError):
            _complain(error)
        else:
            raise
        return 1
    seconds = time.monotonic() - began
    if chosen.json:
        tree = {"ok": True, "path": found.path, "samples": found.samples, "seconds": seconds, **asdict(report)}
        say(json.dumps(tree, indent=1))
        return 0
    said = f"{counted(found.samples, 'sample')}, {counted(report.shards, 'shard')}"
    if report.checked_bytes:
        pace = f"{elapsed(seconds)}, {format_bytes(report.checked_bytes / max(seconds, 1e-3))}/s"
        said += f": {format_bytes(report.checked_bytes)} match their checksums ({pace})"
    first, *rest = wrapped(said, terminal_width(sys.stdout), first="ok  ", rest="    ")
    say("\n".join([paint("ok", "green", sys.stdout) + first[2:], *rest]))
    if report.unchecked_bytes:
        say(f"{format_bytes(report.unchecked_bytes)} have no checksums: gdsload did not write them")
    if chosen.deep:
        say(f"all {counted(found.samples, 'sample')} can be made")
        for name in dict.fromkeys([*report.nan, *report.infinite]):
            nan, infinite = report.nan.get(name, 0), report.infinite.get(name, 0)
            say_wrapped(f"field {name}: {counted(nan, 'value')} NaN, {infinite} infinite", first="  ", rest="    ")
    return 0


def _complain(error: FormatError) -> None:
    """Write an error to the error stream, and all spoiled samples to the output."""
    show_fault(error, {}, more="--json")
    if error.samples:
        count = sum(high - low for low, high in error.samples)
        are = "sample is" if count == 1 else "samples are"
        shown = [str(low) if high == low + 1 else f"{low} to {high - 1}" for low, high in error.samples[:_SHOWN]]
        more = ["…"] if len(error.samples) > _SHOWN else []
        say_wrapped(f"{count} {are} spoiled: {', '.join(shown + more)}")


def _unsound(path: str, error: GdsloadError) -> dict[str, Any]:
    samples, problems = (error.samples, error.problems) if isinstance(error, FormatError) else ((), ())
    return {
        "ok": False,
        "path": path,
        "error": error.message,
        "spoiled_samples": samples,
        "problems": [asdict(problem) for problem in problems],
    }
