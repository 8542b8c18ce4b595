"""The rows on disk: shards that gdsload wrote, which others map; and a hash of each row, to compare batches with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import gdsload
from benchmarks.gpu.suite.cases import Rows
from benchmarks.workloads import SEED

__all__ = ["Stored", "row_hashes"]

_CHUNK_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Stored:
    """Rows, and where they are.

    Attributes:
        rows: what they are.
        folder: the dataset.
    """

    rows: Rows
    folder: Path

    @property
    def files(self) -> list[Path]:
        """The shards."""
        return sorted(self.folder.glob("*.safetensors"))

    @property
    def hashes(self) -> NDArray[np.int64]:
        """One a row, in order."""
        found: NDArray[np.int64] = np.load(self._hashes)
        return found

    @property
    def _hashes(self) -> Path:
        return self.folder.with_suffix(".hashes.npy")

    def write(self) -> None:
        """Write them: seeded, so that they are the same in every run."""
        rows = self.rows
        random = np.random.default_rng([SEED, *rows.name.encode()])
        step = max(_CHUNK_BYTES // rows.row_bytes, 1)
        hashes = []
        with gdsload.ShardWriter(self.folder, shard_bytes=-(-rows.samples // rows.shards) * rows.row_bytes) as writer:
            for low in range(0, rows.samples, step):
                count = min(step, rows.samples - low)
                words = random.integers(0, 2**64, (count, rows.row_bytes // 8), np.uint64)
                writer.write_batch({"x": words.view(np.uint8).reshape(count, *rows.shape)})
                hashes.append(row_hashes(torch.from_numpy(words.view(np.uint8))).numpy())
        np.save(self._hashes, np.concatenate(hashes))


_weights: dict[tuple[int, torch.device], torch.Tensor] = {}


def row_hashes(rows: torch.Tensor) -> torch.Tensor:
    """A 64-bit hash of each row, int64 ``[rows]``, computed where they are.

    A sum over 64-bit words with odd random weights, modulo 2**64: one word that differs always shows.

    Args:
        rows: ``[rows, ...]``, uint8, a multiple of 8 bytes each.
    """
    words = rows.reshape(len(rows), -1).contiguous().view(torch.int64)
    key = (words.shape[1], rows.device)
    if key not in _weights:
        drawn: NDArray[Any] = np.random.default_rng(SEED).integers(0, 2**63, words.shape[1]) * 2 + 1
        _weights[key] = torch.from_numpy(drawn).to(rows.device)
    return (words * _weights[key]).sum(1)
