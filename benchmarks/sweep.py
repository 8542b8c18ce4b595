"""Benchmark of the settings that have defaults: one after the other, around the defaults, cold and hot.

    python -m benchmarks.sweep --out sweep.json
    python -m benchmarks.sweep --out sweep.json --device cuda --bytes 16GiB --work-dir /mnt/nvme

Each value of a setting is run once a round, from another starting point in every round, each with its own loader,
which is given with `mmap=False` where batches stay in CPU memory: only so does a cold disk have to be read ahead of.
With `--mapped` it is not: rows then come straight from the page cache.
Shown are medians and quartiles of GB/s, and the depth of reads at the end; `*` marks the default.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch

import gdsload
from benchmarks.folders import existing_folder
from benchmarks.record import public, spread
from gdsload.backends.bounce import bounce
from gdsload.backends.names import BackendChoice
from gdsload.engine import pace
from gdsload.loader import budgets
from gdsload.loader.options import default_budgets
from gdsload.system.units import format_bytes, parse_bytes
from gdsload.tools.bench.bench_plan import BenchPlan, describe, machine, make_plan, versions
from gdsload.tools.bench.by_hand import StoredRows
from gdsload.tools.bench.cache_state import drop, fill
from gdsload.tools.bench.rows import LoaderRow
from gdsload.tools.bench.turns import Warm, late_samples, run_turn, settle

__all__ = ["main"]

_MIB = 2**20
_PREFETCH = [size * _MIB for size in (32, 64, 128, 256, 512, 1024)]
_PINNED = [size * _MIB for size in (32, 64, 128, 256, 512)]
_BLOCK = [size * _MIB for size in (1, 2, 4, 8, 16)]
_GROUP = [size * _MIB for size in (2, 4, 8, 16, 24, 32, 48, 64, 128)]
_DEPTHS = [1, 2, 4, 8, 16, 32]
_THREADS = [2, 4, 8, 12, 16, 32]
_SMALL = 2
"""Values of each setting in a smoke test."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a setting.

    Attributes:
        shown: the value, for people.
        options: options of the loader.
        patches: constants of the library: module, name and value.
    """

    shown: str
    options: dict[str, Any]
    patches: tuple[tuple[ModuleType, str, int], ...] = ()


def _settings(backend: str) -> Iterator[tuple[str, list[Value]]]:
    """The settings, and their values; the first is what the library does by itself."""
    yield "reads ahead", [Value("adaptive *", {}), *map(_depth, _DEPTHS)]
    own, _ = default_budgets("host", torch.device("cpu"))
    if backend != "host":
        own, _ = default_budgets("gpu", torch.device("cuda"))
    sizes = [size for size in _PREFETCH if size != own]
    yield "prefetch", [Value(f"{format_bytes(own)} *", {}), *map(_prefetch, sizes)]
    if backend in ("auto", "bounce"):
        sizes = [size for size in _PINNED if size != bounce.PINNED_BYTES]
        yield (
            "pinned",
            [Value(f"{format_bytes(bounce.PINNED_BYTES)} *", {}), *(_pinned(backend, size) for size in sizes)],
        )
    yield "group bytes", [Value("own *", {}), *map(_group, _GROUP)]
    yield "threads", [Value("own *", {}), *(_threads(backend, count) for count in _THREADS)]
    if backend in ("auto", "bounce"):
        yield "block bytes", [Value("own *", {}), *(_block(backend, size) for size in _BLOCK)]


def _prefetch(nbytes: int) -> Value:
    return Value(format_bytes(nbytes), {"memory": gdsload.Memory(prefetch=nbytes)})


def _pinned(backend: str, nbytes: int) -> Value:
    kind = gdsload.Bounce if backend == "bounce" else gdsload.Auto
    return Value(format_bytes(nbytes), {"backend": kind(pinned=nbytes)})


def _threads(backend: str, count: int) -> Value:
    kinds = {"auto": gdsload.Auto, "bounce": gdsload.Bounce, "gds": gdsload.Gds}
    return Value(str(count), {"backend": kinds.get(backend, gdsload.Auto)(threads=count)})  # auto is host on the CPU


def _depth(depth: int) -> Value:
    return Value(str(depth), {}, ((pace, "LEAST", depth), (pace, "MOST", depth)))


def _group(nbytes: int) -> Value:
    names = (
        *("_LEAST_GROUP_BYTES", "_MOST_GROUP_BYTES", "_GROUP_BYTES_IN_ORDER"),
        *("_GROUP_BYTES_ON_GPU", "_MOST_LANDING_BYTES"),
    )
    return Value(format_bytes(nbytes), {}, tuple((budgets, name, nbytes) for name in names))


def _block(backend: str, nbytes: int) -> Value:
    """Blocks of one size, as many of them as by default."""
    ring = (bounce._THREADS + bounce._COPIED) * nbytes  # noqa: SLF001
    patches = ((bounce, "_MAX_BLOCK_BYTES", nbytes), (bounce, "_MIN_BLOCK_BYTES", nbytes))
    return Value(format_bytes(nbytes), _pinned(backend, ring).options, patches)


def _sweep(
    plan: BenchPlan, backend: BackendChoice, values: list[Value], state: str, *, mapped: bool
) -> list[dict[str, Any]]:
    """Trials of each value of a setting, in turns."""
    more = {"mmap": False} if not plan.on_device and not mapped else {}
    entries: list[dict[str, Any]] = [{"value": value.shown, "gb_s": [], "depth": 0} for value in values]
    for number in range(plan.turns):
        for index in ((number + shift) % len(values) for shift in range(len(values))):
            value, entry = values[index], entries[index]
            trial, depth = _trial(plan, LoaderRow(plan, backend, more | value.options), value, state, number)
            entry["gb_s"].append(trial["gb_per_s"])
            entry["depth"] = depth
    return [entry | spread(entry["gb_s"]) for entry in entries]


def _trial(plan: BenchPlan, row: LoaderRow, value: Value, state: str, number: int) -> tuple[dict[str, Any], int]:
    def prepare(epoch: int) -> Warm:
        found = drop(plan.files) if state == "cold" else fill(plan.files)
        if not (found.cold if state == "cold" else found.hot):
            raise RuntimeError(f"the files cannot be made {state}: {found}")
        return late_samples(plan, StoredRows(plan.path), epoch)

    with ExitStack() as stack:
        for module, name, wanted in value.patches:
            stack.enter_context(mock.patch.object(module, name, wanted))
        stack.callback(row.close)
        if state == "hot":
            prepare(0)
            settle(row, plan, plan.limit_s)
        turn, _ = run_turn(row, plan, number, prepare if state == "cold" else None)
        return turn, row.loader.stats.reads_ahead


def _write(folder: Path, nbytes: int, row_bytes: int) -> str:
    random, step = np.random.default_rng(0), max(64 * _MIB // row_bytes, 1)
    with gdsload.ShardWriter(folder, {"x": gdsload.Field("uint8", (row_bytes,))}) as writer:
        for low in range(0, max(nbytes // row_bytes, 1), step):
            rows = min(step, max(nbytes // row_bytes, 1) - low)
            writer.write_batch({"x": random.integers(0, 256, (rows, row_bytes), np.uint8)})
    return str(folder)


def _tables(record: dict[str, Any]) -> Iterator[str]:
    for found in record["sweeps"]:
        yield f"\n{found['setting']}, {found['backend']}, {found['state']}"
        for entry in found["values"]:
            rate = f"{entry['median']:6.2f} GB/s ({entry['q1']:.2f} to {entry['q3']:.2f})"
            yield f"  {entry['value']:14}{rate:32}reads ahead {entry['depth']}"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description="settings, one after the other")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON record goes")
    parser.add_argument("--device", default=None)
    parser.add_argument("--backends", nargs="+", default=None, help="(default: auto and bounce, on the CPU host)")
    parser.add_argument("--states", nargs="+", default=["cold", "hot"], choices=("cold", "hot"))
    parser.add_argument("--settings", nargs="+", default=None, help="some of them only")
    parser.add_argument("--shuffle", default="full", choices=("none", "full", "block"))
    parser.add_argument("--bytes", default="2GiB")
    parser.add_argument("--row-bytes", type=int, default=65536)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each trial, after its ramp")
    parser.add_argument("--work-dir", type=existing_folder, help="where the data go (default: the temporary folder)")
    parser.add_argument("--mapped", action="store_true", help="leave shards mapped on the CPU")
    parser.add_argument("--small", action="store_true", help="a smoke test, whose numbers mean nothing")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure, write the record, and print tables."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="gdsload-bench-", dir=options.work_dir) as folder:
        path = _write(Path(folder, "shards"), parse_bytes(options.bytes, "--bytes"), options.row_bytes)
        shuffle = False if options.shuffle == "none" else options.shuffle
        plan = make_plan(
            path, batch_size=options.batch_size, shuffle=shuffle, device=options.device, turns=options.rounds,
            seconds=options.seconds,
        )  # fmt: skip
        record: dict[str, Any] = {
            "format": 1,
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "command": ["python", "-m", "benchmarks.sweep", *public(arguments or sys.argv[1:])],
            "machine": machine(plan.device),
            "versions": versions(),
            "data": {name: value for name, value in describe(plan).items() if name not in ("path", "schema")},
            "conditions": {"batch_size": plan.batch_size, "row_bytes": options.row_bytes, "shuffle": options.shuffle,
                           "rounds": plan.turns, "seconds": plan.turn_s, "device": str(plan.device),
                           "mapped": options.mapped},
            "sweeps": [],
        }  # fmt: skip
        for backend in options.backends or (["auto", "bounce"] if plan.device.type == "cuda" else ["host"]):
            for setting, values in _settings(backend):
                if options.settings is not None and setting not in options.settings:
                    continue
                for state in options.states:
                    chosen = values[: _SMALL if options.small else None]
                    entries = _sweep(plan, backend, chosen, state, mapped=options.mapped)
                    found = {"setting": setting, "backend": backend, "state": state, "values": entries}
                    record["sweeps"].append(found)
                    print("\n".join(_tables({"sweeps": [found]})), flush=True)
                    options.out.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print("\nThe numbers mean nothing: --small" if options.small else f"\n{record['machine']}\n{record['conditions']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
