"""DALI: pipelines."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.contenders.base import Contender, Job, open_rows, permutation

__all__ = ["Dali"]

_AHEAD = 4


class Dali(Contender):
    """A pipeline whose worker processes fetch whole batches: its own readers take one sample a file."""

    title = "DALI, external source"
    settings = (
        "external_source(batch=True, parallel=True, memmap[ids]), {workers} processes, .gpu(), DALIGenericIterator"
    )
    shuffle = "full"
    host = False

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """Tensors."""
        dali, plugin = (importlib.import_module(f"nvidia.dali{name}") for name in ("", ".plugin.pytorch"))
        job = self.job
        on_gpu = job.device.type == "cuda"
        pipeline = dali.Pipeline(
            batch_size=job.batch_size,
            num_threads=4,
            device_id=torch.cuda.current_device() if on_gpu else None,
            prefetch_queue_depth=_AHEAD,
            py_num_workers=job.workers,
            py_start_method="spawn",
        )
        with pipeline:
            source = _Source(job)
            rows = dali.fn.external_source(
                source=source, batch=True, batch_info=True, parallel=True, dtype=dali.types.UINT8
            )
            pipeline.set_outputs(rows.gpu() if on_gpu else rows)
        pipeline.start_py_workers()
        found = plugin.DALIGenericIterator([pipeline], ["x"], auto_reset=True)
        while True:
            for batch in found:
                yield batch[0]["x"]
            if not endless:
                return


class _Source:
    """Whole batches, as lists of rows; DALI's worker processes are sent it, and each maps the file itself."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rows: Any = None
        self._ids: tuple[int, Any] = (-1, None)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_rows": None, "_ids": (-1, None)}

    def __call__(self, info: Any) -> Any:
        job = self._job
        low = info.iteration * job.batch_size
        high = low + job.batch_size
        if high > job.samples:
            raise StopIteration
        if self._rows is None:
            self._rows = open_rows(job.source)
        if not job.shuffled:
            return list(self._rows[low:high])
        if self._ids[0] != info.epoch_idx:
            self._ids = info.epoch_idx, permutation(job.samples, info.epoch_idx)
        return list(self._rows[self._ids[1][low:high]])
