"""Batches whose bytes a backend reads: extents are read, and batches are gathered from their addresses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gdsload.backends.base import Backend
from gdsload.engine.assemble import Batch, BatchMaker
from gdsload.engine.batch_source import PendingBatches, Ready
from gdsload.engine.images.decode import ImageBatch
from gdsload.engine.loaded_rows import LoadedRows, Slices
from gdsload.engine.read_planner import ReadPlanner
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Job

__all__ = ["LandedSource"]

_Gather = Callable[[Slices, list[int]], list[Batch]]
"""Gathers batches of so many samples each, which have landed; the gather has ended when it returns."""


class LandedSource:
    """Reads extents, and gathers batches from where they land: any backend, any order, any field.

    Args:
        job: what to deliver.
        backend: what reads.
        maker: what gathers.
        stats: where time is counted.
        planner: what starts the reads; None: the one that knows every sample.
    """

    def __init__(
        self, job: Job, backend: Backend, maker: BatchMaker, stats: LoaderStats, planner: ReadPlanner | None = None
    ) -> None:
        self.job, self.backend, self.maker, self.stats = job, backend, maker, stats
        self.takes_processor = maker.takes_processor
        held, for_device = None if maker.kept is None else maker.kept.holds, not maker.takes_processor
        self._planner = planner or ReadPlanner(job, backend, maker.form, held, for_device=for_device)
        self._loaded: list[LoadedRows] = []  # those that hold arena memory
        self._batch_bytes = 0  # of a batch in the arena, the maximum so far: reads are larger than what is wanted

    def start(self, steps: range) -> PendingBatches:
        """See `BatchSource.start`."""
        slices = self._planner.slices(steps)
        loaded = slices.loaded()
        if not self._planner.windowed:
            self._batch_bytes = max(self._batch_bytes, sum(rows.nbytes for rows in loaded) // len(steps))
        known = {id(rows) for rows in self._loaded}
        self._loaded += [rows for rows in loaded if rows.nbytes and id(rows) not in known]
        try:
            gather = self._gathering(steps)
        except BaseException:
            slices.drop()
            raise
        return PendingBatches(slices.landed, partial(self._made, steps, slices, gather), slices.drop)

    def _gathering(self, _steps: range) -> _Gather:
        """A function that gathers the batches of some steps, whose reads were started."""
        return self.maker.assemble

    def _made(self, steps: range, slices: Slices, gather: _Gather, stopped: Callable[[], bool]) -> Ready:
        """See `PendingBatches.result`."""
        began = time.perf_counter()
        slices.wait()
        landed = time.perf_counter()
        sizes = [self.job.steps.size(step) for step in steps]
        batches = gather(slices, sizes)
        if parts := slices.used():
            self.backend.check(np.concatenate([part.rows.changeable for part in parts]))
        if (draws := self.job.draws) is not None:
            encoded = [
                ImageBatch(batch, draws(step), partial(self.job.place, step), partial(self.job.samples_of, step))
                for step, batch in zip(steps, batches, strict=True)
            ]
            self.maker.decode(encoded, stopped)
        self.stats.add(read_s=landed - began, gather_s=time.perf_counter() - landed)
        transform, ready = self.job.transform, Ready(batches, sizes)
        return ready if transform is None else self.maker.transformed(transform, ready, steps, stopped)

    def arena_bytes(self, steps: range, window_bytes: int) -> int:
        """See `BatchSource.arena_bytes`."""
        planner = self._planner
        wanted = planner.opens(steps) * window_bytes if planner.windowed else len(steps) * self._batch_bytes
        if not wanted:
            return 0
        self._loaded = [rows for rows in self._loaded if rows.nbytes]
        return wanted + sum(rows.nbytes for rows in self._loaded)

    def hand_over(self, batches: Sequence[Any]) -> Callable[[Any], Any]:
        """See `BatchSource.hand_over`."""
        return self.maker.hand_over(batches)

    def again(self) -> LandedSource:
        """See `BatchSource.again`."""
        return LandedSource(self.job, self.backend, self.maker, self.stats)

    def close(self) -> None:
        """See `BatchSource.close`. It may be used again: windows that are wanted are read again."""
        self._planner.let_go()
