"""The plan of a benchmark: the dataset, the loader's options, the turns, and the machine."""

from __future__ import annotations

import datetime as dt
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from gdsload.backends.names import BackendChoice
from gdsload.backends.select import dma_is_possible
from gdsload.engine.steps import Ordered
from gdsload.errors import OptionError
from gdsload.loader.batch_fields import mean_sample_bytes
from gdsload.loader.dataset import ShardDataset
from gdsload.loader.loader import DataLoader
from gdsload.loader.paths_and_devices import resolve_device
from gdsload.loader.selection import select
from gdsload.order import OrderOptions, Schedule, make_order
from gdsload.order.checks import check_whole
from gdsload.system.arrays import IntArray
from gdsload.system.probe.mounts import find_mount, read_mounts
from gdsload.system.probe.tree import Tree
from gdsload.system.ram import memory_room
from gdsload.system.units import counted
from gdsload.system.version import __version__
from gdsload.tools.doctor.block import find_block

_BATCH_BYTES, _MOST_SAMPLES = 16 * 2**20, 2**16
_BLOCK_READ_BYTES = 4 * 2**20
"""Bytes of a read where neighbours are read together: in order, and with the block shuffle."""
LEAST_BATCHES = 20
"""Batches of a turn below which chance weighs more than the row."""
BY_HAND_EVERY = 3
"""Rounds of which one has the rows that no verdict compares: those by hand, kvikio's and torch's."""
_TURNS_SHARE = 0.65
_COLD_TO_HOT = 3
"""How much longer a cold turn is: batches come from the drive, of which many have to come."""
_RAMP_S, _HOT_RAMP_S = 0.3, 0.1
_AROUND_COLD_S, _AROUND_HOT_S = 1.1, 0.2
"""About what a turn takes besides what is measured: its ramp, and, cold, dropping the dataset and opening a loader."""
_MOST_WORKERS = 16
SEED = 0
_SCHEMA = 1


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class BenchPlan:
    """A measurement. Times are in seconds.

    Attributes:
        order: the order of the samples, which follows from `shuffle`.
        shuffle: as `gdsload.DataLoader` has it.
        turns: how often each row is measured in each state of the page cache.
        turn_s: seconds of each where it is cold, without the ramp.
        hot_turn_s: the same where it is hot.
        ramp_s: seconds, at the least, that are discarded at the beginning of each where it is cold.
        budget_s: seconds that all may take; None: as many as the turns need.
    """

    dataset: ShardDataset
    device: torch.device
    batch_size: int
    sample_bytes: float
    order: OrderOptions
    shuffle: bool | str = True
    backends: tuple[BackendChoice, ...] = ("auto",)
    turns: int = 9
    turn_s: float = 1.0
    hot_turn_s: float = 1.0
    ramp_s: float = _RAMP_S
    budget_s: float | None = 120.0
    cold: bool = True
    hot: bool = True
    workers: int = field(default_factory=lambda: min(_cores(), _MOST_WORKERS))
    step_ms: float | None = None
    torch_row: bool = True

    @property
    def path(self) -> str:
        """The dataset's path."""
        return self.dataset.path

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Its shards."""
        return tuple(shard.file for shard in self.dataset.shards)

    @property
    def on_device(self) -> bool:
        """True if batches go to a device other than the CPU."""
        return self.device.type != "cpu"

    @property
    def read_bytes(self) -> int:
        """Bytes of one read of this dataset in this order: of the largest field of a sample, or of many neighbours."""
        if self.order.shuffle != "full":
            return _BLOCK_READ_BYTES
        columns = self.dataset.stored.columns.values()
        fixed = [column.row_bytes for column in columns if not column.ragged]
        rest = int(self.sample_bytes) - sum(fixed)
        ragged = sum(column.ragged for column in columns)
        return max([*fixed, rest // max(ragged, 1) if ragged else 0, 1])

    @property
    def limit_s(self) -> float:
        """Seconds for what is not a turn: a measurement of the drive, say."""
        return min(max(self.whole_s / 24, 0.1), 5.0)

    @property
    def whole_s(self) -> float:
        """Seconds that all of it may take, or about takes."""
        return self.budget_s or self.turns_s / _TURNS_SHARE

    @property
    def turns_s(self) -> float:
        """About how many seconds the turns take, with what is not measured of them."""
        return self.cold * self.state_s(cold=True) + self.hot * self.state_s(cold=False)

    def state_s(self, *, cold: bool) -> float:
        """The part of `turns_s` with the page cache cold, or hot."""
        on_cuda = self.device.type == "cuda"
        paths = len(self.backends) - ("auto" in self.backends) if on_cuda else 1
        paths -= cold and "mapped" in self.backends  # it gathers from the page cache alone
        by_hand = 1 + self.torch_row + (cold and on_cuda)
        turns = self.turns * (max(paths, 1) + 1) + self.turns_by_hand * by_hand
        return turns * (self.turn_s + _AROUND_COLD_S if cold else self.hot_turn_s + _AROUND_HOT_S)

    @property
    def turns_by_hand(self) -> int:
        """Turns of each row that is not gdsload's."""
        return -(-self.turns // BY_HAND_EVERY)

    def of_hot_turns(self) -> BenchPlan:
        """The plan with turns as they are where the page cache is hot: a row finds its pace earlier."""
        return replace(self, turn_s=self.hot_turn_s, ramp_s=min(_HOT_RAMP_S, self.hot_turn_s))

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        return -(-len(self.dataset) // self.batch_size)

    def ids(self, epoch: int, steps: Iterable[int] | None = None) -> Iterator[IntArray]:
        """The samples of batches of an epoch, in the order of gdsload's loader: of these, or for None of all."""
        order = make_order(self.order, self.dataset.counts.tolist(), SEED, epoch)
        ordered = Ordered(order, Schedule(len(self.dataset), self.batch_size, lanes=order.lanes))
        return (ordered.positions(range(step, step + 1)) for step in (range(self.batches) if steps is None else steps))


def make_plan(
    path: str,
    *,
    batch_size: int | None = None,
    device: str | None = None,
    backends: tuple[BackendChoice, ...] | None = None,
    seconds: float | None = None,
    **options: Any,
) -> BenchPlan:
    """Look at a dataset and fill in the defaults.

    Args:
        path: the dataset.
        batch_size: samples of a batch; None: about 16 MiB of them, 65536 at most.
        device: where batches go; None for the current accelerator, or the CPU if there is none.
        backends: names of backends; None: all that could be of use here.
        seconds: seconds of each turn, whatever that takes in all; None: as many as the budget has room for.
        **options: further attributes of the plan by name; None for the default.

    Raises:
        OptionError: if an argument cannot be used, or the dataset has no samples.
        DatasetNotFoundError, FormatError: see `ShardDataset`.
    """
    dataset = ShardDataset(path, mmap=False)
    if not (len(dataset) and any(field.ragged or field.row_bytes for field in dataset.schema.values())):
        raise OptionError("the dataset has no samples with bytes to measure", file=dataset.path)
    sample_bytes = max(mean_sample_bytes(select(dataset), tuple(dataset.schema)), 1.0)
    if batch_size is None:
        batch_size = min(max(int(_BATCH_BYTES / sample_bytes), 1), _MOST_SAMPLES, len(dataset))
    found = resolve_device(device)
    given = {name: value for name, value in options.items() if value is not None}
    batch_size = check_whole(batch_size, "batch_size", 1)
    plan = BenchPlan(
        dataset, found, batch_size, sample_bytes,
        DataLoader(dataset, batch_size, given.get("shuffle", True), device="cpu").order_options,
        backends=tuple(dict.fromkeys(backends or _useful(found))), **given,
    )  # fmt: skip
    check_whole(plan.turns, "turns", 1)
    check_whole(plan.workers, "workers", 1)
    for name, value in (("budget", plan.budget_s), ("seconds", seconds)):
        if value is not None and not value > 0:
            raise OptionError("must be more than 0 seconds", option=name)
    return _timed(plan) if seconds is None else _with_turns(replace(plan, budget_s=None), seconds, seconds)


def _useful(device: torch.device) -> tuple[BackendChoice, ...]:
    """The backends that are tried where none is named."""
    if device.type != "cuda":
        return ("auto",)
    return ("auto", "gds", "bounce", "mapped") if dma_is_possible()[0] else ("auto", "bounce", "mapped")


def _timed(plan: BenchPlan) -> BenchPlan:
    """The plan with turns as long as the budget has room for."""
    # The rest goes to what is no turn: bytes compared, limits, the cold start, workers that begin.
    whole_s = _TURNS_SHARE * (plan.budget_s or 0)
    around_s = replace(plan, turn_s=0.0, hot_turn_s=0.0).turns_s
    parts = replace(plan, turn_s=_COLD_TO_HOT, hot_turn_s=1.0).turns_s - around_s
    hot_s = max(whole_s - around_s, whole_s / 4) / max(parts, 1.0)
    return _with_turns(plan, _COLD_TO_HOT * hot_s, hot_s)


def _with_turns(plan: BenchPlan, cold_s: float, hot_s: float) -> BenchPlan:
    return replace(plan, turn_s=cold_s, hot_turn_s=hot_s, ramp_s=min(_RAMP_S, cold_s))


def plan_text(plan: BenchPlan) -> str:
    """The plan in one line: turns, batches, order, and how long all of it takes at most."""
    about = f"{plan.whole_s:.0f} s" if plan.whole_s < 90 else f"{plan.whole_s / 60:.0f} min"
    order = {"sequential": "in order"}.get(plan.order.shuffle, f"{plan.order.shuffle} shuffle")
    lengths = [f"{plan.turn_s:.2g} s cold"] * plan.cold + [f"{plan.hot_turn_s:.2g} s hot"] * plan.hot
    return (
        f"{counted(plan.turns, 'turn')} of {' and '.join(lengths)} for each row of gdsload's, {plan.turns_by_hand} for "
        f"others, interleaved; batches of {plan.batch_size} "
        f"({plan.batch_size * plan.sample_bytes / 2**20:.3g} MiB), {order}; about {about}"
    )


def empty_record(plan: BenchPlan) -> dict[str, Any]:
    """The record of a measurement before anything is measured."""
    return {
        "schema": _SCHEMA,
        "when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "command": f"gdsload bench {plan.path}",
        "machine": machine(plan.device),
        "versions": versions(),
        "dataset": describe(plan),
        "conditions": conditions(plan),
        "verified": [],
        "limits": {"drive": None, "drive_why": "it was not measured", "link": None, "memory": None},
        "cold_start": None,
        "cold": None,
        "hot": None,
        "stopped": None,
    }


def describe(plan: BenchPlan) -> dict[str, Any]:
    """The dataset, for the record."""
    real, status, tree = os.path.realpath(plan.path), os.stat(plan.path), Tree()
    mount = find_mount(read_mounts(tree), real, f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}")
    block = find_block(tree, mount) if mount else None
    room = memory_room(tree) or 0
    return {
        "path": plan.path,
        "digest": plan.dataset.digest,
        "samples": len(plan.dataset),
        "bytes": plan.dataset.num_bytes,
        "shards": len(plan.files),
        "schema": plan.dataset.schema.to_json(),
        "file_system": mount.kind if mount else "unknown",
        "drive": (block.detail.strip() or block.name) if block else None,
        "read_bytes": plan.read_bytes,
        "memory_bytes": room,
        "fits_memory": plan.dataset.num_bytes <= room,
    }


def conditions(plan: BenchPlan) -> dict[str, Any]:
    """How it is measured, for the record."""
    notes = [
        "cold: not in this kernel's page cache; caches of the drive or of a virtual machine's host are not known",
        "cold: a part of a turn ends when samples of the end of its epoch are in the page cache",
        "cold: the page cache is dropped before each part, which uses a new gdsload loader",
        "rates are measured after a ramp; latency is the time since the previous batch; gdsload's come in groups",
        "bytes from the drive: /proc/PID/io of this process and its workers, during the turns",
        "the consumer does nothing with the batches",
    ]
    if not plan.on_device:
        notes.insert(0, "no accelerator: batches of all rows end in host memory, not in GPU memory")
    if plan.batches < LEAST_BATCHES:
        notes.insert(
            0,
            f"an epoch has fewer than {LEAST_BATCHES} batches, so its start and end weigh on all rates: measure a "
            "generated dataset, --make 8GiB DIR, or pass a smaller --batch-size",
        )
    same = ("batch_size", "turns", "turn_s", "hot_turn_s", "ramp_s", "budget_s", "step_ms", "workers")
    return {name: getattr(plan, name) for name in same} | {
        "device": str(plan.device),
        "batch_bytes": int(plan.batch_size * plan.sample_bytes),
        "shuffle": {"sequential": "none"}.get(plan.order.shuffle, plan.order.shuffle),
        "unavailable": {},
        "notes": notes,
    }


def machine(device: torch.device) -> dict[str, Any]:
    """The machine, for the record."""
    found = {
        "cpu": _cpu_model(),
        "cores": _cores(),
        "ram_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "gpu": None,
        "load": os.getloadavg()[0],
    }
    if device.type == "cuda":
        driver = (Tree().text("/proc/driver/nvidia/version") or "").partition("\n")[0]
        found |= {"gpu": torch.cuda.get_device_name(device), "gpu_driver": driver}
    elif device.type != "cpu":
        found["gpu"] = str(device)
    return found


def versions() -> dict[str, str]:
    """The versions of all that the numbers depend on."""
    return {
        "gdsload": __version__,
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "cuda": torch.version.cuda or "none",
    }


def _cpu_model() -> str:
    for line in (Tree().text("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
