"""SPDL: pipelines of threads."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.contenders.base import Contender, Mode, permutation, spans

__all__ = ["Spdl"]


class Spdl(Contender):
    """A source of index batches and one stage, in threads, that fetches a whole batch."""

    title = "SPDL, 2 threads"
    package = "spdl"
    module = "spdl.pipeline"
    settings = "PipelineBuilder: batches of ids -> torch.from_numpy(memmap[ids]), concurrency 2, in order, sink of 4"
    owns_data = False

    def batches(self, mode: Mode, *, endless: bool) -> Iterator[Any]:
        """Tensors."""
        rows = self.open_source()
        pairs = spans(len(rows), self.workload.batch_size)

        def index_batches() -> Iterator[Any]:
            epoch = 0
            while True:
                ids = permutation(len(rows), epoch)
                for low, high in pairs:
                    yield ids[low:high] if mode == "shuffled" else slice(low, high)
                epoch += 1
                if not endless:
                    return

        def fetch(ids: Any) -> Any:
            if self.pin_memory:  # straight to where it is copied from
                count = len(ids) if mode == "shuffled" else ids.stop - ids.start
                out = torch.empty((count, *rows.shape[1:]), dtype=torch.uint8, pin_memory=True)
                if mode == "shuffled":
                    np.take(rows, ids, axis=0, out=out.numpy(), mode="clip")  # "raise" would copy twice
                else:
                    np.copyto(out.numpy(), rows[ids])
                return out
            # A slice must be copied: it would be a view of the file.
            return torch.from_numpy(rows[ids] if mode == "shuffled" else rows[ids].copy())

        builder = importlib.import_module("spdl.pipeline").PipelineBuilder()
        builder = (
            builder.add_source(index_batches())
            .pipe(fetch, concurrency=self.workers, output_order="input")
            .add_sink(2 * self.workers)
        )
        pipeline = builder.build(num_threads=self.workers)
        with pipeline.auto_stop():
            yield from pipeline
