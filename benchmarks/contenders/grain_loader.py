"""Grain: map-style datasets with a global shuffle."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.contenders.base import Contender, open_rows

__all__ = ["Grain", "GrainProcesses"]


class RowSource:
    """Random access to the mapped rows, one or many at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._rows = open_rows(path)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> NDArray[Any]:
        return np.asarray(self._rows[index])

    def _getitems(self, indices: Sequence[int]) -> Sequence[NDArray[Any]]:
        """Grain's own name for batched reading."""
        return [np.asarray(self._rows[index]) for index in indices]

    def __reduce__(self) -> tuple[type[RowSource], tuple[str]]:
        return RowSource, (self._path,)  # not the rows: worker processes map the file themselves


class Grain(Contender):
    """Its data set interface over the mapped rows, which is faster than through its record files."""

    title = "Grain, {workers} threads"
    settings = "MapDataset.source(memmap).shuffle().batch(n).to_iter_dataset({workers} threads)"
    shuffle = "full"

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """Arrays."""
        grain = importlib.import_module("grain")
        found = grain.MapDataset.source(RowSource(str(self.job.source)))
        if self.job.shuffled:
            found = found.seed(0).shuffle()
        found = found.repeat() if endless else found
        found = found.batch(self.job.batch_size)
        options = grain.ReadOptions(num_threads=self.job.workers, prefetch_buffer_size=2 * self.job.workers)
        yield from self.spread(found.to_iter_dataset(options))

    def spread(self, dataset: Any) -> Any:
        """The dataset as it is iterated over."""
        return dataset


class GrainProcesses(Grain):
    """The same in worker processes."""

    title = "Grain, {workers} processes"
    settings = "as Grain, with mp_prefetch of {workers} processes"

    def spread(self, dataset: Any) -> Any:
        """See `Grain.spread`."""
        flags = importlib.import_module("absl.flags").FLAGS
        if not flags.is_parsed():
            flags.mark_as_parsed()  # it asks for flags of a program that is no program of absl's
        options = importlib.import_module("grain").MultiprocessingOptions
        return dataset.mp_prefetch(options(num_workers=self.job.workers))
