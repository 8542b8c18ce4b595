"""What a contender is."""

from __future__ import annotations

import importlib.metadata
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.residency import files_under
from benchmarks.workloads import Workload

__all__ = ["MODES", "Contender", "Mode", "open_rows", "permutation", "spans"]

Mode = Literal["shuffled", "sequential"]
MODES: tuple[Mode, ...] = ("shuffled", "sequential")


class Contender(ABC):
    """One way to get batches out of files.

    Attributes:
        title: its name in the table.
        package: the distribution that is measured, for its version; empty for a reference.
        module: what to import, if not named as the package.
        settings: how it is set up, for the record.
        shuffle: what its shuffled order is: libraries mean different things by the word.
        modes: the orders that it takes part in.
        owns_data: whether it reads files of its own in `folder`, or else the source itself.
        workers: how many processes or threads it may use, if it uses any.
        pin_memory: whether its batches are to be in pinned memory, if it can do that.
    """

    title: ClassVar[str]
    package: ClassVar[str] = ""
    module: ClassVar[str] = ""
    settings: ClassVar[str] = ""
    shuffle: ClassVar[str] = "full"
    modes: ClassVar[tuple[Mode, ...]] = MODES
    owns_data: ClassVar[bool] = True
    workers: int = 2
    pin_memory: bool = False

    def __init__(self, folder: Path, source: Path, workload: Workload) -> None:
        self.folder, self.source, self.workload = folder, source, workload

    @property
    def version(self) -> str:
        """Version of the library."""
        return importlib.metadata.version(self.package) if self.package else np.__version__

    def prepare(self, rows: NDArray[Any]) -> None:  # noqa: B027  (one that reads the source has nothing to do)
        """Write the rows into `folder` in its own format. Not timed as reading."""

    @abstractmethod
    def batches(self, mode: Mode, *, endless: bool) -> Iterator[Any]:
        """One epoch of batches; or epoch after epoch, worker processes kept where the library can keep them.

        A batch is handed out as the library's user would get it: nothing is converted for the benchmark's sake.
        """

    def files(self) -> list[Path]:
        """The files that it reads."""
        return files_under(self.folder) if self.owns_data else [self.source]

    def data(self, batch: Any) -> Any:
        """The tensor or array in a batch."""
        return batch

    def rows(self, batch: Any) -> NDArray[Any]:
        """The batch as a numpy array, for verification."""
        data = self.data(batch)
        found: NDArray[Any] = data if isinstance(data, np.ndarray) else data.numpy()
        return found

    def open_source(self) -> NDArray[Any]:
        """The source's rows, mapped."""
        return open_rows(self.source)


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
