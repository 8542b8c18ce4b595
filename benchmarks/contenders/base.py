"""The base of contenders, and the jobs that they are given."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.residency import files_under

__all__ = ["Contender", "Job", "Order", "open_rows", "permutation", "spans"]

Order = Literal["sequential", "full", "block"]


@dataclass(frozen=True, slots=True)
class Job:
    """A contender's job: the rows to load, their order, and the device to load them to.

    Attributes:
        folder: its folder, which no other contender uses.
        source: the rows: a ``.npy`` file, or the first shard of a dataset of gdsload's with one field, ``x``.
        shape: of a sample.
        dtype: numpy's name of the element type.
        samples: how many it loads.
        batch_size: samples of a batch.
        order: the order of samples. A library that has no such order uses the one that comes nearest.
        device: the device of batches.
        workers: how many processes or threads it may use, if it uses any.
    """

    folder: Path
    source: Path
    shape: tuple[int, ...]
    dtype: str
    samples: int
    batch_size: int
    order: Order
    device: torch.device
    workers: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a sample."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def num_bytes(self) -> int:
        """Bytes of all samples."""
        return self.samples * self.row_bytes

    @property
    def shuffled(self) -> bool:
        """True if samples come in another order than the dataset's."""
        return self.order != "sequential"

    @property
    def pinned(self) -> bool:
        """True if batches in CPU memory should be pinned, where the library can do that."""
        return self.device.type == "cuda"

    @property
    def sharded(self) -> bool:
        """True if the rows are a dataset of gdsload's."""
        return self.source.suffix == ".safetensors"


class Contender(ABC):
    """One way to get batches out of files.

    Attributes:
        title: its name in the tables; ``{workers}`` is filled in, here and in `settings`.
        settings: how it is set up, for the record.
        version: of what is measured, if not that of the package which the registry names.
        shuffle: what its shuffled order is, if it is not the one asked for: libraries mean
            different things by the word.
        orders: the orders that it takes part in.
        host: whether its batches are in CPU memory whatever the device: who wants them there copies them.
        own_format: whether it writes the rows in its own format.
        checked: whether it hands out rows, so that they can be compared.
        bursts: whether its batches come in bursts, so that only whole epochs tell its rate; or whether its first epoch
            is unlike the others.
    """

    title: ClassVar[str]
    settings: ClassVar[str] = ""
    version: ClassVar[str] = ""
    shuffle: ClassVar[str] = ""
    orders: ClassVar[tuple[Order, ...]] = ("sequential", "full", "block")
    host: ClassVar[bool] = True
    own_format: ClassVar[bool] = False
    checked: ClassVar[bool] = True
    bursts: ClassVar[bool] = False

    def __init__(self, job: Job) -> None:
        self.job = job

    @property
    def owns_data(self) -> bool:
        """True if it reads files in its own format; False if it reads the source itself."""
        return self.own_format

    def prepare(self, rows: NDArray[Any]) -> None:  # noqa: B027  (one that reads the source has nothing to do)
        """Write the rows into the folder in its own format. Not timed as reading."""

    def files(self) -> list[Path]:
        """The files that it reads."""
        if self.owns_data:
            return files_under(self.job.folder)
        source = self.job.source
        return sorted(source.parent.glob("*.safetensors")) if self.job.sharded else [source]

    @abstractmethod
    def batches(self, *, endless: bool) -> Iterator[Any]:
        """One epoch of batches; or epoch after epoch, worker processes kept where the library can keep them.

        A batch is handed out as the library's user would get it: nothing is converted for the benchmark's sake. One on
        a GPU is ready on the current stream.
        """

    def data(self, batch: Any) -> Any:
        """The tensor or array in a batch."""
        return batch

    def num_bytes(self, data: Any) -> int:
        """Bytes of what `data` gave."""
        return int(data.nbytes)

    def paths(self) -> dict[str, int]:
        """Bytes by path so far, from counters, where there are any."""
        return {}

    def open_source(self) -> NDArray[Any]:
        """The rows that are to be loaded, mapped."""
        return open_rows(self.job.source)[: self.job.samples]


def open_rows(path: str | Path) -> NDArray[Any]:
    """Rows, mapped: those of a ``.npy`` file, or of the first bytes field of a shard that has one such field."""
    path = Path(path)
    if path.suffix != ".safetensors":
        rows: NDArray[Any] = np.load(path, mmap_mode="r")
        return rows
    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
    field = next(value for value in header.values() if value.get("dtype") == "U8" and len(value["shape"]) > 1)
    begin, end = field["data_offsets"]
    if end - begin != math.prod(field["shape"]):
        raise ValueError(f"{path} has {end - begin} bytes of rows of shape {field['shape']}")
    shape = tuple(field["shape"])
    return np.memmap(path, np.uint8, mode="r", offset=8 + header_bytes + begin, shape=shape)


def spans(count: int, size: int) -> list[tuple[int, int]]:
    """Batches in order, as (first, end)."""
    return [(low, min(low + size, count)) for low in range(0, count, size)]


def permutation(count: int, epoch: int) -> NDArray[np.int64]:
    """A full shuffle."""
    return np.random.default_rng(epoch).permutation(count)
