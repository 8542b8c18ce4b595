"""Batches of block-shuffled windows that a backend reads, whose samples the GPU works out and gathers.

The host reads blocks, and says where they are. It knows no sample: which ones batches have is computed by the GPU
(`BlockIds`), which finds their addresses in the table of blocks, as it does in that of shards within its reach.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from gdsload.backends.base import Backend
from gdsload.engine.assemble import Batch
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.landed import LandedSource
from gdsload.engine.loaded_rows import RowMap, Slices
from gdsload.engine.resident import evaluated_by_gpu, filled, in_parts, makes_plain_rows
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Job
from gdsload.kernels.block_ids import BlockIds
from gdsload.kernels.gather_positions import DeviceRows, PositionGather, word_of
from gdsload.order import BlockOrder, Schedule
from gdsload.system.streams import on

_AHEAD = 2**18
"""Samples that are worked out at once: a group's few thousand cost the host as many calls as many groups'."""


class WindowSource(LandedSource):
    """Reads windows as runs of samples, and has the GPU find the samples in them.

    Raises:
        torch.OutOfMemoryError: if the GPU has no room for the order's blocks.
    """

    by_id = True
    maker: DeviceAssembler

    def __init__(
        self,
        job: Job,
        order: BlockOrder,
        schedule: Schedule,
        backend: Backend,
        maker: DeviceAssembler,
        stats: LoaderStats,
    ) -> None:
        super().__init__(job, backend, maker, stats)
        self._schedule, self._ids = schedule, BlockIds(maker.device, order, schedule)
        self._ahead = range(0), torch.empty(0)
        self._rows = PositionGather(maker.device, job.table.ends, over_pcie=False)

    @classmethod
    def of(cls, job: Job, backend: Backend, maker: object, stats: LoaderStats) -> WindowSource | None:
        """One for this epoch, or None if its batches are not made this way."""
        if backend.addressable or backend.in_place or not makes_plain_rows(maker):
            return None
        if not maker.gather.has_kernel() or job.ids is not None:
            return None
        steps = evaluated_by_gpu(job, with_index=maker.form.index is not None)
        if steps is None or not isinstance(steps.order, BlockOrder):
            return None
        if not any(codec.stored.row_bytes for codec in maker.form.codecs.values()):
            return None
        try:
            return cls(job, steps.order, steps.schedule, backend, maker, stats)
        except torch.OutOfMemoryError:
            return None

    def _gathering(self, steps: range) -> Callable[[Slices, list[int]], list[Batch]]:
        """See `LandedSource`: the GPU works out ids while the bytes are on their way."""
        ids = self._samples(steps)

        def gathered(slices: Slices, sizes: list[int]) -> list[Batch]:
            with self.maker.making():  # the memory of windows is given back after the gather
                return self.gather(slices, sizes, ids)

        return gathered

    def _samples(self, steps: range) -> torch.Tensor:
        """The samples of some steps, in order, on the device; made for many steps at once."""
        known, ids = self._ahead
        if not (known.start <= steps.start and steps.stop <= known.stop):
            stop = max(steps.start + _AHEAD // self._schedule.batch_size, steps.stop)
            known = range(steps.start, min(stop, self._schedule.steps))
            with on(self.maker.stream):
                ids = self._ids(known)
            self._ahead = known, ids
        first = (steps.start - known.start) * self._schedule.batch_size  # only the epoch's last batch may be smaller
        return ids[first : first + sum(self._schedule.sizes(steps))]

    def gather(self, slices: Slices, sizes: list[int], ids: torch.Tensor) -> list[Batch]:
        """Queue the gathering of batches of the samples `ids`, whose windows have landed, on the current stream."""
        maker, windows, parts = self.maker, slices.loaded(), in_parts(range(len(sizes)), sizes, ids)

        def fill(name: str, outs: list[torch.Tensor]) -> None:
            row_bytes = maker.form.codecs[name].stored.row_bytes
            if row_bytes and windows:
                rows = self._found([one.fields[name] for one in windows], row_bytes)
                for some, positions in parts:
                    self._rows.rows(rows, positions, outs[some.start : some.stop])

        return filled(maker.form, sizes, maker.device, fill)

    def _found(self, maps: list[RowMap], row_bytes: int) -> DeviceRows:
        ends = np.concatenate([one.ends for one in maps if one.ends is not None])
        by_id = ends.argsort()
        origins = np.concatenate([one.addresses for one in maps])[by_id]
        on_device = self.maker.gather.upload(np.stack([ends[by_id], origins]))
        return DeviceRows(on_device[0], on_device[1], row_bytes, word_of(origins, row_bytes))
