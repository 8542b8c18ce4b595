"""The plan of a benchmark: the dataset, the loader's options, the trials, and the machine."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gdsload.backends.names import BackendChoice
from gdsload.errors import OptionError
from gdsload.loader.dataset import ShardDataset
from gdsload.loader.paths_and_devices import resolve_device
from gdsload.order.checks import check_whole
from gdsload.shards.format.schema import Schema
from gdsload.system.probe.mounts import find_mount, read_mounts
from gdsload.system.probe.tree import Tree
from gdsload.system.version import __version__

_BATCH_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """A measurement.

    Attributes:
        path: the dataset.
        schema: its fields.
        files: its shards.
        samples: how many it has.
        num_bytes: bytes of its shards.
        digest: the digest of its content.
        device: where batches go.
        batch_size: samples of a batch.
        shuffle: as `gdsload.DataLoader` has it.
        backends: those of the direct contenders, one each.
        trials: timed runs of each contender, in each state of the cache.
        seconds: a trial ends with the first batch after so many; None: with the epoch.
    """

    path: str
    schema: Schema
    files: tuple[str, ...]
    samples: int
    num_bytes: int
    digest: str
    device: torch.device
    batch_size: int
    shuffle: bool | str
    backends: tuple[BackendChoice, ...] = ("auto",)
    trials: int = 5
    seconds: float | None = None

    @property
    def on_device(self) -> bool:
        """True if batches go to a device other than the CPU."""
        return self.device.type != "cpu"


def make_plan(
    path: str,
    *,
    batch_size: int | None = None,
    shuffle: bool | str = False,
    device: str | None = None,
    backends: tuple[BackendChoice, ...] = ("auto",),
    **bounds: Any,
) -> BenchPlan:
    """Look at a dataset and fill in the defaults.

    Args:
        path: the dataset.
        batch_size: samples of a batch; None: about 16 MiB of them.
        shuffle: False, ``"full"`` or ``"block"``.
        device: where batches go; None for the current accelerator, or the CPU if there is none.
        backends: names of backends; each is a contender.
        **bounds: `trials` and `seconds` of the plan.

    Raises:
        OptionError: if an argument cannot be used, or the dataset has no samples.
        DatasetNotFoundError, FormatError: see `ShardDataset`.
    """
    dataset = ShardDataset(path, mmap=False)
    samples = len(dataset)
    if not (samples and any(field.ragged or field.row_bytes for field in dataset.schema.values())):
        raise OptionError("the dataset has no samples with bytes: there is nothing to measure", file=dataset.path)
    if batch_size is None:
        batch_size = min(max(_BATCH_BYTES * samples // max(dataset.num_bytes, 1), 1), samples)
    check_whole(bounds.get("trials", 1), "trials", 1)
    return BenchPlan(
        dataset.path,
        dataset.schema,
        tuple(shard.file for shard in dataset.shards),
        samples,
        dataset.num_bytes,
        dataset.digest,
        resolve_device(device),
        check_whole(batch_size, "batch_size", 1),
        shuffle,
        tuple(dict.fromkeys(backends)),
        **bounds,
    )


def describe(plan: BenchPlan) -> dict[str, Any]:
    """The dataset, for the record."""
    real, status = os.path.realpath(plan.path), os.stat(plan.path)
    mount = find_mount(read_mounts(Tree()), real, f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}")
    return {
        "path": plan.path,
        "digest": plan.digest,
        "samples": plan.samples,
        "bytes": plan.num_bytes,
        "shards": len(plan.files),
        "schema": plan.schema.to_json(),
        "file_system": mount.kind if mount else "unknown",
    }


def machine(device: torch.device) -> dict[str, Any]:
    """The machine, for the record."""
    found = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "ram_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "gpu": None,
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
