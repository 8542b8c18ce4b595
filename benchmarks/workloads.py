"""Workloads: seeded random rows, the same for every contender."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

__all__ = ["FULL", "SEED", "SMALL", "Workload", "generate", "hash_rows"]

SEED = 20240229
_CHUNK_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows of one shape, and how many make a batch.

    The number of samples is a whole, even number of batches: two workers get equal shares, and no peer has to repeat
    samples or hand out a short batch.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    batch_size: int
    batches: int

    @property
    def title(self) -> str:
        """For people: ``3×32×32 uint8, batch 1024``."""
        return f"{'×'.join(map(str, self.shape))} {self.dtype}, batch {self.batch_size}"

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return self.batch_size * self.batches

    @property
    def row_bytes(self) -> int:
        """Bytes of a sample."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def to_json(self) -> dict[str, Any]:
        """As it goes into the record and to the workers."""
        return {**asdict(self), "shape": list(self.shape)}

    @staticmethod
    def from_json(found: dict[str, Any]) -> Workload:
        """The workload that `to_json` gave."""
        return Workload(**{**found, "shape": tuple(found["shape"])})


# About 1 GiB each: far beyond every CPU cache, and small enough that a dozen copies stay in the page cache.
FULL = (
    Workload("images", (3, 224, 224), "uint8", 256, 28),
    Workload("thumbnails", (3, 32, 32), "uint8", 1024, 342),
    Workload("tokens", (2049,), "uint16", 256, 1024),
)
SMALL = (
    Workload("images", (3, 224, 224), "uint8", 8, 4),
    Workload("thumbnails", (3, 32, 32), "uint8", 32, 8),
    Workload("tokens", (2049,), "uint16", 16, 8),
)


def generate(workload: Workload, path: Path) -> None:
    """Write the rows as one ``.npy`` file and their hashes, in order, as another beside it (``.hashes.npy``)."""
    rng = np.random.default_rng(SEED)
    rows = np.lib.format.open_memmap(
        path, mode="w+", dtype=np.dtype(workload.dtype), shape=(workload.samples, *workload.shape)
    )
    step = max(_CHUNK_BYTES // workload.row_bytes, 1)
    hashes = np.empty(workload.samples, np.uint64)
    for low in range(0, workload.samples, step):
        part = rows[low : low + step]
        part[...] = np.frombuffer(rng.bytes(part.nbytes), rows.dtype).reshape(part.shape)
        hashes[low : low + step] = hash_rows(part)
    rows.flush()
    np.save(path.with_suffix(".hashes.npy"), hashes)


def hash_rows(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """One 64-bit hash a row."""
    hashes = (xxhash.xxh3_64_intdigest(np.ascontiguousarray(row).data) for row in rows)
    return np.fromiter(hashes, np.uint64, len(rows))
