"""safetensors: a whole file at a time."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.contenders.base import Contender, permutation, spans

__all__ = ["Safetensors"]


class Safetensors(Contender):
    """A whole file at a time to the device, and batches of it."""

    title = "safetensors, whole file"
    settings = "load_file(path, device) in each epoch, then x[low:high] or x[permutation[low:high]]"
    shuffle = "full: the file is held in VRAM whole"
    host = False
    bursts = True

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """Tensors; slices, where rows come in order."""
        load_file = importlib.import_module("safetensors.torch").load_file
        device, path = self.job.device, str(self.job.source)
        epoch = 0
        while True:
            rows = load_file(path, device=str(device))["x"]
            ids = torch.from_numpy(permutation(len(rows), epoch)).to(device) if self.job.shuffled else None
            for low, high in spans(len(rows), self.job.batch_size):
                yield rows[low:high] if ids is None else rows[ids[low:high]]
            epoch += 1
            if not endless:
                return
