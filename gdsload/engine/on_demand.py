"""Batches that are read one by one, when the consumer asks for them: nothing is read ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
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

__all__ = ["on_demand"]


class _Asked(Steps):
    """Steps without an order: each is there while it is asked for, with the positions that it takes."""

    steps = 1 << 62

    def __init__(self) -> None:
        self._positions: dict[int, IntArray] = {}
        self._numbers = count()

    @contextmanager
    def step(self, positions: IntArray) -> Iterator[int]:
        """The number of a step that takes these positions. Several threads may have one each."""
        number = next(self._numbers)
        self._positions[number] = positions
        try:
            yield number
        finally:
            del self._positions[number]

    def reach(self, step: int) -> int:
        """See `Steps`."""
        return self.size(step)

    def size(self, step: int) -> int:
        """See `Steps`."""
        return len(self._positions[step])

    def positions(self, steps: range) -> IntArray:
        """See `Steps`."""
        (step,) = steps
        return self._positions[step]


def on_demand(table: ShardTable, backend: Backend, maker: BatchMaker) -> Callable[[IntArray], Batch]:
    """A function that makes batches: on a GPU that can reach all shards by one gather, else by reads.

    It takes sample ids in the table, in any order; they may repeat. The batch is handed over to the stream that is
    current, and complete when the function returns. Where bytes are read, what lands on a device takes as much of its
    memory as the batch until then. Several threads may call it. It raises `GdsloadError` for what cannot be read.

    Args:
        table: the samples.
        backend: what reads them.
        maker: what makes batches.
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
        with asked.step(ids) as step:
            batch: Any = make_now(source(), step).batches[0]
        found: Batch = maker.hand_over([batch])(batch)
        return found

    return batch_of
