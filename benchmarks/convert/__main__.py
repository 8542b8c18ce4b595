"""Benchmark of conversions to shards.

    python -m benchmarks.convert --out benchmarks/results/convert.json
    python -m benchmarks.convert --small --out /tmp/smoke.json

README.md beside this file is the protocol; `python -m benchmarks.convert.table` renders the record.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.convert.data import FULL, SMALL, Samples, image_files, make
from benchmarks.convert.writers import NAMES
from benchmarks.folders import existing_folder
from benchmarks.processes import Launch, Process, WorkerError
from benchmarks.record import faults, machine, public, ratio, spread, versions
from benchmarks.residency import measure, warm
from benchmarks.rounds import busy_cores

__all__ = ["main"]

_TRIAL_S = 1800
_RATIOS = (
    ("gdsload", "copy"), ("gdsload", "gdsload-w1"), ("gdsload", "arrow"), ("gdsload", "pandas"), ("gdsload", "litdata"),
    ("gdsload", "mosaicml"),
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run it and write the record; 1 if gdsload or the reference failed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parse(arguments)
    record: dict[str, Any] = {
        "format": 1,
        "small": options.small,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": ["python", "-m", "benchmarks.convert", *public(arguments)],
        "machine": machine(),
        "versions": versions(),
        "rounds": options.rounds or (2 if options.small else 5),
        "workloads": [],
    }
    with tempfile.TemporaryDirectory(prefix="gdsload-convert-", dir=options.work_dir) as folder:
        for samples in (one for one in (SMALL if options.small else FULL) if one.kind in options.kinds):
            place = Path(folder, samples.kind)
            record["workloads"].append(_run(samples, options, record["rounds"], place))
            shutil.rmtree(place)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"written: {options.out}")
    entries = [entry for workload in record["workloads"] for entry in workload["entries"]]
    return int(any("failed" in entry for entry in entries if entry["name"].startswith(("copy", "gdsload"))))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convert", description="conversion beside its peers")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON record goes")
    parser.add_argument("--small", action="store_true", help="a smoke test of seconds: its numbers mean nothing")
    parser.add_argument("--rounds", type=int, help="default: 5, or 2 with --small")
    parser.add_argument("--contenders", nargs="+", choices=list(NAMES), default=list(NAMES), metavar="NAME")
    kinds = [samples.kind for samples in FULL]
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds, help="of which samples (default: all)")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH", help="a contender's interpreter")
    parser.add_argument(
        "--work-dir", type=existing_folder, help="where the data go, 5 GiB (default: the temporary folder)"
    )
    return parser.parse_args(arguments)


def _run(samples: Samples, options: argparse.Namespace, rounds: int, folder: Path) -> dict[str, Any]:
    """One kind of samples: make them, have each contender write them once and compare, then run the rounds."""
    folder.mkdir(parents=True)
    source = folder / samples.file_name
    _say(f"{samples.title}: generating")
    make(samples, source)
    files = [Path(file) for file in image_files(source)] if samples.kind == "images" else [source]
    names = [name for name in options.contenders if samples.kind in NAMES[name].kinds]
    entries: list[dict[str, Any]] = []
    busy: list[float] = []
    with ExitStack() as stack:
        processes = list(_processes(samples, names, options, source, stack))
        for process in processes:
            entries.append({"name": process.name, "title": NAMES[process.name].title, "trials": []})
            _ask(process, entries[-1], "check")
        pairs = list(zip(processes, entries, strict=True))
        for number in range(rounds):
            busy.append(busy_cores())
            shift = number * len(pairs) // rounds  # nobody is always the first, or the last
            for process, entry in pairs[shift:] + pairs[:shift]:
                warm(files)
                entry["least_resident"] = min(entry.get("least_resident", 1.0), measure(files).fraction)
                _ask(process, entry, "trial")
            _say(f"{samples.title}: round {number + 1} of {rounds}")
    return {
        **samples.to_json(), "title": samples.title, "nbytes": samples.nbytes, "entries": entries,
        "busy_cores_before_rounds": busy, "ratios": _finish(entries, samples),
    }  # fmt: skip


def _processes(
    samples: Samples, names: list[str], options: argparse.Namespace, source: Path, stack: ExitStack
) -> Iterator[Process]:
    pythons = dict(entry.split("=", 1) for entry in options.python)
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gc-", ignore_cleanup_errors=True)))
    for name in names:
        launch = Launch(pythons.get(name, sys.executable), scratch, "benchmarks.convert.worker")
        process = Process(name, source.parent / name, source, samples, launch)
        stack.callback(process.stop)
        yield process


def _ask(process: Process, entry: dict[str, Any], op: str) -> None:
    """Have the samples written; what goes wrong is noted, and ends the contender."""
    if "failed" in entry:
        return
    try:
        if op == "check":
            entry |= process.start()
        found = process.ask({"op": op}, _TRIAL_S)
    except WorkerError as error:
        _say(f"  {process.name}: {op} failed: {error}")
        entry["failed"] = {"stage": op, "reason": str(error)}
        return
    if op == "trial":
        entry["trials"].append(found)
        return
    entry["check"] = found
    if reason := faults(found):
        entry["failed"] = {"stage": op, "reason": reason}


def _finish(entries: list[dict[str, Any]], samples: Samples) -> dict[str, Any]:
    """Add the rates, and give their ratios, round by round."""
    rates = {}
    for entry in entries:
        if "failed" not in entry:
            rates[entry["name"]] = [samples.nbytes / trial["seconds"] / 1e6 for trial in entry["trials"]]
            entry["mb_s"] = spread(rates[entry["name"]])
    return {
        f"{above}/{below}": ratio(rates[above], rates[below])
        for above, below in _RATIOS
        if above in rates and below in rates
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
