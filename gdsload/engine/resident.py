"""The gather of batches whose shards the GPU can address, in registered page cache or in VRAM: nothing is read.

Where the GPU can evaluate the order itself, there is nothing to plan. Ids that only the host knows, as with a sampler
or a mixture, are uploaded for each group.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeGuard

import numpy as np
import torch

from gdsload.backends.base import Backend, ShardAddresses
from gdsload.engine.assemble import Batch, BatchForm
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.gpu.batch_memory import batch_tensors
from gdsload.engine.runs import lie_in_runs
from gdsload.engine.steps import Job, Ordered
from gdsload.kernels.block_ids import BlockIds
from gdsload.kernels.gather_positions import (
    DeviceRows,
    PositionBatch,
    PositionGather,
    compile_gather,
    rows_in_shards,
)
from gdsload.kernels.launch import prepare
from gdsload.order import BlockOrder, FullOrder, SequentialOrder
from gdsload.system.arrays import IntArray, array_of
from gdsload.system.copies import LONG_BYTES, copies_scattered_runs

_NONE = np.zeros(0, np.int64)
_MOST_ROW_BYTES = 8 * 2**20
"""The kernel counts the words of a row in 32 bits, and with few such long rows planning is cheap anyway."""
_MOST_SHARDS = 256
"""Files that can be checked within a millisecond, which a consumer can wait for now and then."""
_MOST_SELECTED = 2**26
"""Indices of a selection that may take 8 bytes each of the GPU's memory."""


@dataclass(frozen=True, slots=True)
class _Reach:
    """The addresses of the samples, and the kernels that gather them.

    Attributes:
        over_pcie: whether some of them are in host memory.
        gather: what gathers them; None where no field needs it.
        rows: the fields that it gathers. Others are copied: in the order of the shards all of them are runs, and long
            rows over the link are faster copied one by one than gathered.
    """

    addresses: ShardAddresses
    over_pcie: bool
    gather: PositionGather | None
    rows: dict[str, DeviceRows]


class ResidentGather:
    """Gathers batches of an epoch by their positions, once the GPU can address all shards.

    `ordered` are the job's steps, if they are those of an order that the GPU can evaluate; else None.
    """

    def __init__(self, job: Job, ordered: Ordered | None, backend: Backend, maker: DeviceAssembler) -> None:
        self.job, self.backend, self.maker = job, backend, maker
        self.ordered = ordered
        self._fields = {name: codec.stored for name, codec in maker.form.codecs.items()}
        self._ends: list[int] = job.table.ends.tolist()
        # Replaced as a whole: one thread may find another base while another thread queues with the one it found
        # before.
        self._reach: _Reach | None = None
        # Computes the ids of all positions. None where the gather knows them itself, gets them from the host, or needs
        # none. It is made before the first reach that has a gather for it.
        self._ids: BlockIds | None = None
        self._hopeless = False
        self._lock = threading.Lock()
        self._sample_bytes = sum(field.row_bytes for field in self._fields.values())

    @classmethod
    def of(cls, job: Job, backend: Backend, maker: object) -> ResidentGather | None:
        """One for this epoch, or None if its batches cannot be gathered this way."""
        if not (backend.addressable and makes_plain_rows(maker)):
            return None
        return cls(job, evaluated_by_gpu(job, with_index=maker.form.index is not None), backend, maker)

    def ready(self) -> bool:
        """Return whether the GPU can address all shards now, and has kernels, and room for their tables."""
        found = None if self._hopeless else self.backend.addresses()
        if found is None or not len(found.base) or not (self.in_order or self.maker.gather.has_kernel()):
            return False
        with self._lock:
            try:
                if self._reach is None or found is not self._reach.addresses:
                    self._reach = self._located(found)
            except torch.OutOfMemoryError:
                self.give_up()  # for this epoch: its batches are planned by the host
        return not self._hopeless

    @property
    def over_pcie(self) -> bool:
        """True if the shards are in host memory; known once it is ready."""
        return self._reach is not None and self._reach.over_pcie

    @property
    def planned_by_gpu(self) -> bool:
        """True if a group costs the host a few numbers and a check of a few files; known once it is ready."""
        if self.in_order:
            return True
        if self.ids_from_host or len(self._ends) > _MOST_SHARDS:
            return False
        gathered = {} if self._reach is None else self._reach.rows
        wanted = [name for name, field in self._fields.items() if field.row_bytes]
        return self.maker.form.index is None and all(name in gathered for name in wanted)

    def give_up(self) -> None:
        """Never be ready again."""
        self._hopeless = True

    def _located(self, addresses: ShardAddresses) -> _Reach:
        job, table, base = self.job, self.job.table, addresses.base
        table.ensure_open(np.arange(len(base)))
        # Of the rows, not of the shards: where only a part of a shard is kept, its first byte may be anywhere.
        begins = {name: base + table.begin[name] for name in self._fields}
        over_pcie = any(self.maker.gather.on_host(begin).any() for begin in begins.values())
        fields = {} if self.in_order else self._gathered(over_pcie=over_pcie)
        if not fields:
            return _Reach(addresses, over_pcie, None, {})
        order = None if self.ordered is None else self.ordered.order
        selected = None if self.ids_from_host else job.ids
        gather = PositionGather(
            self.maker.device,
            table.ends,
            over_pcie=over_pcie,
            recipe=order.permutation.recipe() if isinstance(order, FullOrder) else None,
            selection=None if selected is None else array_of(selected),
            side=self.maker.side if over_pcie else None,
        )
        if self._ids is None and self.ordered is not None and isinstance(order, BlockOrder):
            self._ids = BlockIds(self.maker.device, order, self.ordered.schedule)
        rows = {name: rows_in_shards(gather, begins[name], nbytes) for name, nbytes in fields.items()}
        return _Reach(addresses, over_pcie, gather, rows)

    def _gathered(self, *, over_pcie: bool) -> dict[str, int]:
        """Bytes of a row of each field that a kernel gathers; see `_Reach.rows`."""
        copied = over_pcie and copies_scattered_runs()
        found = {name: field.row_bytes for name, field in self._fields.items() if field.row_bytes}
        return {name: nbytes for name, nbytes in found.items() if not copied or nbytes < LONG_BYTES}

    def prepare(self) -> None:
        """Begin to make ready, in threads, what gathers once the GPU can address all shards over the link."""
        if self.in_order or not (fields := self._gathered(over_pcie=True)):
            return
        device, samples = self.maker.device, int(self._ends[-1])
        rows = frozenset(fields.values())
        prepare(("positions", device, rows, samples), partial(compile_gather, device, rows, samples))
        ordered = self.ordered
        if ordered is not None and isinstance(ordered.order, BlockOrder):
            prepare(("blocks", device), partial(BlockIds.rehearse, device, ordered.order, ordered.schedule))

    def shards(self, steps: range) -> IntArray:
        """The shards that some steps' batches may be made from, but for copies: those to be checked after the gather.

        To be asked before that is queued: copies may come into the shards' place meanwhile, and never leave it.
        """
        if self._reach is not None and self._reach.addresses.copies:
            return _NONE
        if not self.in_order:
            return np.arange(len(self.job.table.ends))
        schedule = self._evaluated.schedule
        found = self._shards_between(schedule.span(steps[0])[0], schedule.span(steps[-1])[1])
        return np.arange(found.start, found.stop)

    @property
    def in_order(self) -> bool:
        """True if positions are samples in the order of the shards."""
        ordered = self.ordered
        return ordered is not None and isinstance(ordered.order, SequentialOrder) and self.job.ids is None

    @property
    def _evaluated(self) -> Ordered:
        """The steps, where the GPU evaluates their order."""
        if self.ordered is None:
            raise RuntimeError("the samples of batches are for the host to say")
        return self.ordered

    @property
    def ids_from_host(self) -> bool:
        """True if the host computes the samples of batches."""
        return self.ordered is None

    def samples(self, steps: range) -> IntArray | None:
        """The samples of some steps, in order; None where the GPU computes them."""
        return self.job.samples_of(steps) if self.ids_from_host else None

    def prefers_copy_engine(self, samples: IntArray) -> bool:
        """Return whether these samples are faster read: the copy engine copies long runs of the shards."""
        return self.over_pcie and lie_in_runs(samples, self._sample_bytes)

    def _shards_between(self, start: int, stop: int) -> range:
        """The shards that hold samples `start` to `stop` - 1, in the order of the shards."""
        # By bisect: numpy's calls take longer than their work, and the training step waits meanwhile.
        return range(bisect_right(self._ends, start), bisect_right(self._ends, stop - 1) + 1)

    def gather(self, steps: range, samples: IntArray | None = None) -> list[Batch]:
        """Queue the gathering of some steps' batches on the current stream; `ready` must have returned True."""
        reach = self._reach
        if reach is None:
            raise RuntimeError("batches are made from positions before all shards are within reach")
        form, sizes = self.maker.form, self.sizes(steps)
        parts = self._positions(steps, sizes, reach, samples)

        def fill(name: str, outs: list[torch.Tensor]) -> None:
            for some, positions in parts:
                low = some.start - steps.start
                self._rows_of(reach, name, some, positions, outs[low : low + len(some)])

        batches = filled(form, sizes, self.maker.device, fill)
        if form.index is not None:
            for step, batch in zip(steps, batches, strict=True):
                positions = self.job.steps.positions(range(step, step + 1))
                batch[form.index] = torch.from_numpy(np.array(self.job.indices(positions)))
        reach.addresses.count(sum(sizes) * self._sample_bytes)
        return batches

    def sizes(self, steps: range) -> list[int]:
        """Number of samples of each of some steps."""
        if self.ordered is not None:
            return self.ordered.schedule.sizes(steps)
        return [self.job.steps.size(step) for step in steps]

    def _positions(
        self, steps: range, sizes: list[int], reach: _Reach, samples: IntArray | None
    ) -> list[tuple[range, PositionBatch]]:
        """The positions of some steps, in parts with batches of one size: all but an epoch's last have the same."""
        gather, of_order, ids = reach.gather, self._ids, None
        if gather is not None and samples is not None and len(samples):
            (ids,) = gather.on_side_stream(lambda: (self.maker.gather.upload(samples),))
        elif gather is not None and samples is None and of_order is not None:
            (ids,) = gather.on_side_stream(lambda: (of_order(steps),))
        if samples is not None or ids is not None:
            return in_parts(steps, sizes, ids)
        schedule = self._evaluated.schedule
        full = len(steps) - (schedule.position(steps.stop) - schedule.position(steps[-1]) != schedule.global_batch)
        return [
            (some, PositionBatch(schedule.span(some[0])[0], schedule.global_batch, len(some), schedule.size(some[0])))
            for some in (steps[:full], steps[full:])
            if some
        ]

    def _rows_of(
        self, reach: _Reach, name: str, steps: range, positions: PositionBatch, outs: list[torch.Tensor]
    ) -> None:
        if not self._fields[name].row_bytes or not positions.size:
            return
        if reach.gather is not None and name in reach.rows:
            reach.gather.rows(reach.rows[name], positions, outs)
            return
        # By one call for all steps: one for each would cost the host as much as the copies of a small batch take.
        targets = np.array([out.data_ptr() for out in outs], np.int64)
        if self.in_order:
            self.maker.gather.copies(*self._runs(reach.addresses.base, name, steps, targets))
            return
        table, base = self.job.table, reach.addresses.base
        rows, _ = table.extents(name, table.locate(self.job.samples_of(steps)))
        places = np.arange(positions.size) * self._fields[name].row_bytes
        self.maker.gather.copies(base[rows.file] + rows.offset, rows.nbytes, np.add.outer(targets, places).reshape(-1))

    def _runs(self, base: IntArray, name: str, steps: range, targets: IntArray) -> tuple[list[int], IntArray, IntArray]:
        """Of steps in the order of the shards the runs of each, one for a shard: addresses, bytes and targets."""
        table, row_bytes = self.job.table, self._fields[name].row_bytes
        addresses, nbytes, places = [], [], []
        for step, target in zip(steps, targets.tolist(), strict=True):
            start, stop = self._evaluated.schedule.span(step)
            for file in self._shards_between(start, stop):
                first = self._ends[file - 1] if file else 0
                low, high = max(first, start), min(self._ends[file], stop)
                if low < high:
                    addresses.append(int(base[file]) + int(table.begin[name][file]) + (low - first) * row_bytes)
                    nbytes.append((high - low) * row_bytes)
                    places.append(target + (low - start) * row_bytes)
        return addresses, np.array(nbytes, np.int64), np.array(places, np.int64)


def makes_plain_rows(maker: object) -> TypeGuard[DeviceAssembler]:
    """Return whether batches are made on a GPU, and only of rows that the kernel can gather."""
    if not isinstance(maker, DeviceAssembler) or maker.form.offsets:
        return False  # clips are planned by the host: the kernels know no more than an id for each sample
    codecs = maker.form.codecs.values()
    return all(codec.as_stored and codec.stored.row_bytes <= _MOST_ROW_BYTES for codec in codecs)


def filled(
    form: BatchForm, sizes: Sequence[int], device: torch.device, fill: Callable[[str, list[torch.Tensor]], None]
) -> list[Batch]:
    """Batches of rows of one shape, queued on the current stream: `fill` queues what fills a column's tensors."""
    batches = [form.new_batch() for _ in sizes]
    for name, codec in form.codecs.items():
        outs = batch_tensors(sizes, codec.stored, device)
        fill(name, outs)
        for batch, out in zip(batches, outs, strict=True):
            codec.put(batch, out)
    return batches


def in_parts(steps: range, sizes: Sequence[int], ids: torch.Tensor | None) -> list[tuple[range, PositionBatch]]:
    """Consecutive steps in parts with batches of one size.

    `ids` are those of all their rows, in order, on the device; None where the gather knows them.
    """
    parts, step, row = [], steps.start, 0
    for size, same in groupby(sizes):
        count = len(list(same))
        some = None if ids is None else ids[row : row + count * size]
        parts.append((range(step, step + count), PositionBatch(0, size, count, size, some)))
        step, row = step + count, row + count * size
    return parts


def evaluated_by_gpu(job: Job, *, with_index: bool) -> Ordered | None:
    """The steps of a job if the GPU can compute which samples their batches have."""
    steps, selected = job.steps, job.ids
    if not isinstance(steps, Ordered) or (selected is not None and len(selected) > _MOST_SELECTED):
        return None
    if steps.schedule.padding:  # whose last step is no range of positions
        return None
    if isinstance(steps.order, BlockOrder):
        # For blocks, planning costs nothing but the host's positions: where the host must know them anyway, its threads
        # compute them beside the consumer, which would have to do it itself in an epoch out of VRAM.
        possible = not with_index and BlockIds.possible(steps.order, steps.schedule)
    else:
        possible = isinstance(steps.order, FullOrder | SequentialOrder)
    return steps if possible else None
