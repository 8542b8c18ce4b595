"""Batches that are read one by one, when the consumer asks for them: nothing is read ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gdsload.backends.base import Backend
from gdsload.engine.assemble import Batch, BatchMaker
from gdsload.engine.batch_source import make_now
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.landed import LandedSource
from gdsload.engine.resident import ResidentGather
from gdsload.engine.resident_source import ResidentSource
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Job, Steps
from gdsload.shards.shard_table import ShardTable
from gdsload.system.arrays import IntArray


class _Asked(Steps, threading.local):
    """One step, which takes the positions that the calling thread asks for."""

    steps = 1
    asked: IntArray

    def reach(self, _step: int) -> int:
        return len(self.asked)

    def size(self, _step: int) -> int:
        return len(self.asked)

    def positions(self, _steps: range) -> IntArray:
        return self.asked


def on_demand(table: ShardTable, backend: Backend, maker: BatchMaker) -> Callable[[IntArray], Batch]:
    """A function that makes batches: on a GPU that can reach all shards by one gather, else by reads.

    It takes sample ids in the table, in any order; they may repeat. The batch is handed over to the stream that is
    current, and complete when the function returns. Where bytes are read, what lands on a device takes as much of its
    memory as the batch until then. Several threads may call it. It raises `GdsloadError` for what cannot be read.
    """
    asked = _Asked()
    job = Job(table, asked)
    resident = ResidentGather.of(job, backend, maker)
    maker.prepare()

    def source() -> LandedSource:
        if resident is not None and isinstance(maker, DeviceAssembler):
            return ResidentSource(resident, job, backend, maker, LoaderStats())
        return LandedSource(job, backend, maker, LoaderStats())

    def batch_of(ids: IntArray) -> Batch:
        outer, asked.asked = getattr(asked, "asked", ids), ids
        try:
            batch: Any = make_now(source(), 0).batches[0]
        finally:
            asked.asked = outer  # of the call that a signal's handler, or a finaliser, has interrupted by this one
        found: Batch = maker.hand_over([batch])(batch)
        return found

    return batch_of
