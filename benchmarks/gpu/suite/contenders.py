"""What a contender is here, and who there is."""

from __future__ import annotations

import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from benchmarks.contenders import find
from benchmarks.gpu.suite.cases import Case
from benchmarks.gpu.suite.data import Stored

__all__ = ["GPU_ONLY", "NAMES", "OURS", "Contender", "Place", "load"]

NAMES = {
    "P": "limits:CopyPeak",
    "D": "limits:DiskPeak",
    "gather": "limits:ResidentGather",
    "gdsload": "ours:Gdsload",
    "gdsload-bounce": "ours:GdsloadBounce",
    "gdsload-shards": "ours:GdsloadShards",
    "gdsload-vram": "ours:GdsloadVram",
    "torch-items": "hosts:TorchItems",
    "torch-batches": "hosts:TorchBatches",
    "spdl": "hosts:Spdl",
    "grain": "hosts:Grain",
    "grain-processes": "hosts:GrainProcesses",
    "kvikio": "devices:Kvikio",
    "safetensors": "devices:Safetensors",
    "webdataset": "hosts:WebDatasetTar",
    "mosaicml": "hosts:MosaicML",
    "datasets": "hosts:HuggingFace",
    "litdata": "hosts:LitData",
    "dali": "devices:Dali",
}
"""Where each one is, in the order of the tables. Imported only in its own process: a peer may be absent."""

OURS = ("P", "D", "gather", "gdsload", "gdsload-bounce", "gdsload-shards", "gdsload-vram")
"""Those whose failure is ours. A peer's failure is a result."""

GPU_ONLY = ("gather", "gdsload-bounce", "gdsload-vram", "kvikio")
"""Those that have nothing to do on a CPU."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a contender works.

    Attributes:
        folder: a folder of its own.
        device: where batches go.
        workers: how many processes or threads it may use, if it uses any.
        rows: all rows, by name.
        own_samples: how many samples at most are written in a format of its own.
    """

    folder: Path
    device: torch.device
    workers: int
    rows: dict[str, Stored]
    own_samples: dict[str, int]


class Contender(ABC):
    """One way from files to batches on the GPU.

    Attributes:
        title: its name in the tables.
        package: the distribution that is measured, for its version; empty for a limit.
        module: what to import, if not named as the package.
        settings: how it is set up, for the record.
        shuffle: what its shuffled order is, if it is not the one asked for.
        checked: whether it hands out rows, so that they can be compared.
        bursts: whether its batches come in bursts, so that only whole epochs tell its rate; or whether its first epoch
            is unlike the others.
    """

    title: ClassVar[str]
    package: ClassVar[str] = ""
    module: ClassVar[str] = ""
    settings: ClassVar[str] = ""
    shuffle: ClassVar[str] = ""
    checked: ClassVar[bool] = True
    bursts: ClassVar[bool] = False

    def __init__(self, place: Place) -> None:
        self.place = place

    @property
    def version(self) -> str:
        """Version of the library."""
        return importlib.metadata.version(self.package) if self.package else torch.__version__

    def about(self) -> dict[str, Any]:
        """For the record."""
        return {
            "title": self.title, "package": self.package, "version": self.version, "settings": self.settings,
            "shuffle": self.shuffle, "checked": self.checked,
        }  # fmt: skip

    def prepare(self, case: Case) -> None:  # noqa: B027  (one that reads gdsload's files has nothing to do)
        """Write the rows in a format of its own. Not timed as reading."""

    def stored(self, case: Case) -> Stored:
        """The rows that it reads."""
        return self.place.rows[case.rows]

    def samples(self, case: Case) -> int:
        """How many of them."""
        return self.stored(case).rows.samples

    def files(self, case: Case) -> list[Path]:
        """The files that it reads."""
        return self.stored(case).files

    @abstractmethod
    def batches(self, case: Case, *, endless: bool) -> Iterator[Any]:
        """One epoch of batches on the device, each ready on the current stream; or epoch after epoch."""

    def num_bytes(self, batch: Any) -> int:
        """Bytes of a batch."""
        return int(batch.nbytes)

    def paths(self) -> dict[str, int]:
        """Bytes by path so far, from counters, where there are any."""
        return {}


def load(name: str) -> type[Contender]:
    """The class of a contender.

    Raises:
        ImportError: if its library is not installed.
    """
    kind: type[Contender] = find(f"benchmarks.gpu.suite.{NAMES[name]}")
    return kind
