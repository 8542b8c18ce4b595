"""The limits, as contenders: so they are measured in the same rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.contenders.base import Contender, permutation, spans
from benchmarks.gpu.limits import DirectReads, PinnedCopies

__all__ = ["CopyPeak", "DiskPeak", "ResidentGather"]


class _Limit(Contender):
    version = torch.__version__
    host = False


class CopyPeak(_Limit):
    """The speed of the link: copies out of pinned memory."""

    title = "P: pinned memory to the GPU"
    settings = "256 MiB copies out of pinned memory, two under way"
    checked = False

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """The same memory again and again."""
        for copied, target in enumerate(PinnedCopies(self.job.device)):
            if not endless and copied * target.nbytes >= self.job.num_bytes:
                return
            yield target


class DiskPeak(_Limit):
    """The speed of the disk: threads that read with O_DIRECT."""

    title = "D: O_DIRECT, 12 threads"
    settings = "12 threads read blocks of 8 MiB with O_DIRECT into pinned memory, and nothing is done with them"
    checked = False

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """Numbers of bytes read."""
        reads = DirectReads(self.files(), pinned=self.job.pinned)
        yield reads.run()
        while endless:
            yield reads.run()

    def num_bytes(self, data: Any) -> int:
        """See `Contender.num_bytes`."""
        return int(data)


class ResidentGather(_Limit):
    """The gather of a script that keeps its data in VRAM: ``x[ids]``."""

    title = "bare gather in VRAM"
    settings = "x[ids] on the resident tensor, the permutation drawn beforehand on the GPU and the same in every epoch"

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """Fresh tensors."""
        rows = torch.from_numpy(self.open_source()).to(self.job.device)
        ids = torch.from_numpy(permutation(len(rows), 0)).to(self.job.device)
        chosen = [ids[low:high] for low, high in spans(len(rows), self.job.batch_size)]
        while True:
            for part in chosen:
                yield rows[part]
            if not endless:
                return
