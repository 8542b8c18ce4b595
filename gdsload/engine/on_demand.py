"""Batches that are read one by one, when the consumer asks for them: nothing is read ahead."""

from __future__ import annotations

from collections.abc import Iterator
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

__all__ = ["OnDemand"]


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


class OnDemand:
    """Makes batches when they are asked for: on a GPU that can reach all shards by one gather, else by reads.

    Its call may be made by several threads.

    Args:
        table: the samples.
        backend: what reads them.
        maker: what makes batches.
    """

    def __init__(self, table: ShardTable, backend: Backend, maker: BatchMaker) -> None:
        self._asked, self._backend, self._maker = _Asked(), backend, maker
        self._job = Job(table, self._asked)
        self._resident = ResidentGather.of(self._job, backend, maker)
        maker.prepare()

    def __call__(self, ids: IntArray) -> Batch:
        """The batch of these samples, handed over to the stream that is current; complete when it returns.

        Args:
            ids: sample ids in the table, in any order; they may repeat. Where bytes are read, what lands on a device
                takes as much of its memory as the batch until it returns.

        Raises:
            GdsloadError: if it cannot be read.
        """
        with self._asked.step(ids) as step:
            batch: Any = make_now(self._source(), step).batches[0]
        found: Batch = self._maker.hand_over([batch])(batch)
        return found

    def _source(self) -> LandedSource:
        if self._resident is not None and isinstance(self._maker, DeviceAssembler):
            return ResidentSource(self._resident, self._job, self._backend, self._maker, LoaderStats())
        return LandedSource(self._job, self._backend, self._maker, LoaderStats())
