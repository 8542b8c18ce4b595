"""The checked-out code beside another tree of it, in one run on one machine: what a change of a hot path has to pass.

    python -m benchmarks.against main
    python -m benchmarks.against ../other-checkout --cases images-shuffled tokens-shuffled/gdsload --rounds 12
    python -m benchmarks.against HEAD~3 --device cuda --json against.json

It runs the cases of the suites with gdsload alone, each trial in a fresh process that imports the package from the one
tree or the other; all else, the data too, is the checked-out tree's. For each case it prints the ratio of the median
rates, now to before, and the quartiles of the ratios round by round. The exit status is 1 if a case is slower by more
than is allowed (`benchmarks.against.verdict`) or has no number, 2 if the command is wrong, and 0 otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import gdsload
from benchmarks.against.cases import Case, cpu_cases, cpu_names, gpu_cases, gpu_names
from benchmarks.against.rounds import run_case
from benchmarks.against.trees import Tree, TreeError, opened
from benchmarks.against.verdict import ALLOWED, judge
from benchmarks.folders import existing_folder
from benchmarks.record import machine, versions
from gdsload.system.units import parse_bytes

__all__ = ["main"]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line; `cases` are names of cases, whole."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.against", description="gdsload as it is checked out, beside another tree of it"
    )
    parser.add_argument("tree", metavar="REF_OR_FOLDER", help="a git ref, or a folder with the package gdsload in it")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="whose suite (default: cpu)")
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="CASE or CASE/CONTENDER (default: all)")
    parser.add_argument("--rounds", type=int, default=8, help="trials of each tree in each case (default: 8)")
    parser.add_argument("--bytes", default="4GiB", help="of each kind of rows on a GPU, about (default: 4GiB)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where a record of every trial goes")
    parser.add_argument("--work-dir", type=existing_folder, help="where the data go (default: the temporary folder)")
    parser.add_argument("--small", action="store_true", help="a smoke test of kilobytes: its numbers mean nothing")
    options = parser.parse_args(arguments)
    if options.rounds < 2:
        parser.error("--rounds: at least 2, or there is no spread")
    if options.device == "cuda" and not (options.small or torch.cuda.is_available()):
        parser.error("--device cuda: torch has no CUDA device here")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"{options.json.parent} is no folder")
    try:
        options.bytes = parse_bytes(options.bytes, "--bytes")
    except gdsload.OptionError as error:
        parser.error(str(error))
    names = cpu_names() if options.device == "cpu" else gpu_names()
    wanted = options.cases or names
    if unknown := [case for case in wanted if not any(_means(case, name) for name in names)]:
        parser.error(f"--cases {' '.join(unknown)}: the cases are {', '.join(names)}")
    options.cases = {name for name in names if any(_means(case, name) for case in wanted)}
    return options


def _means(case: str, name: str) -> bool:
    return case in (name, name.partition("/")[0])


def main(arguments: list[str] | None = None) -> int:
    """Compare, print, and say by the exit status whether something has become slower."""
    options = parse(arguments)
    try:
        with opened(options.tree) as trees:
            record = _run(options, trees)
    except TreeError as error:
        print(f"python -m benchmarks.against: {error}", file=sys.stderr)
        return 2
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    bad = [case["name"] for case in record["cases"] if case.get("word", "slower") == "slower"]
    print(f"slower, or without a number: {', '.join(bad) or 'nothing'}")
    if any(case.get("word") == "unclear" for case in record["cases"]):
        print("unclear: trials differ by more than is looked for; a quiet machine or more rounds may tell")
    return 1 if bad else 0


def _run(options: argparse.Namespace, trees: tuple[Tree, Tree]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "format": 1,
        "small": options.small,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": machine(torch.device(options.device) if not options.small else None),
        "versions": versions(),
        "device": options.device,
        "commits": {tree.name: tree.commit for tree in trees},
        "rounds": options.rounds,
        "allowed": ALLOWED,
        "cases": [],
    }
    print(*(f"{key}: {_words(record[key])}" for key in ("machine", "versions", "commits")), sep="\n")
    print("median rate now, to before (quartiles round by round)" + ("; numbers mean nothing" * options.small))
    with (
        tempfile.TemporaryDirectory(prefix="gdsload-bench-", dir=options.work_dir) as folder,
        tempfile.TemporaryDirectory(prefix="gb-", ignore_cleanup_errors=True) as scratch,
    ):
        for case in _cases(options, Path(folder), Path(scratch)):
            found = run_case(case, trees, options.rounds, Path(scratch))
            record["cases"].append(found)
            if "failed" not in found:
                verdict = judge(*([trial[case.rate] for trial in found["trials"][tree.name]] for tree in trees))
                found |= dataclasses.asdict(verdict)
                found["paths"] = {tree.name: _paths(found["trials"][tree.name]) for tree in trees}
            print(f"{case.name:36}{found.get('failed') or verdict}", flush=True)
            if len(set(map(str, found.get("paths", {}).values()))) > 1:
                print(f"  bytes took other paths: {_words(found['paths'])}")
    return record


def _cases(options: argparse.Namespace, folder: Path, scratch: Path) -> Iterator[Case]:
    if options.device == "cpu":
        return cpu_cases(options.cases, folder, scratch, small=options.small)
    device = "cpu" if options.small else options.device
    return gpu_cases(options.cases, folder, device, options.bytes)


def _paths(trials: list[dict[str, Any]]) -> list[str]:
    """The paths that bytes took, by the loader's counters; none on the CPU, where the suite does not ask."""
    return sorted({path for trial in trials for path in trial.get("paths", ())})


def _words(found: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in found.items())


if __name__ == "__main__":
    sys.exit(main())
