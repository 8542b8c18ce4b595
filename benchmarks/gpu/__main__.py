"""Files into GPU memory, on every path, beside what the link and the disk can do.

    python -m benchmarks.gpu --out benchmarks/results/gpu.json
    python -m benchmarks.gpu --out benchmarks/results/gpu.json --merge --only cold overlap --loads bounce gds-cufile

README.md beside this file is the protocol; `python -m benchmarks.gpu.table` renders the record.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.folders import existing_folder
from benchmarks.gpu.data import ROW_BYTES, Data
from benchmarks.gpu.loads import Bounce, CopyPeak, DiskPeak, Gds, Load, MappedRows, MappedStream
from benchmarks.gpu.overlap import Compute, overlap
from benchmarks.gpu.ownership import CHOICES, Ownership
from benchmarks.gpu.users import KvikioAsync, KvikioRead, Loader
from benchmarks.record import machine, merged, ratio, spread, versions
from gdsload.system.units import parse_bytes
from gdsload.tools.bench.cache_state import drop, fill

__all__ = ["main"]

_PARTS = ("cold", "hot", "overlap", "ownership")
_COMPUTE_S = 1.0
_HOT_S = 0.4
"""Seconds that a trial out of the page cache takes at least, pass after pass."""
_LOAD_S = 0.5
"""Seconds that a load is to take in the overlap trials, about."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="files into GPU memory")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON record goes")
    parser.add_argument("--merge", action="store_true", help="keep what the record has, but for what is measured now")
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=_PARTS, metavar="PART", help=", ".join(_PARTS))
    parser.add_argument("--loads", nargs="+", metavar="NAME", help="only these, and the limits (default: all)")
    parser.add_argument("--bytes", default="4GiB", help="how much data (default: 4GiB)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work-dir", type=existing_folder, help="where the data go (default: the temporary folder)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run it and write the record; 1 if something of gdsload's failed."""
    options = parse(arguments)
    device = torch.device("cuda", torch.cuda.current_device())
    record: dict[str, Any] = {"format": 2, "runs": [], **{part: [] for part in _PARTS}, "ratios": {}}
    if options.merge and options.out.exists():
        record = json.loads(options.out.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="gdsload-bench-", dir=options.work_dir) as folder:
        _configure_cufile(Path(folder))
        data = Data.write(Path(folder, "shards"), parse_bytes(options.bytes, "--bytes"), device)
        record["runs"].append(_conditions(options, data, device))
        for part, measure in _parts(data, device, options.rounds, options.loads).items():
            if part in options.only:
                record[part] = merged(record[part], measure(), len(record["runs"]) - 1)
                record["ratios"] = _ratios(record)
                # After each part: what is stopped half-way has not been for nothing.
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name, found in record["ratios"].items():
        print(f"{name}: {found['median']:.3f} ({found['q1']:.3f} to {found['q3']:.3f})")
    failed = [e["name"] for part in ("cold", "hot", "overlap") for e in record[part] if "failed" in e]
    print("failed:", failed or "nothing")
    return 1 if any(not name.startswith("kvikio") for name in failed) else 0


def _conditions(options: argparse.Namespace, data: Data, device: torch.device) -> dict[str, Any]:
    """The conditions of all measurements of one call."""
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "rounds": options.rounds,
        "machine": machine(device),
        "versions": versions(),
        "data": {"bytes": data.nbytes, "shards": len(data.paths), "row_bytes": ROW_BYTES},
    }


def _parts(
    data: Data, device: torch.device, rounds: int, names: list[str] | None
) -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """The parts of a record, and what measures each."""
    compute = Compute(device, _COMPUTE_S)

    def chosen(loads: list[Load]) -> list[Load]:
        return [load for load in loads if names is None or load.name in (*names, "copy-peak", "disk-peak")]

    return {
        "cold": lambda: _phase(chosen(_cold_loads(data, device)), data, rounds, cold=True),
        "hot": lambda: _phase(chosen(_hot_loads(data, device)), data, rounds, cold=False),
        "overlap": lambda: _overlaps(chosen(_overlap_loads(data, device)), data, rounds, compute),
        "ownership": lambda: _ownership(data, device, rounds, compute),
    }


def _configure_cufile(folder: Path) -> None:
    """Counters on, and its compat mode allowed where there is no DMA; kvikio's asynchronous calls want a file."""
    config = folder / "cufile.json"
    config.write_text('{"properties": {"allow_compat_mode": true}, "profile": {"cufile_stats": 3}}', encoding="utf-8")
    os.environ.setdefault("CUFILE_ENV_PATH_JSON", str(config))
    os.environ.setdefault("CUFILE_LOGFILE_PATH", str(folder / "cufile.log"))


def _cold_loads(data: Data, device: torch.device) -> list[Load]:
    return [DiskPeak(data, device), Bounce(data, device), Gds(data, device, "cufile"), Gds(data, device, "kvikio")]


def _hot_loads(data: Data, device: torch.device) -> list[Load]:
    return [
        CopyPeak(data, device), Bounce(data, device), MappedStream(data, device), MappedRows(data, device),
        MappedRows(data, device, 0), Gds(data, device, "cufile"), Gds(data, device, "kvikio"),
        KvikioRead(data, device, True), KvikioRead(data, device, False),
        *(Loader(data, device, name, order) for name in ("auto", "bounce") for order in (False, "full")),
    ]  # fmt: skip


def _overlap_loads(data: Data, device: torch.device) -> list[Load]:
    grids: list[Load] = [MappedRows(data, device, blocks) for blocks in (None, 16, 64, 132, 0)]
    return [
        Bounce(data, device), MappedStream(data, device), *grids, Gds(data, device, "cufile"),
        Gds(data, device, "kvikio"), KvikioRead(data, device, True), KvikioRead(data, device, False),
        KvikioAsync(data, device),
    ]  # fmt: skip


def _entry(load: Load) -> dict[str, Any]:
    return {"name": load.name, "title": load.title, "trials": []}


def _failed(entry: dict[str, Any], error: Exception) -> None:
    entry["failed"] = f"{type(error).__name__}: {error}"[:500]
    print(f"{entry['name']} failed: {entry['failed']}", flush=True)


def _phase(loads: list[Load], data: Data, rounds: int, *, cold: bool) -> list[dict[str, Any]]:
    """Each load once a round, from another starting point in every round.

    Each is opened for itself: pages that one has mapped or registered would not get cold for another.
    """
    entries = [_entry(load) for load in loads]
    for number in range(rounds):
        for index in ((number + shift) % len(loads) for shift in range(len(loads))):
            if "failed" not in entries[index]:
                try:
                    entries[index]["trials"].append(_trial(loads[index], entries[index], data, cold=cold))
                except Exception as error:
                    _failed(entries[index], error)
    for entry in entries:
        if entry["trials"]:
            entry["gb_s"] = spread([trial["gb_s"] for trial in entry["trials"]])
            print(f"{'cold' if cold else 'hot'} {entry['name']}: {entry['gb_s']['median']:.2f} GB/s", flush=True)
    return entries


def _trial(load: Load, entry: dict[str, Any], data: Data, *, cold: bool) -> dict[str, Any]:
    fill(data.names)
    load.open()
    try:
        if "verified_bytes" not in entry:
            entry["verified_bytes"] = load.verify()
        load.run()  # threads, slots and pools of memory are then there
        resident = drop(data.names) if cold else fill(data.names)
        if cold and not resident.cold:
            raise RuntimeError(f"the files cannot be made cold: {resident}")
        before, cpu = load.paths(), _cpu_s()
        nbytes, seconds, began = 0, 0.0, time.perf_counter()
        while seconds < (0 if cold else _HOT_S) or not nbytes:
            nbytes += load.run()
            seconds = time.perf_counter() - began
        after = load.paths()
        moved = {path: count - before.get(path, 0) for path, count in after.items() if count != before.get(path, 0)}
        return {
            "bytes": nbytes,
            "seconds": seconds,
            "gb_s": nbytes / seconds / 1e9,
            "cpu_s_per_gb": (_cpu_s() - cpu) / (nbytes / 1e9),
            "resident": resident.share,
            "paths": moved,
        }
    finally:
        load.close()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _fit(load: Load) -> int:
    """Have a load take about `_LOAD_S`: how many passes that are, or a share of one."""
    load.run()
    began = time.perf_counter()
    load.run()
    seconds = time.perf_counter() - began
    load.share = min(_LOAD_S / seconds, 1.0)
    return max(round(_LOAD_S / seconds), 1)


def _overlaps(loads: list[Load], data: Data, rounds: int, compute: Compute) -> list[dict[str, Any]]:
    fill(data.names)
    entries, passes, opened = [_entry(load) for load in loads], {}, []
    for load, entry in zip(loads, entries, strict=True):
        try:
            load.open()
            opened.append(load)
            entry["verified_bytes"] = load.verify()
            passes[load.name] = _fit(load)
        except Exception as error:
            _failed(entry, error)
    for number in range(rounds):
        for index in ((number + shift) % len(loads) for shift in range(len(loads))):
            if "failed" not in entries[index]:
                try:
                    entries[index]["trials"].append(overlap(loads[index], compute, passes[loads[index].name]))
                except Exception as error:
                    _failed(entries[index], error)
    for load in opened:
        load.close()
    for entry in entries:
        if entry["trials"]:
            entry["over_longer"] = spread([trial["over_longer"] for trial in entry["trials"]])
            print(f"overlap {entry['name']}: {entry['over_longer']['median']:.3f} of the longer", flush=True)
    return entries


def _ownership(data: Data, device: torch.device, rounds: int, compute: Compute) -> list[dict[str, Any]]:
    ownership = Ownership(data, device)
    entries: list[dict[str, Any]] = [{"name": choice, "trials": []} for choice in CHOICES]
    for number in range(rounds):
        for entry in entries[number % len(entries) :] + entries[: number % len(entries)]:
            entry["trials"].append(ownership.trial(entry["name"], compute))
    ownership.close()
    for entry in entries:
        entry["seconds"] = spread([trial["seconds"] for trial in entry["trials"]])
        print(f"memory {entry['name']}: {entry['seconds']['median']:.3f} s", flush=True)
    return entries


def _ratios(record: dict[str, Any]) -> dict[str, Any]:
    """Round by round, within one run."""
    found = {}
    for part, peak, limit in (("hot", "copy-peak", "P"), ("cold", "disk-peak", "D")):
        entries = {entry["name"]: entry for entry in record[part]}
        for name, entry in entries.items():
            below = entries[peak]
            if name != peak and entry["run"] == below["run"] and len(entry["trials"]) == len(below["trials"]):
                rates = ([trial["gb_s"] for trial in each["trials"]] for each in (entry, below))
                found[f"{part} {name} / {limit}"] = ratio(*rates)
    return found


if __name__ == "__main__":
    sys.exit(main())
