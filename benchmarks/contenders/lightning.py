"""LitData: chunks."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.contenders.base import Contender, open_rows

__all__ = ["LitData"]


def row_of(path: str, index: int) -> torch.Tensor:
    """One sample; called in the processes that write the chunks."""
    return torch.from_numpy(np.array(open_rows(path)[index]))


class LitData(Contender):
    """Chunks on the local disk; tokens through its loader for tokens, which needs no decoding."""

    title = "LitData, {workers} workers"
    settings = (
        "optimize(64MB chunks), StreamingDataLoader(StreamingDataset(local), num_workers={workers}); 1-d: TokensLoader"
    )
    shuffle = "chunks, then samples within a chunk"
    own_format = True

    def _item_loader(self) -> Any:
        shape = self.job.shape
        return importlib.import_module("litdata").TokensLoader(block_size=shape[0]) if len(shape) == 1 else None

    def prepare(self, rows: NDArray[Any]) -> None:
        """Chunks."""
        litdata = importlib.import_module("litdata")
        litdata.optimize(
            fn=partial(row_of, str(self.job.source)),
            inputs=list(range(len(rows))),
            output_dir=str(self.job.folder / "chunks"),
            chunk_bytes="64MB",
            num_workers=self.job.workers,
            item_loader=self._item_loader(),
            verbose=False,
        )

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """Tensors."""
        litdata = importlib.import_module("litdata")
        found = litdata.StreamingDataset(
            str(self.job.folder / "chunks"),
            item_loader=self._item_loader(),
            shuffle=self.job.shuffled,
            drop_last=False,
        )
        loader = litdata.StreamingDataLoader(
            found,
            batch_size=self.job.batch_size,
            num_workers=self.job.workers,
            persistent_workers=True,
            pin_memory=self.job.pinned,
        )
        try:
            while True:
                yield from loader
                if not endless:
                    return
        finally:
            # They do not end when they are asked to, and torch waits five seconds for each before it does this itself.
            for process in getattr(loader._iterator, "_workers", ()):  # noqa: SLF001
                process.terminate()
