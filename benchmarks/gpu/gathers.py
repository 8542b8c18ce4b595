"""Samples asked for by index, batch by batch, by `ShardDataset.gather`: nothing is planned or made ahead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import gdsload
from benchmarks.workloads import SEED

__all__ = ["Gathers"]


class Gathers:
    """Epochs over a dataset: all its samples in a random order, whose indices are not known before they are asked for.

    Args:
        folder: the dataset.
        device: where batches go.
        batch_size: samples of a call.
    """

    def __init__(self, folder: Path, device: torch.device, batch_size: int) -> None:
        self._dataset, self._device = gdsload.ShardDataset(folder), device
        ids = np.random.default_rng(SEED).permutation(len(self._dataset))
        self._calls = np.split(ids, range(batch_size, len(ids), batch_size))
        self._ready = False

    def epoch(self) -> int:
        """Gather all samples; returns how many they are."""
        before = self.paths().get("mapped", 0)
        for ids in self._calls:
            self._dataset.gather(ids, device=self._device)
        mapped = self.paths().get("mapped", 0) - before
        self._ready = self._device.type == "cpu" or mapped >= len(self._dataset) * self._dataset.schema.fixed_bytes
        return len(self._dataset)

    def ready(self) -> bool:
        """Whether all bytes of the last epoch were gathered from registered files."""
        return self._ready

    def paths(self) -> dict[str, int]:
        """Bytes moved so far, by path."""
        return self._dataset.backend(self._device).bytes_by_path

    def close(self) -> None:
        """Let go of the dataset."""
        del self._dataset
