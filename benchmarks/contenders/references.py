"""Reference speeds of the machine, without a loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.contenders.base import Contender, permutation, spans

__all__ = ["ContiguousCopy", "FancyIndexing"]


class _Reference(Contender):
    version = np.__version__


class ContiguousCopy(_Reference):
    """The limit of one thread: neighbouring rows into memory that is reused, which no loader could hand out."""

    title = "contiguous copy into reused memory"
    settings = "np.copyto from a memmap into one buffer, in order in both modes, one thread"
    shuffle = "none: in order"

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """The same buffer again and again."""
        rows, size = self.open_source(), self.job.batch_size
        pairs = spans(len(rows), size)
        buffer = np.empty((size, *rows.shape[1:]), rows.dtype)
        while True:
            for low, high in pairs:
                out = buffer[: high - low]
                np.copyto(out, rows[low:high])
                yield out
            if not endless:
                return


class FancyIndexing(_Reference):
    """The batches of a script without a loader: ``rows[ids]``, a fresh array for each."""

    title = "numpy fancy indexing"
    settings = "memmap[ids], the permutation drawn beforehand and the same in every epoch; in order: a copied slice"

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """Fresh arrays."""
        rows = self.open_source()
        pairs = spans(len(rows), self.job.batch_size)
        ids = permutation(len(rows), 0)
        chosen = [ids[low:high] for low, high in pairs]
        while True:
            if self.job.shuffled:
                for part in chosen:
                    yield rows[part]
            else:
                for low, high in pairs:
                    yield np.array(rows[low:high])
            if not endless:
                return
