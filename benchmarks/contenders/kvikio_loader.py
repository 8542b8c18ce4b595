"""kvikio, by hand."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.contenders.base import Contender, Job, open_rows, permutation, spans

__all__ = ["Kvikio"]

_AHEAD = 4


def _index_batches(job: Job, *, endless: bool) -> Iterator[Any]:
    """Spans (first, end), or arrays of indices, drawn again for each epoch."""
    epoch = 0
    while True:
        pairs = spans(job.samples, job.batch_size)
        if job.shuffled:
            ids = permutation(job.samples, epoch)
            yield from (ids[low:high] for low, high in pairs)
        else:
            yield from pairs
        epoch += 1
        if not endless:
            return


class Kvikio(Contender):
    """`pread` into the batch, some batches under way."""

    title = "kvikio by hand"
    settings = "pread of a batch (in order) or of each row, 4 batches under way, 16 threads of 4 MiB, compat mode ON"
    shuffle = "full"
    host = False

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """Tensors, filled on kvikio's own terms: it waits for the default stream itself."""
        kvikio = importlib.import_module("kvikio")
        defaults = importlib.import_module("kvikio.defaults")
        defaults.set({"num_threads": 16, "task_size": 4 * 2**20, "compat_mode": kvikio.CompatMode.ON})
        job = self.job
        first: Any = open_rows(job.source)
        begin, under_way = int(first.offset), deque[tuple[torch.Tensor, list[Any]]]()
        with kvikio.CuFile(str(job.source), "r") as file:
            for chosen in _index_batches(job, endless=endless):
                in_order = isinstance(chosen, tuple)
                count = chosen[1] - chosen[0] if in_order else len(chosen)
                out = torch.empty((count, *job.shape), dtype=torch.uint8, device=job.device)
                if in_order:
                    reads = [file.pread(out, out.nbytes, begin + chosen[0] * job.row_bytes)]
                else:
                    offsets = (begin + chosen * job.row_bytes).tolist()
                    reads = [file.pread(out[row], job.row_bytes, offset) for row, offset in enumerate(offsets)]
                under_way.append((out, reads))
                if len(under_way) > _AHEAD:
                    yield _read(*under_way.popleft())
            while under_way:
                yield _read(*under_way.popleft())


def _read(out: torch.Tensor, reads: list[Any]) -> torch.Tensor:
    if sum(read.get() for read in reads) != out.nbytes:
        raise RuntimeError("kvikio read fewer bytes than asked for")
    return out
