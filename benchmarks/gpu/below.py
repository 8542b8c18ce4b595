"""The reads of a loader without the loader: what `bounce` alone delivers of the same samples, not gathered."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import torch

from benchmarks.workloads import SEED
from gdsload.backends.base import PendingRead
from gdsload.backends.bounce.bounce import BounceBackend
from gdsload.shards.catalog import open_catalog
from gdsload.shards.shard_table import ShardTable

__all__ = ["Below"]

_GROUP_BYTES, _UNDER_WAY = 2**27, 3
"""As the loader has them on a GPU, by default."""


class Below:
    """Epochs over a dataset of one field of one shape, read and dropped.

    Args:
        folder: the dataset.
        device: the GPU.
        shuffled: whether all samples are in a random order, or in that of the shards.
    """

    def __init__(self, folder: Path, device: torch.device, *, shuffled: bool) -> None:
        catalog = open_catalog(str(folder))
        table = ShardTable.of(catalog.sources, catalog.stored, mapped=True)
        self._samples, self._backend = table.samples, BounceBackend(table.files, device)
        ((name, field),) = catalog.schema.items()
        each = max(_GROUP_BYTES // field.row_bytes, 1)
        ids = np.random.default_rng(SEED).permutation(table.samples)
        bounds = [(low, min(low + each, table.samples)) for low in range(0, table.samples, each)]
        if shuffled:
            self._groups = [table.extents(name, table.locate(ids[low:high]))[0] for low, high in bounds]
        else:
            self._groups = [table.runs(name, np.array([edge]))[0] for edge in bounds]

    def epoch(self) -> int:
        """Read all samples; returns how many they are."""
        under_way: deque[PendingRead] = deque()
        for extents in [*self._groups, *[None] * _UNDER_WAY]:
            if len(under_way) == _UNDER_WAY or (extents is None and under_way):
                pending = under_way.popleft()
                pending.completion.wait()
                pending.release()
            if extents is not None:
                under_way.append(self._backend.read(extents))
        return self._samples

    def paths(self) -> dict[str, int]:
        """Bytes read so far, by path."""
        return self._backend.bytes_by_path()

    def ready(self) -> bool:
        """Return whether later epochs are read as the last one was."""
        return True

    def close(self) -> None:
        """End all threads."""
        self._backend.close()
