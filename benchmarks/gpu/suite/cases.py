"""The rows and cases of the suite."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.base import Order

__all__ = ["CASES", "MEASURES", "Case", "Measure", "Rows", "make_rows", "small"]

_SMALL_BATCH = 8


@dataclass(frozen=True, slots=True)
class Rows:
    """Random bytes, one field a sample.

    Attributes:
        name: the folder that they are in.
        shape: of a sample.
        samples: how many.
        shards: in how many shards of equal size.
    """

    name: str
    shape: tuple[int, ...]
    samples: int
    shards: int = 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a sample."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Case:
    """One load that all contenders have.

    Attributes:
        name: its key in the record.
        title: for people.
        rows: which rows.
        batch_size: samples of a batch.
        order: the order of samples. A library that has no such order runs in the one that comes nearest.
        limit: which contender is the limit that all are held against.
        contenders: who takes part, the limit first.
        cold: whether files are dropped from the page cache before each trial; else they are in it.
        gpu: whether it means nothing without a GPU.
    """

    name: str
    title: str
    rows: str
    batch_size: int
    order: Order
    limit: str
    contenders: tuple[str, ...]
    cold: bool = False
    gpu: bool = False

    def to_json(self) -> dict[str, Any]:
        """As it goes into the record and to the workers."""
        return {**asdict(self), "contenders": list(self.contenders)}

    def rows_of(self, contender: str) -> str:
        """The name of the rows that a contender reads: the same ones, in one shard or in many."""
        return f"{self.rows}-shards" if CONTENDERS[contender].many_shards else self.rows

    @staticmethod
    def from_json(found: dict[str, Any]) -> Case:
        """The case that `to_json` gave."""
        return Case(**{**found, "contenders": tuple(found["contenders"])})


@dataclass(frozen=True, slots=True)
class Measure:
    """Something else than a rate, asked of one contender.

    Attributes:
        name: its key in the record, and in `benchmarks.gpu.suite.measures`.
        title: for people.
        contender: who is asked.
        rows: which rows.
        every_round: whether it is done in every round, or once.
        arguments: its further arguments.
    """

    name: str
    title: str
    contender: str
    rows: str
    every_round: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As it goes into the record and to the workers."""
        return asdict(self)


_OF_FILES = ("torch-items", "torch-batches", "spdl", "grain", "kvikio", "safetensors")
"""Those that read gdsload's own files."""
_OF_OWN = ("webdataset", "mosaicml", "datasets", "litdata")
"""Those that have their own format."""
_PEERS = (*_OF_FILES, *_OF_OWN, "dali")
_SHUFFLED = (*_PEERS, "grain-processes")
"""Its processes take seconds to start: the form is shown where it can matter."""
_IMAGES = "3×224×224 uint8, batch 256"

CASES = (
    Case(
        "images-in-order", f"In order, hot: {_IMAGES}", "images", 256, "sequential", "P",
        ("P", "gdsload", "gdsload-bounce", *_PEERS),
    ),
    Case("images-full", f"Full shuffle, hot: {_IMAGES}", "images", 256, "full", "P", ("P", "gdsload", *_SHUFFLED)),
    Case(
        "rows-4k-full", "Full shuffle, hot: 4 KiB, batch 2048", "rows-4k", 2048, "full", "P",
        ("P", "gdsload", "gdsload-shards", *_SHUFFLED),
    ),
    Case(
        "rows-512-full", "Full shuffle, hot: 512 B, batch 16 384", "rows-512", 16384, "full", "P",
        ("P", "gdsload", "torch-items", "torch-batches", "spdl", "safetensors"),
    ),
    Case(
        "rows-4k-block", "Block shuffle, hot: 4 KiB, batch 2048", "rows-4k", 2048, "block", "P",
        ("P", "gdsload", "gdsload-shards"),
    ),
    Case(
        "rows-512-block", "Block shuffle, hot: 512 B, batch 16 384", "rows-512", 16384, "block", "P", ("P", "gdsload"),
    ),
    Case(
        "images-cold", f"Block shuffle, cold: {_IMAGES}", "images", 256, "block", "D", ("D", "gdsload", *_PEERS),
        cold=True,
    ),
    Case(
        "resident-2048", "Resident in VRAM, full shuffle: 4 KiB, batch 2048", "rows-4k", 2048, "full", "gather",
        ("gather", "gdsload-vram"), gpu=True,
    ),
    Case(
        "resident-65536", "Resident in VRAM, full shuffle: 4 KiB, batch 65 536", "rows-4k", 65536, "full", "gather",
        ("gather", "gdsload-vram"), gpu=True,
    ),
)  # fmt: skip

MEASURES = (
    Measure(
        "step-in-order", "A training step as long as its load, in order, 3×224×224", "gdsload", "images",
        arguments={"order": "sequential", "batch_size": 256, "work": "network"},
    ),
    Measure(
        "step-full", "A training step as long as its load, full shuffle, 3×224×224", "gdsload", "images",
        arguments={"order": "full", "batch_size": 256, "work": "network"},
    ),
    Measure(
        "step-gather", "A training step as long as its load, gathered over PCIe, 4 KiB, batch 8192", "gdsload",
        "rows-4k", arguments={"order": "full", "batch_size": 8192, "work": "network"},
    ),
    Measure(
        "step-in-order-products", "Products of matrices as long as a load, in order, 3×224×224", "gdsload", "images",
        arguments={"order": "sequential", "batch_size": 256, "work": "products"},
    ),
    Measure(
        "step-gather-products", "Products of matrices as long as a load, gathered over PCIe, 4 KiB, batch 8192",
        "gdsload", "rows-4k", arguments={"order": "full", "batch_size": 8192, "work": "products"},
    ),
    Measure(
        "step-gather-graph", "The same products as one CUDA graph a batch, gathered over PCIe, 4 KiB, batch 8192",
        "gdsload", "rows-4k", arguments={"order": "full", "batch_size": 8192, "work": "graph"},
    ),
    Measure(
        "step-gather-memory", "Kernels that memory bounds as long as a load, gathered over PCIe, 4 KiB, batch 8192",
        "gdsload", "rows-4k", arguments={"order": "full", "batch_size": 8192, "work": "sums"},
    ),
    Measure(
        "launches", "Kernel launches of the training thread while images are loaded in order", "gdsload", "images",
        arguments={"batch_size": 256, "paced_gb_s": 5.0},
    ),
    Measure(
        "memory", "Memory over 20 epochs, full shuffle, 4 KiB", "gdsload", "rows-4k", every_round=False,
        arguments={"batch_size": 2048, "epochs": 20},
    ),
    Measure(
        "first-batch", "First batch of a new loader, full shuffle, 64 shards, hot", "gdsload", "rows-4k-shards",
        arguments={"batch_size": 2048},
    ),
)  # fmt: skip


def make_rows(nbytes: int, *, multiple: int) -> dict[str, Rows]:
    """All rows.

    Args:
        nbytes: bytes of each kind, about.
        multiple: of how many batches the number of samples is to be a multiple, so that workers get equal shares.
    """
    images = max(nbytes // (3 * 224 * 224) // (256 * multiple), 1) * 256 * multiple
    found = (
        Rows("images", (3, 224, 224), images),
        Rows("rows-4k", (4096,), nbytes // 4096),
        Rows("rows-4k-shards", (4096,), nbytes // 4096, shards=64),
        Rows("rows-512", (512,), nbytes // 512),
    )
    return {rows.name: rows for rows in found}


def small(batches: int = 16) -> tuple[dict[str, Rows], tuple[Case, ...], tuple[Measure, ...]]:
    """The same in kilobytes, for a smoke test."""
    samples = _SMALL_BATCH * batches
    rows = (
        Rows("images", (3, 16, 16), samples),
        Rows("rows-4k", (4096,), samples),
        Rows("rows-4k-shards", (4096,), samples, shards=4),
        Rows("rows-512", (512,), samples),
    )
    cases = tuple(replace(case, batch_size=_SMALL_BATCH) for case in CASES)
    arguments = {"batch_size": _SMALL_BATCH}
    measures = tuple(replace(measure, arguments=measure.arguments | arguments) for measure in MEASURES)
    return {each.name: each for each in rows}, cases, measures
