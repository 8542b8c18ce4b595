"""The contenders of both suites: a row for each here, which names a class with the methods of `base.Contender`."""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass
from typing import Any, Literal

import torch

from benchmarks.contenders.base import Contender

__all__ = ["CONTENDERS", "ROWS", "Row", "about", "load", "names"]

Suite = Literal["cpu", "gpu"]
DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Row:
    """A contender's entry in the registry, read without importing its library, which may be absent.

    Attributes:
        name: its key in records and on command lines.
        where: the module in this package, and the class.
        package: the distribution that is measured, for its version; empty for a reference or a limit.
        module: what to import, if not named as the package.
        suites: the suites that it may take part in.
        devices: kinds of device that it can hand out batches on.
        many_shards: whether it reads the rows in many shards instead of one.
    """

    name: str
    where: str
    package: str = ""
    module: str = ""
    suites: tuple[Suite, ...] = ("cpu", "gpu")
    devices: tuple[DeviceKind, ...] = ("cpu", "cuda")
    many_shards: bool = False

    @property
    def ours(self) -> bool:
        """True if its failure is ours. A peer's failure is a result."""
        return self.package in ("", "gdsload")

    @property
    def basic(self) -> bool:
        """True if it needs nothing besides gdsload's own dependencies."""
        return self.ours or self.package == "torch"


ROWS = (
    Row("P", "limits:CopyPeak", suites=("gpu",)),
    Row("D", "limits:DiskPeak", suites=("gpu",)),
    Row("gather", "limits:ResidentGather", suites=("gpu",), devices=("cuda",)),
    Row("copy", "references:ContiguousCopy", suites=("cpu",), devices=("cpu",)),
    Row("numpy", "references:FancyIndexing", suites=("cpu",), devices=("cpu",)),
    Row("gdsload", "gdsload_loader:Gdsload", "gdsload"),
    Row("gdsload-block", "gdsload_loader:GdsloadBlock", "gdsload", suites=("cpu",)),
    Row("gdsload-bounce", "gdsload_loader:GdsloadBounce", "gdsload", suites=("gpu",), devices=("cuda",)),
    Row("gdsload-shards", "gdsload_loader:GdsloadShards", "gdsload", suites=("gpu",), many_shards=True),
    Row("gdsload-vram", "gdsload_loader:GdsloadVram", "gdsload", suites=("gpu",), devices=("cuda",)),
    Row("torch-items-w0", "torch_loader:TorchItemsAlone", "torch", suites=("cpu",)),
    Row("torch-items", "torch_loader:TorchItems", "torch"),
    Row("torch-batches-w0", "torch_loader:TorchBatchesAlone", "torch", suites=("cpu",)),
    Row("torch-batches", "torch_loader:TorchBatches", "torch"),
    Row("datasets", "huggingface:HuggingFace", "datasets"),
    Row("webdataset", "tar_files:WebDatasetTar", "webdataset"),
    Row("mosaicml", "mosaicml:MosaicML", "mosaicml-streaming", "streaming"),
    Row("litdata", "lightning:LitData", "litdata"),
    Row("grain", "grain_loader:Grain", "grain"),
    Row("grain-processes", "grain_loader:GrainProcesses", "grain"),
    Row("spdl", "spdl_loader:Spdl", "spdl", "spdl.pipeline"),
    Row("kvikio", "kvikio_loader:Kvikio", "kvikio-cu13", "kvikio", suites=("gpu",), devices=("cuda",)),
    Row("safetensors", "safetensors_loader:Safetensors", "safetensors", suites=("gpu",)),
    Row("dali", "dali_loader:Dali", "nvidia-dali-cuda130", "nvidia.dali", suites=("gpu",)),
)
"""All of them, in the order of the tables."""

CONTENDERS = {row.name: row for row in ROWS}
"""The same by name."""


def names(suite: Suite, device: str) -> tuple[str, ...]:
    """Those that may take part in a suite, on a kind of device."""
    return tuple(row.name for row in ROWS if suite in row.suites and device in row.devices)


def load(name: str) -> type[Contender]:
    """The class of a contender, for use in its own process.

    Raises:
        ImportError: if its library is not installed.
    """
    row = CONTENDERS[name]
    module, kind = row.where.split(":")
    found: type[Contender] = getattr(importlib.import_module(f"benchmarks.contenders.{module}"), kind)
    if row.package:
        importlib.import_module(row.module or row.package)
    return found


def about(name: str, device: torch.device, workers: int) -> dict[str, Any]:
    """The description of a contender, for the record.

    Raises:
        ImportError: if its library is not installed.
    """
    row, kind = CONTENDERS[name], load(name)
    copied = "; pinned, copied without waiting on a side stream" if kind.host and device.type == "cuda" else ""
    return {
        "title": kind.title.format(workers=workers),
        "package": row.package,
        "version": kind.version or importlib.metadata.version(row.package),
        "settings": kind.settings.format(workers=workers) + copied,
        "shuffle": kind.shuffle,
        "checked": kind.checked,
    }
