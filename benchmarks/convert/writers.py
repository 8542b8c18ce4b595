"""The contenders: each writes the samples in its own format, in the fastest form that its documentation shows."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.contenders import load as load_contender
from benchmarks.convert.data import COLUMNS, Samples, image_files, read_image, table_rows

__all__ = ["NAMES", "Writer"]

_BATCH = 64
_COPY_BYTES = 16 * 2**20


class Writer(ABC):
    """One way to write samples.

    Attributes:
        title: its name in the table.
        package: the distribution that is measured, for its version; empty for the reference.
        settings: how it is set up, for the record.
        kinds: which samples it takes.
    """

    title: ClassVar[str]
    package: ClassVar[str] = ""
    settings: ClassVar[str] = ""
    kinds: ClassVar[tuple[str, ...]] = ("array", "images")

    def __init__(self, source: Path, samples: Samples) -> None:
        """Import what is needed, before the clock runs."""
        self.source, self.samples = source, samples

    @property
    def version(self) -> str:
        """The version of what is measured."""
        return importlib.metadata.version(self.package) if self.package else ""

    @abstractmethod
    def write(self, out: Path) -> None:
        """Write all samples to a folder that does not exist; what is timed."""

    @abstractmethod
    def rows(self, out: Path) -> Iterator[NDArray[np.uint8]]:
        """Read them back, ``[samples, channels, height, width]`` or as `table_rows` has them, in any order."""


class Copy(Writer):
    """The limit that disk and memory set: the file's bytes, read and written by one thread, and synced."""

    title = "plain copy with fsync"
    settings = "readinto and write of 16 MiB, fsync"
    kinds = ("array",)

    def write(self, out: Path) -> None:
        """One file."""
        out.mkdir()
        buffer = memoryview(bytearray(_COPY_BYTES))
        with open(self.source, "rb", buffering=0) as source, open(out / "rows.npy", "wb", buffering=0) as target:
            while count := source.readinto(buffer):
                target.write(buffer[:count])
            os.fsync(target.fileno())

    def rows(self, out: Path) -> Iterator[NDArray[np.uint8]]:
        """By a memory map."""
        yield np.load(out / "rows.npy", mmap_mode="r")


class Gdsload(Writer):
    """`gdsload.convert`."""

    title = "gdsload, 2 workers"
    package = "gdsload"
    settings = 'convert(source, out, workers=2, shard_bytes="64MiB")'
    kinds = ("array", "images", "table")
    workers: ClassVar[int] = 2

    @property
    def version(self) -> str:
        """Of the source tree: it need not be installed."""
        return str(importlib.import_module("gdsload").__version__)

    def write(self, out: Path) -> None:
        """Shards."""
        importlib.import_module("gdsload").convert(self.source, out, workers=self.workers, shard_bytes="64MiB")

    def rows(self, out: Path) -> Iterator[NDArray[np.uint8]]:
        """In batches."""
        dataset = importlib.import_module("gdsload").ShardDataset(out)
        if self.samples.kind == "table":
            batch = dataset.read_batch(range(len(dataset)))
            yield table_rows({name: batch[name].numpy() for name in COLUMNS})
            return
        field = "image" if "image" in dataset.schema else next(iter(dataset.schema))
        for low in range(0, len(dataset), _BATCH):
            yield dataset.read_batch(range(low, min(low + _BATCH, len(dataset))))[field].numpy()


class GdsloadAlone(Gdsload):
    """The same in one process."""

    title = "gdsload, 1 worker"
    settings = 'convert(source, out, workers=1, shard_bytes="64MiB")'
    workers = 1


class Arrow(Writer):
    """Its reader of CSV, and `numpy.save`: what the parsing and the disk allow."""

    title = "pyarrow.csv.read_csv and numpy.save"
    package = "pyarrow"
    settings = "read_csv with its threads, a .npy file for each column"
    kinds = ("table",)

    def __init__(self, source: Path, samples: Samples) -> None:
        super().__init__(source, samples)
        importlib.import_module("pyarrow.csv")

    def columns(self) -> dict[str, NDArray[Any]]:
        """The table, in memory."""
        found = importlib.import_module("pyarrow.csv").read_csv(self.source)
        return {name: found[name].to_numpy() for name in COLUMNS}

    def write(self, out: Path) -> None:
        """A file for each column."""
        out.mkdir()
        for name, column in self.columns().items():
            np.save(out / f"{name}.npy", column)

    def rows(self, out: Path) -> Iterator[NDArray[np.uint8]]:
        """All at once."""
        yield table_rows({name: np.load(out / f"{name}.npy") for name in COLUMNS})


class Pandas(Arrow):
    """The same with pandas."""

    title = "pandas.read_csv and numpy.save"
    package = "pandas"
    settings = "read_csv, a .npy file for each column"

    def __init__(self, source: Path, samples: Samples) -> None:
        Writer.__init__(self, source, samples)
        importlib.import_module("pandas")

    def columns(self) -> dict[str, NDArray[Any]]:
        """The table, in memory."""
        found = importlib.import_module("pandas").read_csv(self.source)
        return {name: found[name].to_numpy() for name in COLUMNS}


class LitData(Writer):
    """`optimize`."""

    title = "LitData optimize, 2 workers"
    package = "litdata"
    settings = 'optimize(num_workers=2, chunk_bytes="64MB"), samples as tensors'

    def __init__(self, source: Path, samples: Samples) -> None:
        super().__init__(source, samples)
        importlib.import_module("litdata")

    def write(self, out: Path) -> None:
        """Chunks."""
        inputs: list[Any] = list(range(self.samples.count))
        one = partial(_row, str(self.source))
        if self.samples.kind == "images":
            inputs, one = image_files(self.source), partial(_image)
        importlib.import_module("litdata").optimize(
            fn=one, inputs=inputs, output_dir=str(out), chunk_bytes="64MB", num_workers=2, verbose=False
        )

    def rows(self, out: Path) -> Iterator[NDArray[np.uint8]]:
        """One by one."""
        found = importlib.import_module("litdata").StreamingDataset(str(out))
        for index in range(len(found)):
            yield np.asarray(found[index])[None]


class MosaicML(Writer):
    """`MDSWriter`, in the loop that its documentation shows."""

    title = "MosaicML MDSWriter, 1 process"
    package = "mosaicml-streaming"
    settings = "MDSWriter(ndarray column of fixed shape, not compressed), shards of its default 64 MiB"

    def __init__(self, source: Path, samples: Samples) -> None:
        super().__init__(source, samples)
        load_contender("mosaicml")  # which knows how to import it beside a CPU build of torch

    def write(self, out: Path) -> None:
        """MDS shards."""
        streaming = importlib.import_module("streaming")
        side = self.samples.side
        columns = {"data": f"ndarray:uint8:3,{side},{side}"}
        with streaming.MDSWriter(out=str(out), columns=columns) as writer:
            if self.samples.kind == "images":
                for file in image_files(self.source):
                    writer.write({"data": read_image(file)})
            else:
                for row in np.load(self.source, mmap_mode="r"):
                    writer.write({"data": row})

    def rows(self, out: Path) -> Iterator[NDArray[np.uint8]]:
        """One by one."""
        streaming = importlib.import_module("streaming")
        streaming.base.util.clean_stale_shared_memory()
        found = streaming.StreamingDataset(local=str(out), batch_size=1)
        for index in range(found.num_samples):
            yield found[index]["data"][None]


@lru_cache(maxsize=1)
def _opened(path: str) -> NDArray[np.uint8]:
    return np.asarray(np.load(path, mmap_mode="r"))


def _row(path: str, index: int) -> Any:
    return importlib.import_module("torch").from_numpy(np.array(_opened(path)[index]))


def _image(file: str) -> Any:
    return importlib.import_module("torch").from_numpy(read_image(file))


NAMES: dict[str, type[Writer]] = {
    "copy": Copy,
    "gdsload": Gdsload,
    "gdsload-w1": GdsloadAlone,
    "arrow": Arrow,
    "pandas": Pandas,
    "litdata": LitData,
    "mosaicml": MosaicML,
}
"""The contenders, in the order of the table. A peer is imported only in its own process: it may be absent."""
