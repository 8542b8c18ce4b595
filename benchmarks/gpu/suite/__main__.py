"""gdsload beside its peers on a machine with a GPU.

    python -m benchmarks.gpu.suite --out benchmarks/results/gpu-loaders.json
    python -m benchmarks.gpu.suite --out benchmarks/results/gpu-loaders.json --merge --only images-cold memory
    python -m benchmarks.gpu.suite --small --device cpu --out /tmp/smoke.json

../README.md is the protocol; `python -m benchmarks.gpu.suite.table` renders the record.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import CONTENDERS, names
from benchmarks.folders import existing_folder
from benchmarks.gpu.suite.cases import CASES, MEASURES, Rows, make_rows, small
from benchmarks.gpu.suite.rounds import Plan, run
from benchmarks.record import machine, merged, pruned, versions
from gdsload.system.units import parse_bytes

__all__ = ["main"]

_WARM_S, _COLD_S = 0.3, 1.5
_OWN_SAMPLES = 2**18
"""Samples at most that are written in the format of a peer that has its own."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.suite", description="loaders beside gdsload, on a GPU"
    )
    cases = [each.name for each in (*CASES, *MEASURES)]
    peers = [name for name in names("gpu", "cuda") if not CONTENDERS[name].ours]
    parser.add_argument("--out", type=Path, required=True, help="where the JSON record goes")
    parser.add_argument("--merge", action="store_true", help="keep what the record has of other cases")
    parser.add_argument("--only", nargs="+", choices=cases, metavar="CASE", help=", ".join(cases))
    parser.add_argument("--peers", nargs="*", choices=peers, default=peers, metavar="PEER", help=", ".join(peers))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bytes", default="4GiB", help="of each kind of rows, about (default: 4GiB)")
    parser.add_argument("--seconds-per-trial", type=float, default=0.4, help="timed seconds (default: 0.4)")
    parser.add_argument(
        "--minutes", type=float, default=8, help="by when the last round should have ended (default: 8)"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, help="of each contender that uses workers (default: one a core)")
    parser.add_argument("--small", action="store_true", help="a smoke test of kilobytes: its numbers mean nothing")
    parser.add_argument(
        "--work-dir", type=existing_folder, help="where the data go, 30 GiB of them (default: the temporary folder)"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run it and write the record; 1 if something of gdsload's failed."""
    options = parse(arguments)
    end = time.monotonic() + 60 * options.minutes
    before = _begun(options)
    with (
        tempfile.TemporaryDirectory(prefix="gdsload-bench-", dir=options.work_dir) as folder,
        tempfile.TemporaryDirectory(prefix="gb-", ignore_cleanup_errors=True) as scratch,
    ):
        plan = _plan(options, end)
        conditions = _conditions(plan, options)
        for cases, measures in run(plan, Path(folder), Path(scratch)):
            # After each round: what is stopped half-way has not been for nothing.
            record = _merged(before, conditions, {"cases": cases, "measures": measures})
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    failed = _broken(cases, measures)
    print(f"written: {options.out}; failed of gdsload's: {', '.join(failed) or 'nothing'}")
    return 1 if failed else 0


def _merged(before: dict[str, Any], conditions: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """A record, with what was found now instead of what it had of the same cases and measures."""
    number, order = len(before["runs"]), [each.name for each in (*CASES, *MEASURES)]
    record = {**before, "runs": [*before["runs"], conditions]}
    for kind, now in found.items():
        record[kind] = sorted(merged(before[kind], now, number), key=lambda each: order.index(each["name"]))
    return pruned(record, tuple(found))


def _begun(options: argparse.Namespace) -> dict[str, Any]:
    """The record to be added to."""
    if options.merge and options.out.exists():
        found: dict[str, Any] = json.loads(options.out.read_text(encoding="utf-8"))
        return found
    return {"format": 1, "runs": [], "cases": [], "measures": []}


def _plan(options: argparse.Namespace, end: float) -> Plan:
    workers = options.workers or len(os.sched_getaffinity(0))
    if options.small:
        rows, cases, measures = small()
    else:
        rows, cases, measures = make_rows(parse_bytes(options.bytes, "--bytes"), multiple=workers), CASES, MEASURES
    kind = torch.device(options.device).type
    able, on_gpu = names("gpu", kind), kind == "cuda"
    chosen = tuple(
        case for case in cases if (not options.only or case.name in options.only) and (on_gpu or not case.gpu)
    )
    return Plan(
        names=tuple(name for name in able if CONTENDERS[name].ours or name in options.peers),
        rows=rows,
        own_samples={each.name: _own(each, chosen, workers) for each in rows.values()},
        cases=chosen,
        measures=tuple(each for each in measures if not options.only or each.name in options.only),
        device=options.device,
        workers=workers,
        rounds=options.rounds,
        times={
            "warm_s": 0.02 if options.small else _WARM_S,
            "seconds": 0.02 if options.small else options.seconds_per_trial,
            "cold_s": _COLD_S,
        },
        end=end,
    )


def _own(rows: Rows, cases: tuple[Any, ...], workers: int) -> int:
    """Half of the samples, and not too many, but an equal number of whole batches for each worker."""
    batch = max((case.batch_size for case in cases if case.rows == rows.name and not case.gpu), default=1)
    equal = batch * workers
    return max(min(rows.samples // 2, _OWN_SAMPLES) // equal, 1) * equal


def _conditions(plan: Plan, options: argparse.Namespace) -> dict[str, Any]:
    """The conditions of all measurements of one call. No paths: those of this machine help nobody."""
    device = torch.device(plan.device)
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "small": options.small,
        "device": device.type,
        "machine": machine(device),
        "versions": versions(),
        "rounds": plan.rounds,
        "bytes": options.bytes,
        "workers": plan.workers,
        "own_samples": plan.own_samples,
        **plan.times,
    }


def _broken(cases: list[dict[str, Any]], measures: list[dict[str, Any]]) -> list[str]:
    entries = [(case, entry) for case in cases for entry in case["entries"]]
    found = [
        f"{case['name']} {entry['name']}"
        for case, entry in entries
        if CONTENDERS[entry["name"]].ours and "failed" in entry
    ]
    return found + [each["name"] for each in measures if "failed" in each]


if __name__ == "__main__":
    sys.exit(main())
