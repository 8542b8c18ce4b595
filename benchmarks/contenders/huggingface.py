"""Hugging Face datasets: Arrow files."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.contenders.base import Contender, spans

__all__ = ["HuggingFace"]


class HuggingFace(Contender):
    """A batch a call (`dataset[ids]`), through torch's DataLoader.

    Its fastest form: a flat list of fixed length for each sample, which Arrow can take from in one go. Arrays of three
    dimensions are an extension type there, and came out up to 20 times slower.
    """

    title = "Hugging Face datasets, {workers} workers"
    settings = (
        'flat List(length=n), with_format("torch", dtype=...), batch.view(shape); '
        "DataLoader(sampler=BatchSampler(...), batch_size=None, num_workers={workers})"
    )
    shuffle = "full"
    own_format = True

    def prepare(self, rows: NDArray[Any]) -> None:
        """Arrow files."""
        hf, arrow = importlib.import_module("datasets"), importlib.import_module("pyarrow")
        hf.disable_progress_bars()
        length = math.prod(self.job.shape)
        features = hf.Features({"data": hf.List(hf.Value(self.job.dtype), length=length)})
        parts = []
        for low, high in spans(len(rows), max(2**26 // self.job.row_bytes, 1)):
            flat = arrow.array(np.ascontiguousarray(rows[low:high]).reshape(-1))
            lists = arrow.FixedSizeListArray.from_arrays(flat, length)
            parts.append(hf.Dataset(arrow.table({"data": lists}, schema=features.arrow_schema)))
        hf.concatenate_datasets(parts).save_to_disk(str(self.job.folder / "arrow"))

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """Tensors. Without `dtype`, every integer would come as int64."""
        hf = importlib.import_module("datasets")
        dtype = getattr(torch, self.job.dtype)
        found = hf.load_from_disk(str(self.job.folder / "arrow")).with_format("torch", dtype=dtype)
        torch_data = torch.utils.data
        inner: Any = torch_data.RandomSampler(found) if self.job.shuffled else torch_data.SequentialSampler(found)
        sampler = torch_data.BatchSampler(inner, self.job.batch_size, drop_last=False)
        loader: Any = torch_data.DataLoader(
            found,
            batch_size=None,
            sampler=sampler,
            num_workers=self.job.workers,
            persistent_workers=True,
            pin_memory=self.job.pinned,
        )
        while True:
            for batch in loader:
                yield batch["data"].view(-1, *self.job.shape)
            if not endless:
                return
