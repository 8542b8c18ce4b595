"""The cases: rows of several kinds, in files of holes or of random bytes, and the loaders over them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import gdsload
from benchmarks.workloads import SEED
from gdsload.shards.format.index import INDEX_NAME, Index, IndexEntry
from gdsload.shards.format.layout import ShardLayout
from gdsload.shards.format.schema import Schema
from gdsload.shards.format.shard import OFFSETS_PREFIX
from gdsload.shards.format.stored import StoredSchema
from gdsload.system.arrays import IntArray
from gdsload.system.units import format_bytes

__all__ = ["KINDS", "SMALL", "Case", "Kind", "cases_of"]

_SHARD_BYTES = 2**28
"""As `ShardWriter` makes them by default."""
_ORDERS = {"in-order": False, "full": "full", "block": "block"}
_CHECKED_BATCHES = 3.5


@dataclass(frozen=True, slots=True)
class Kind:
    """Rows of one kind.

    Attributes:
        name: its key.
        title: for people.
        field: the only field of a sample.
        batch_size: samples of a batch.
        lengths: least and most rows of a sample, if the field is ragged.
        orders: the orders in which they are loaded.
    """

    name: str
    title: str
    field: gdsload.Field
    batch_size: int
    lengths: tuple[int, int] | None = None
    orders: tuple[str, ...] = tuple(_ORDERS)

    @property
    def row_bytes(self) -> float:
        """Mean bytes of a sample."""
        return self.field.row_bytes * (sum(self.lengths) / 2 if self.lengths else 1)

    def offsets(self, samples: int) -> IntArray | None:
        """The offsets of seeded ragged samples' rows, and the end of the last one; None if they are not ragged."""
        if self.lengths is None:
            return None
        low, high = self.lengths
        return np.cumsum(np.append(0, np.random.default_rng(SEED).integers(low, high, samples, endpoint=True)))

    def write_holes(self, folder: Path, nbytes: int) -> int:
        """A dataset of about so many bytes that are holes, all but headers, offsets and index; returns its samples.

        No drive is written to, and checksums are zeros: they are looked at by who verifies the dataset, and by nobody
        who loads it.
        """
        folder.mkdir(parents=True)
        samples = max(int(nbytes // self.row_bytes), self.batch_size)
        each, stored = max(int(_SHARD_BYTES // self.row_bytes), 1), StoredSchema(Schema({"x": self.field}))
        begin, entries = self.offsets(samples), []
        for number, low in enumerate(range(0, samples, each)):
            high = min(low + each, samples)
            own = None if begin is None else begin[low : high + 1] - begin[low]
            ragged = {} if own is None else {"x": "x"}
            layout = ShardLayout(stored, high - low, {} if own is None else {"x": int(own[-1])}, ragged)
            header, file = layout.header(), folder / f"shard-{number:05}.safetensors"
            with open(file, "wb") as opened:
                opened.write(header)
                if own is not None:
                    opened.seek(len(header) + layout.data_offsets()[f"{OFFSETS_PREFIX}x"])
                    opened.write(own.tobytes())
                opened.truncate(len(header) + layout.data_bytes())
            digest = hashlib.sha256(header).hexdigest()
            entries.append(IndexEntry(file.name, high - low, file.stat().st_size, digest))
        (folder / INDEX_NAME).write_bytes(Index(stored, tuple(entries)).to_bytes())
        return samples

    def write_real(self, folder: Path) -> None:
        """A few batches of random bytes, in several shards."""
        samples = int(_CHECKED_BATCHES * self.batch_size)
        rng, begin = np.random.default_rng(SEED), self.offsets(samples)
        with gdsload.ShardWriter(folder, {"x": self.field}, shard_bytes=int(samples * self.row_bytes // 3)) as writer:
            if begin is not None:
                for low, high in zip(begin[:-1].tolist(), begin[1:].tolist(), strict=True):
                    writer.write({"x": rng.integers(0, 2**31, high - low, np.int32)})
                return
            step = max(2**25 // self.field.row_bytes, 1)
            for low in range(0, samples, step):
                count = min(step, samples - low)
                rows = rng.bytes(count * self.field.row_bytes)
                writer.write_batch({"x": np.frombuffer(rows, np.uint8).reshape(count, *self.field.row_shape)})


def _kinds(images: tuple[int, ...], volume: int, tokens: tuple[int, int], batches: tuple[int, ...]) -> tuple[Kind, ...]:
    """The kinds; short rows, of one size and ragged, in the batches of each other, too."""
    row, piece, full = gdsload.Field("uint8", (4096,)), gdsload.Field("int32", (None,)), ("full",)
    ragged = f"{tokens[0]} to {tokens[1]} int32, ragged, batch"
    return (
        Kind(
            "images", f"{'×'.join(map(str, images))} uint8, batch {batches[0]}", gdsload.Field("uint8", images),
            batches[0],
        ),
        Kind("rows-4k", f"4 KiB, batch {batches[1]}", row, batches[1]),
        Kind("rows-4k-256", f"4 KiB, batch {batches[2]}", row, batches[2], None, full),
        Kind("tokens", f"{ragged} {batches[2]}", piece, batches[2], tokens, full),
        Kind("tokens-2048", f"{ragged} {batches[1]}", piece, batches[1], tokens, full),
        Kind("volumes", f"{format_bytes(volume)}, batch {batches[3]}", gdsload.Field("uint8", (volume,)), batches[3]),
    )  # fmt: skip


KINDS = _kinds((3, 224, 224), 32 * 2**20, (64, 2048), (256, 2048, 256, 2))
SMALL = _kinds((3, 16, 16), 64 * 2**10, (8, 64), (8, 8, 8, 2))
"""The same in kilobytes, for a smoke test."""


@dataclass(frozen=True, slots=True)
class Case:
    """One load.

    Attributes:
        name: its key in the record.
        backend: the backend.
        kind: what is loaded.
        order: in which order.
        drives: the number of simulated drives with the shards.
        one_queue: whether the loader takes those for one.
    """

    name: str
    backend: str
    kind: Kind
    order: str
    drives: int = 1
    one_queue: bool = False

    @property
    def title(self) -> str:
        """For people."""
        over = f"; {self.drives} drives{' in one queue' * self.one_queue}" if self.drives > 1 else ""
        return f"{self.backend}, {self.order.replace('-', ' ')}: {self.kind.title}{over}"

    def over(self, drives: int, *, one_queue: bool = False) -> Case:
        """The same, over so many drives."""
        suffix = f"-{drives}-drives{'-one-queue' * one_queue}" if drives > 1 else ""
        return replace(self, name=f"{self.name}{suffix}", drives=drives, one_queue=one_queue)

    def options(self) -> dict[str, Any]:
        """The loader's options, besides the dataset and the device."""
        ragged = {"ragged": "offsets"} if self.kind.lengths else {}
        shuffle = _ORDERS[self.order]
        return {
            "batch_size": self.kind.batch_size,
            "shuffle": shuffle,
            "backend": self.backend,
            "mmap": False,
            **ragged,
        }


def cases_of(backends: tuple[str, ...], kinds: tuple[Kind, ...]) -> tuple[Case, ...]:
    """All cases of some backends; their names do not depend on how large the rows are."""
    return tuple(
        Case(f"{backend}-{kind.name}-{order}", backend, kind, order)
        for backend in backends
        for kind in kinds
        for order in kind.orders
    )
