"""Batches of block-shuffled windows that a backend reads, whose samples the GPU works out and gathers.

The host reads blocks, and says where they are. It knows no sample: which ones batches have is computed by the GPU
(`BlockIds`), which finds their addresses in the table of blocks, as it does in that of shards within its reach.
"""

from __future__ import annotations

import numpy as np
import torch

from gdsload.backends.base import Backend
from gdsload.engine.assemble import Batch
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.gpu.batch_memory import batch_tensors
from gdsload.engine.gpu.block_ids import BlockIds
from gdsload.engine.gpu.gather_positions import PositionGather, RowRuns, word_of
from gdsload.engine.landed import LandedBatches, LandedSource
from gdsload.engine.read_planner import Slices
from gdsload.engine.resident import computable, in_parts, rows_are_gathered
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Job
from gdsload.engine.window_planner import FieldRuns, LoadedRuns, WindowPlanner
from gdsload.order import BlockOrder, Schedule
from gdsload.system.streams import on

__all__ = ["WindowSource"]


_AHEAD = 2**18
"""Samples that are worked out at once: a group's few thousand cost the host as many calls as many groups'."""


class WindowSource(LandedSource):
    """Reads windows as runs of samples, and has the GPU find the samples in them.

    Args:
        job: what to deliver: rows that the kernel can gather, of samples that are the order's.
        order: the order.
        schedule: which of its positions each step takes; with it, one that is possible for `BlockIds`.
        backend: what reads, into memory of the GPU.
        maker: what allocates batches, and whose stream they are gathered on.
        stats: where time is counted.

    Raises:
        torch.OutOfMemoryError: if the GPU has no room for the order's blocks.
    """

    def __init__(
        self,
        job: Job,
        order: BlockOrder,
        schedule: Schedule,
        backend: Backend,
        maker: DeviceAssembler,
        stats: LoaderStats,
    ) -> None:
        super().__init__(job, backend, maker, stats, WindowPlanner(job, order, schedule, backend))
        self.assembler = maker
        self._schedule, self._ids = schedule, BlockIds(maker.device, order, schedule)
        self._ahead = range(0), torch.empty(0)
        self._rows = PositionGather(maker.device, job.table.ends, over_pcie=False)

    @classmethod
    def of(cls, job: Job, backend: Backend, maker: object, stats: LoaderStats) -> WindowSource | None:
        """One for this epoch, or None if its batches are not made this way."""
        if backend.addressable or backend.in_place or not isinstance(maker, DeviceAssembler):
            return None
        if not maker.gather.has_kernel() or not rows_are_gathered(maker) or job.selection.ids is not None:
            return None
        steps = computable(job, with_index=maker.form.index is not None)
        if steps is None or not isinstance(steps.order, BlockOrder):
            return None
        if not any(job.table.columns[name].row_bytes for name in job.columns):
            return None
        try:
            return cls(job, steps.order, steps.schedule, backend, maker, stats)
        except torch.OutOfMemoryError:
            return None

    def _pending(self, steps: range, slices: Slices) -> LandedBatches:
        """See `LandedSource`: the GPU works out ids while the bytes are on their way."""
        try:
            ids = self._samples(steps)
        except BaseException:
            for part in slices.parts:
                part.drop()
            raise
        return _WindowBatches(self, steps, slices, ids)

    def _samples(self, steps: range) -> torch.Tensor:
        """The samples of some steps, in order, on the device; made for many steps at once."""
        known, ids = self._ahead
        if not (known.start <= steps.start and steps.stop <= known.stop):
            stop = max(steps.start + _AHEAD // self._schedule.batch_size, steps.stop)
            known = range(steps.start, min(stop, self._schedule.steps))
            with on(self.assembler.stream):
                ids = self._ids(known)
            self._ahead = known, ids
        first = (steps.start - known.start) * self._schedule.batch_size  # only the epoch's last batch may be smaller
        return ids[first : first + sum(self._schedule.sizes(steps))]

    def gather(self, slices: Slices, sizes: list[int], ids: torch.Tensor) -> list[Batch]:
        """Queue the gathering of batches on the current stream.

        Args:
            slices: windows that have landed.
            sizes: samples of each batch.
            ids: their samples, in order, on the device.
        """
        maker, form = self.assembler, self.assembler.form
        loaded = {id(part.rows): part.rows for part in slices.parts}
        windows = [rows for rows in loaded.values() if isinstance(rows, LoadedRuns)]
        batches, parts = [form.new_batch() for _ in sizes], in_parts(range(len(sizes)), sizes, ids)
        for name, codec in form.codecs.items():
            outs = batch_tensors(sizes, codec.stored, maker.device)
            if codec.stored.row_bytes and windows:
                rows = self._found([one.runs[name] for one in windows], codec.stored.row_bytes)
                for some, positions in parts:
                    self._rows.rows(rows, positions, outs[some.start : some.stop])
            for batch, out in zip(batches, outs, strict=True):
                codec.put(batch, out)
        return batches

    def _found(self, runs: list[FieldRuns], row_bytes: int) -> RowRuns:
        """The table of a field's runs, on the device."""
        table = FieldRuns.together(runs)
        ends, origins = self.assembler.gather.upload(np.stack([table.ends, table.origins]))
        return RowRuns(ends, origins, row_bytes, word_of(np.array([table.bits]), row_bytes))


class _WindowBatches(LandedBatches):
    """Batches whose windows are being read.

    Args:
        windows: what reads them.
        steps: the steps whose batches these are.
        slices: their windows.
        ids: their samples, in order, on the device.
    """

    def __init__(self, windows: WindowSource, steps: range, slices: Slices, ids: torch.Tensor) -> None:
        super().__init__(windows, steps, slices)
        self._windows, self._ids = windows, ids

    def _gather(self, slices: Slices, sizes: list[int]) -> list[Batch]:
        """See `LandedBatches`: the memory of windows is given back after the gather."""
        with self._windows.assembler.making():
            return self._windows.gather(slices, sizes, self._ids)
