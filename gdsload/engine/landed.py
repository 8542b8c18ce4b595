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
from gdsload.engine.read_planner import LoadedRows, Planner, ReadPlanner, Slices
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Job

__all__ = ["LandedBatches", "LandedSource"]


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
        self, job: Job, backend: Backend, maker: BatchMaker, stats: LoaderStats, planner: Planner | None = None
    ) -> None:
        self.job, self.backend, self.maker, self.stats = job, backend, maker, stats
        self.takes_processor = maker.takes_processor
        held = None if maker.kept is None else maker.kept.holds
        self._planner: Planner = planner or ReadPlanner(job, backend, held)
        self._loaded: list[LoadedRows] = []  # those that hold arena memory
        self._batch_bytes = 0  # of a batch in the arena, the maximum so far: reads are larger than what is wanted

    def start(self, steps: range) -> PendingBatches:
        """See `BatchSource.start`."""
        slices = self._planner.slices(steps)
        loaded = list({id(part.rows): part.rows for part in slices.parts}.values())
        if not self._planner.windowed:
            self._batch_bytes = max(self._batch_bytes, sum(rows.nbytes for rows in loaded) // len(steps))
        known = {id(rows) for rows in self._loaded}
        self._loaded += [rows for rows in loaded if rows.nbytes and id(rows) not in known]
        return self._pending(steps, slices)

    def _pending(self, steps: range, slices: Slices) -> LandedBatches:
        """The batches of some steps, whose bytes are being read."""
        return LandedBatches(self, steps, slices)

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


class LandedBatches:
    """Batches whose bytes are being read.

    Args:
        source: what reads them.
        steps: the steps whose batches these are.
        slices: their samples.
    """

    def __init__(self, source: LandedSource, steps: range, slices: Slices) -> None:
        self._source, self._steps, self._slices = source, steps, slices

    def landed(self) -> bool:
        """See `PendingBatches.landed`."""
        return all(part.rows.pending.completion.landed for part in self._slices.parts)

    def result(self, stopped: Callable[[], bool]) -> Ready:
        """See `PendingBatches.result`."""
        source, steps, slices = self._source, self._steps, self._slices
        began = time.perf_counter()
        for part in slices.parts:
            part.rows.pending.completion.wait()
        landed = time.perf_counter()
        sizes = [source.job.steps.size(step) for step in steps]
        batches = self._gather(slices, sizes)
        self._slices = Slices([])
        for part in slices.parts:
            part.rows.used(part.count)
        if slices.parts:
            source.backend.check(np.concatenate([part.rows.changeable for part in slices.parts]))
        if (draws := source.job.draws) is not None:
            encoded = [
                ImageBatch(batch, draws(step), partial(source.job.place, step), partial(source.job.samples, step))
                for step, batch in zip(steps, batches, strict=True)
            ]
            source.maker.decode(encoded, stopped)
        source.stats.add(read_s=landed - began, gather_s=time.perf_counter() - landed)
        transform = source.job.transform
        ready = Ready(batches, sizes)
        return ready if transform is None else source.maker.transformed(transform, ready, steps, stopped)

    def drop(self) -> None:
        """See `PendingBatches.drop`."""
        slices, self._slices = self._slices, Slices([])
        for part in slices.parts:
            part.drop()

    def _gather(self, slices: Slices, sizes: list[int]) -> list[Batch]:
        """The batches of samples that have landed; it has ended when it returns."""
        return self._source.maker.assemble(slices, sizes)
