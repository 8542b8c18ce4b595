"""Samples asked for by index, batch by batch, by `ShardDataset.gather`: nothing is planned or made ahead."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

import gdsload
from benchmarks.workloads import SEED
from gdsload.system.arrays import IntArray

__all__ = ["Gathers"]


class Gathers:
    """Epochs over a dataset: all its samples in a random order, whose indices are not known before they are asked for.

    Args:
        folder: the dataset.
        device: where batches go.
        batch_size: samples of a call.
        threads: how many threads make the calls.
    """

    def __init__(self, folder: Path, device: torch.device, batch_size: int, threads: int = 1) -> None:
        self._dataset, self._device = gdsload.ShardDataset(folder), device
        ids = np.random.default_rng(SEED).permutation(len(self._dataset))
        self._calls = np.split(ids, range(batch_size, len(ids), batch_size))
        self._ready = False
        self._threads = ThreadPoolExecutor(threads) if threads > 1 else None

    def epoch(self) -> int:
        """Gather all samples; returns how many they are."""
        before = self.paths().get("mapped", 0)
        run = map if self._threads is None else self._threads.map
        for _ in run(self._gather, self._calls):
            pass
        mapped = self.paths().get("mapped", 0) - before
        self._ready = self._device.type == "cpu" or mapped >= len(self._dataset) * self._dataset.schema.fixed_bytes
        return len(self._dataset)

    def _gather(self, ids: IntArray) -> None:
        self._dataset.gather(ids, device=self._device)

    def ready(self) -> bool:
        """Return whether all bytes of the last epoch were gathered from registered files."""
        return self._ready

    def paths(self) -> dict[str, int]:
        """Bytes moved so far, by path."""
        return self._dataset.backend(self._device).bytes_by_path

    def close(self) -> None:
        """Let go of the dataset."""
        if self._threads is not None:
            self._threads.shutdown()
        del self._dataset
