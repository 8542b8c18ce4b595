"""torch's DataLoader over a memory-mapped array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.contenders.base import Contender, open_rows

__all__ = ["TorchBatches", "TorchBatchesAlone", "TorchItems", "TorchItemsAlone", "as_is"]


class Rows(torch.utils.data.Dataset[Any]):
    """The textbook dataset: one sample at a time. Mapped on first use, so in each worker process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._mapped: NDArray[Any] | None = None
        self._count = len(self._rows)

    @property
    def _rows(self) -> NDArray[Any]:
        if self._mapped is None:
            self._mapped = open_rows(self._path)
        return self._mapped

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.array(self._rows[index]))


class RowBatches(Rows):
    """The best that the interface allows: `__getitems__` fetches a whole batch by fancy indexing."""

    def __getitems__(self, indices: list[int]) -> Any:
        return torch.from_numpy(self._rows[indices])


def as_is(batch: Any) -> Any:
    """There is nothing left to collate."""
    return batch


class _Torch(Contender):
    shuffle = "full"
    batched: ClassVar[bool]
    alone: ClassVar[bool] = False

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """Tensors; workers stay from epoch to epoch."""
        path, workers = str(self.job.source), 0 if self.alone else self.job.workers
        loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
            RowBatches(path) if self.batched else Rows(path),
            batch_size=self.job.batch_size,
            shuffle=self.job.shuffled,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=self.job.pinned,
            collate_fn=as_is if self.batched else None,
        )
        while True:
            yield from loader
            if not endless:
                return


class TorchItems(_Torch):
    """As most use it."""

    title = "torch DataLoader, {workers} workers"
    settings = "Dataset.__getitem__ over a memmap, default collate, {workers} persistent workers"
    batched = False


class TorchItemsAlone(TorchItems):
    """In the consumer's process."""

    title = "torch DataLoader, 0 workers"
    settings = "Dataset.__getitem__ over a memmap, default collate"
    alone = True


class TorchBatches(_Torch):
    """The best that its interface allows: whole batches."""

    title = "torch DataLoader, `__getitems__`, {workers} workers"
    settings = "Dataset.__getitems__: memmap[ids], no collate, {workers} persistent workers"
    batched = True


class TorchBatchesAlone(TorchBatches):
    """Whole batches, in the consumer's process."""

    title = "torch DataLoader, `__getitems__`, 0 workers"
    settings = "Dataset.__getitems__: memmap[ids], no collate"
    alone = True
