"""Batches whose bytes the GPU can reach already: made from positions, with nothing to plan and nothing to bring."""

from __future__ import annotations

import threading

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.backends.base import Backend, WithinReach
from gdsload.engine.assemble import Batch
from gdsload.engine.assemble_device import DeviceAssembler
from gdsload.engine.gather_positions import PositionGather, Rows
from gdsload.engine.stage import Job, Ordered
from gdsload.order import FullOrder, SequentialOrder
from gdsload.streams import record
from gdsload.tensors import torch_dtype

__all__ = ["Direct"]

IntArray = NDArray[np.int64]

_MOST_ROW_BYTES = 8 * 2**20
"""The kernel counts words of 256 rows in 32 bits. Longer rows are copied by the copy engine anyway."""
_MOST_SELECTED = 2**26
"""Indices of a selection that are worth 8 bytes each of the GPU's memory."""


class Direct:
    """Makes batches of an epoch from positions, once all shards are within reach.

    Args:
        job: what to deliver.
        steps: the job's steps: those of an order that the GPU can evaluate.
        backend: where the shards are.
        maker: what allocates and finishes batches.
    """

    def __init__(self, job: Job, steps: Ordered, backend: WithinReach, maker: DeviceAssembler) -> None:
        self._job, self._backend, self._maker = job, backend, maker
        self.order, self.schedule = steps.order, steps.schedule
        self._fields = {name: job.table.schema[name] for name in job.fields}
        self._base = np.zeros(0, np.int64)
        self._over_pcie = False
        self._gather: PositionGather | None = None
        self._rows: dict[str, Rows] = {}
        self._lock = threading.Lock()
        self._sample_bytes = sum(field.row_bytes for field in self._fields.values())

    @classmethod
    def of(cls, job: Job, backend: Backend, maker: object) -> Direct | None:
        """One for this epoch, or None if its batches cannot be made so."""
        steps, selected = job.steps, job.selection.ids
        if not (isinstance(backend, WithinReach) and isinstance(maker, DeviceAssembler) and isinstance(steps, Ordered)):
            return None
        fields = [job.table.schema[name] for name in job.fields]
        if (
            not isinstance(steps.order, FullOrder | SequentialOrder)
            or any(field.ragged or field.row_bytes > _MOST_ROW_BYTES for field in fields)
            or (selected is not None and len(selected) > _MOST_SELECTED)
        ):
            return None
        by_copies = isinstance(steps.order, SequentialOrder) and selected is None
        return cls(job, steps, backend, maker) if by_copies or maker.gather.kernel else None

    def ready(self) -> bool:
        """Whether all shards are within reach now."""
        base = self._backend.reachable()
        if base is None or not len(base):
            return False
        with self._lock:
            if base is not self._base:
                self._locate(base)
        return True

    @property
    def over_pcie(self) -> bool:
        """Whether the shards are in host memory; known once it is ready."""
        return self._over_pcie

    def _locate(self, base: IntArray) -> None:
        job, table = self._job, self._job.table
        self._over_pcie = bool(self._maker.gather.on_host(base).any())
        selected = job.selection.ids
        if isinstance(self.order, FullOrder) or selected is not None:
            recipe = self.order.permutation.recipe() if isinstance(self.order, FullOrder) else None
            self._gather = PositionGather(
                self._maker.device, table.ends, over_pcie=self._over_pcie, recipe=recipe, selection=selected
            )
            self._rows = {
                name: Rows(self._gather, base + table.files.begin[name], field.row_bytes)
                for name, field in self._fields.items()
                if field.row_bytes
            }
        self._base = base

    def start(self, steps: range) -> tuple[list[Batch], torch.cuda.Event]:
        """Queue the making of some steps' batches on the loader's stream; `ready` must have said yes.

        Returns:
            The batches, and an event behind them.
        """
        with torch.cuda.stream(self._maker.stream):
            return self.gather(steps), record(self._maker.stream)

    def gather(self, steps: range) -> list[Batch]:
        """Queue the gathering of some steps' batches on the current stream; `ready` must have said yes."""
        schedule = self.schedule
        size, stride = schedule.batch_size, schedule.global_batch
        first, _ = schedule.span(steps[0])
        start, stop = schedule.span(steps[-1])
        # All batches but an epoch's last have one size, and lie one stride behind the other.
        full = len(steps) - (schedule.position(steps.stop) - schedule.position(steps[-1]) != stride)
        batches: list[Batch] = [{} for _ in steps]
        for name, field in self._fields.items():
            shape, dtype = (size, *field.row_shape), torch_dtype(field.dtype)
            outs = [torch.empty(shape, dtype=dtype, device=self._maker.device) for _ in range(full)]
            self._rows_of(name, first, stride, outs, size)
            if full < len(steps):
                outs.append(self._maker.empty(stop - start, field))
                self._rows_of(name, start, stride, outs[-1:], stop - start)
            for batch, out in zip(batches, outs, strict=True):
                batch[name] = out
        if self._maker.form.index is not None:
            for step, batch in zip(steps, batches, strict=True):
                batch[self._maker.form.index] = torch.from_numpy(self._index(*schedule.span(step)))
        self._backend.count((full * size + (stop - start) * (full < len(steps))) * self._sample_bytes)
        return batches

    def _rows_of(self, name: str, first: int, stride: int, outs: list[torch.Tensor], size: int) -> None:
        """Fill batches of one size with rows of a field."""
        row_bytes = self._fields[name].row_bytes
        if not row_bytes or not size:
            return
        if self._gather is not None:
            self._gather.rows(self._rows[name], first, stride, outs, size)
            return
        for number, out in enumerate(outs):
            start = first + number * stride
            self._copy(name, start, start + size, row_bytes, out)

    def _copy(self, name: str, start: int, stop: int, row_bytes: int, out: torch.Tensor) -> None:
        """Copy the rows of samples that follow one another: a run for each of their shards."""
        table, base = self._job.table, self._base
        first, last = np.searchsorted(table.ends, (start, stop - 1), side="right").tolist()
        files = np.arange(first, last + 1)
        low = np.maximum(table.starts[files], start)
        count = np.minimum(table.ends[files], stop) - low
        addresses = base[files] + table.files.begin[name][files] + (low - table.starts[files]) * row_bytes
        self._maker.gather.runs(addresses[count > 0], count[count > 0] * row_bytes, out)

    def _index(self, start: int, stop: int) -> IntArray:
        """What the user calls the samples at these positions."""
        job = self._job
        positions = self.order.lane_ids(0, start, stop) if stop > start else np.zeros(0, np.int64)
        return np.array(positions if job.selection.index is None else job.selection.index[positions])
