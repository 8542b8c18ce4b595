"""The loader on the CPU beside its peers, out of a hot page cache.

    python -m benchmarks.cpu --out benchmarks/results/cpu.json
    python -m benchmarks.cpu --small --out /tmp/smoke.json

README.md beside this file is the protocol; `python -m benchmarks.table` renders the record.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS, names
from benchmarks.folders import existing_folder
from benchmarks.record import machine, public, versions
from benchmarks.rounds import Plan, run_workload
from benchmarks.workloads import FULL, SEED, SMALL

__all__ = ["main"]

_NAMES = names("cpu", "cpu")
_BASIC = tuple(name for name in _NAMES if CONTENDERS[name].basic)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description="gdsload beside its peers on the CPU")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON record goes")
    parser.add_argument("--small", action="store_true", help="a smoke test of seconds: its numbers mean nothing")
    parser.add_argument("--rounds", type=int, help="default: 5, or 2 with --small")
    parser.add_argument("--seconds", type=float, help="timed seconds of a trial (default: 1, or 0.05 with --small)")
    parser.add_argument("--contenders", nargs="+", choices=_NAMES, metavar="NAME", help=", ".join(_NAMES))
    parser.add_argument("--workloads", nargs="+", choices=[workload.name for workload in FULL], help="default: all")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="the interpreter of a contender that needs its own environment; may be repeated",
    )
    parser.add_argument(
        "--work-dir", type=existing_folder, help="where the data go, 10 GiB of them (default: the temporary folder)"
    )
    options = parser.parse_args(arguments)
    for entry in options.python:
        name, _, path = entry.partition("=")
        if name not in _NAMES or not os.access(path, os.X_OK):
            parser.error(f"--python {entry}: not NAME=PATH with a contender and an interpreter")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run it and write the record; 1 if gdsload or a reference failed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse(arguments)
    small = options.small
    record: dict[str, Any] = {
        "format": 1,
        "small": small,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": ["python", "-m", "benchmarks.cpu", *public(arguments)],
        "machine": machine(),
        "versions": versions(),
    }
    with (
        tempfile.TemporaryDirectory(prefix="gdsload-bench-", dir=options.work_dir) as folder,
        tempfile.TemporaryDirectory(prefix="gb-", ignore_cleanup_errors=True) as scratch,
    ):
        plan = Plan(
            names=tuple(options.contenders or (_BASIC if small else _NAMES)),
            rounds=options.rounds or (2 if small else 5),
            seconds=options.seconds or (0.05 if small else 1.0),
            warm_s=0.02 if small else 0.5,
            pythons=dict(entry.split("=", 1) for entry in options.python),
            scratch=Path(scratch),
        )
        record["protocol"] = {
            "seed": SEED,
            "rounds": plan.rounds,
            "seconds": plan.seconds,
            "warm_s": plan.warm_s,
        }
        record["workloads"] = []
        for workload in SMALL if small else FULL:
            if not options.workloads or workload.name in options.workloads:
                place = Path(folder, workload.name)
                record["workloads"].append(run_workload(workload, plan, place))
                shutil.rmtree(place)  # before the next one: it would need room in the page cache
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"written: {options.out}")
    return 1 if _broken(record) else 0


def _broken(record: dict[str, Any]) -> list[str]:
    """Contenders whose failure is ours. A peer's failure is a result."""
    return [
        entry["name"]
        for workload in record["workloads"]
        for entries in workload["modes"].values()
        for entry in entries
        if CONTENDERS[entry["name"]].ours and "failed" in entry
    ]


if __name__ == "__main__":
    sys.exit(main())
