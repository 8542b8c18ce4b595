"""WebDataset: samples in tar files, read in order."""

from __future__ import annotations

import importlib
import io
import tarfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.contenders.base import Contender, spans

__all__ = ["WebDatasetTar"]

_SHARDS = 4  # for each worker
_BUFFER = 1000


class _Decode:
    """Raw bytes to an array; a class, since worker processes are sent it."""

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self._dtype, self._shape = dtype, shape

    def __call__(self, sample: dict[str, Any]) -> NDArray[Any]:
        return np.frombuffer(sample["bin"], self._dtype).reshape(self._shape)


def stack(rows: list[NDArray[Any]]) -> torch.Tensor:
    """One tensor of many arrays."""
    return torch.from_numpy(np.stack(rows))


class WebDatasetTar(Contender):
    """Raw bytes, not pickles or images: the least that a sample can cost there."""

    title = "WebDataset, {workers} workers"
    settings = f"{_SHARDS} tar files of raw bytes a worker, batched in the workers, WebLoader of {{workers}} workers"
    shuffle = f"tar files, then a buffer of {_BUFFER}"
    own_format = True

    def prepare(self, rows: NDArray[Any]) -> None:
        """Tar files with an even share each, and a whole number of batches each where that is possible."""
        size = self.job.batch_size
        share = max(-(-len(rows) // (_SHARDS * self.job.workers) // size) * size, size)
        for shard, (low, high) in enumerate(spans(len(rows), share)):
            with tarfile.open(self.job.folder / f"{shard:05d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
                for index in range(low, high):
                    data = rows[index].tobytes()
                    info = tarfile.TarInfo(f"{index:09d}.bin")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """Tensors."""
        wds = importlib.import_module("webdataset")
        shuffled = self.job.shuffled
        urls = [str(path) for path in sorted(self.job.folder.glob("*.tar"))]
        found = wds.WebDataset(urls, shardshuffle=len(urls) if shuffled else False, empty_check=False)
        if shuffled:
            found = found.shuffle(_BUFFER)
        found = found.map(_Decode(self.job.dtype, self.job.shape))
        found = found.batched(self.job.batch_size, collation_fn=stack, partial=True)
        loader = wds.WebLoader(
            found, batch_size=None, num_workers=self.job.workers, persistent_workers=True, pin_memory=self.job.pinned
        )
        while True:
            yield from loader
            if not endless:
                return
