"""torch's DataLoader over a memory-mapped array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.contenders.base import Contender, Mode, open_rows

__all__ = ["TorchBatches0", "TorchBatches2", "TorchItems0", "TorchItems2"]


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
    package = "torch"
    owns_data = False
    batched: ClassVar[bool]

    def batches(self, mode: Mode, *, endless: bool) -> Iterator[Any]:
        """Tensors; workers stay from epoch to epoch."""
        path = str(self.source)
        loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
            RowBatches(path) if self.batched else Rows(path),
            batch_size=self.workload.batch_size,
            shuffle=mode == "shuffled",
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=self.pin_memory,
            collate_fn=as_is if self.batched else None,
        )
        while True:
            yield from loader
            if not endless:
                return


class TorchItems0(_Torch):
    """In the consumer's process."""

    title = "torch DataLoader, 0 workers"
    settings = "Dataset.__getitem__ over a memmap, default collate"
    workers, batched = 0, False


class TorchItems2(_Torch):
    """In two more."""

    title = "torch DataLoader, 2 workers"
    settings = "Dataset.__getitem__ over a memmap, default collate, persistent workers"
    workers, batched = 2, False


class TorchBatches0(_Torch):
    """Whole batches, in the consumer's process."""

    title = "torch DataLoader, `__getitems__`, 0 workers"
    settings = "Dataset.__getitems__: memmap[ids], no collate"
    workers, batched = 0, True


class TorchBatches2(_Torch):
    """Whole batches, in two more."""

    title = "torch DataLoader, `__getitems__`, 2 workers"
    settings = "Dataset.__getitems__: memmap[ids], no collate, persistent workers"
    workers, batched = 2, True
