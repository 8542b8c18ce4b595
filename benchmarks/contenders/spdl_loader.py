"""SPDL: pipelines of threads."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.contenders.base import Contender, permutation, spans

__all__ = ["Spdl"]


class Spdl(Contender):
    """A source of index batches and one stage, in threads, that fetches a whole batch."""

    title = "SPDL, {workers} threads"
    settings = "PipelineBuilder: batches of ids -> memmap[ids] (pinned: numpy.take), concurrency {workers}, in order"
    shuffle = "full"

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """Tensors."""
        rows = self.open_source()
        pairs = spans(len(rows), self.job.batch_size)

        def index_batches() -> Iterator[Any]:
            epoch = 0
            while True:
                ids = permutation(len(rows), epoch)
                for low, high in pairs:
                    yield ids[low:high] if self.job.shuffled else slice(low, high)
                epoch += 1
                if not endless:
                    return

        def fetch(ids: Any) -> Any:
            if self.job.pinned:  # straight to where it is copied from
                count = len(ids) if self.job.shuffled else ids.stop - ids.start
                out = torch.empty((count, *rows.shape[1:]), dtype=torch.uint8, pin_memory=True)
                if self.job.shuffled:
                    np.take(rows, ids, axis=0, out=out.numpy(), mode="clip")  # "raise" would copy twice
                else:
                    np.copyto(out.numpy(), rows[ids])
                return out
            # A slice must be copied: it would be a view of the file.
            return torch.from_numpy(rows[ids] if self.job.shuffled else rows[ids].copy())

        builder = importlib.import_module("spdl.pipeline").PipelineBuilder()
        builder = (
            builder.add_source(index_batches())
            .pipe(fetch, concurrency=self.job.workers, output_order="input")
            .add_sink(2 * self.job.workers)
        )
        pipeline = builder.build(num_threads=self.job.workers)
        with pipeline.auto_stop():
            yield from pipeline
