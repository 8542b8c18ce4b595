"""What a loader opens for its first batch: files, the backend, and what makes batches."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gdsload.backends.base import Backend
from gdsload.backends.files import ShardFiles
from gdsload.backends.select import Chosen, Wishes, choose, default_register_bytes
from gdsload.engine.assemble import Assembler, Batch, BatchForm, BatchMaker
from gdsload.engine.assemble_device import DeviceAssembler, hand_over, tensors_of
from gdsload.engine.pipeline import Limits
from gdsload.engine.table import SampleTable
from gdsload.memory import BatchPool
from gdsload.options import LoaderOptions
from gdsload.selection import Selected
from gdsload.streams import record
from gdsload.units import format_bytes, parse_bytes

__all__ = ["HandOver", "Parts", "moved", "open_parts", "wishes_of"]

_log = logging.getLogger("gdsload")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Parts:
    """Everything that epochs share.

    Attributes:
        table: the samples.
        chosen: the backend, and why.
        maker: what makes batches.
    """

    table: SampleTable
    chosen: Chosen
    maker: BatchMaker

    @property
    def backend(self) -> Backend:
        """The backend."""
        return self.chosen.backend


def wishes_of(options: LoaderOptions) -> Wishes:
    """What the user said of backends."""
    register = options.register_bytes
    return Wishes(
        options.backend,
        options.gds_engine,
        options.gds_compat,
        parse_bytes(options.pinned_bytes, "pinned_bytes"),
        default_register_bytes() if register is None else parse_bytes(register, "register_bytes"),
    )


def open_parts(
    selected: Selected, fields: Sequence[str], options: LoaderOptions, limits: Limits, device: torch.device
) -> Parts:
    """Open files and backend.

    Raises:
        BackendUnavailableError: if the backend that was asked for cannot be used.
    """
    schema = selected.datasets[0].schema
    sources = [source for dataset in selected.datasets for source in dataset.sources]
    files = ShardFiles(sources, schema, mapped=selected.mapped(options.mmap))
    table = SampleTable(files, np.concatenate([dataset.counts for dataset in selected.datasets]))
    wishes = wishes_of(options)
    chosen = choose(wishes, files, device)
    wanted = {name: schema[name] for name in fields}
    form = BatchForm(options.ragged, options.padding_value, "index" if options.with_index else None)
    if chosen.name == "host":
        return Parts(table, chosen, Assembler(wanted, BatchPool(keep_bytes=limits.pool_bytes()), form))
    budget = (
        f"the loader's budget is {format_bytes(limits.prefetch_bytes)} of batches ahead (prefetch_bytes) and "
        f"{format_bytes(limits.arena_bytes)} of slots (arena_bytes)"
    )
    _log.info(
        "%s on %s: %s; pinned memory %s, registered files up to %s",
        chosen.name, device, budget, format_bytes(wishes.pinned_bytes), format_bytes(wishes.register_bytes),
    )  # fmt: skip
    return Parts(table, chosen, DeviceAssembler(wanted, device, form, on_host=files.in_mappings, budget=budget))


class HandOver:
    """Hands batches to the consumer's stream, and keeps it from running too far ahead of the GPU.

    Memory of a batch that was dropped cannot be used again before the kernels that were queued to read it have run.
    A consumer that queues without ever waiting would make the loader allocate ever more.

    Args:
        device: the device of the batches.
        pending_bytes: bytes of dropped batches that the GPU may still be reading.
    """

    def __init__(self, device: torch.device, pending_bytes: int) -> None:
        self.device, self.pending_bytes = device, pending_bytes
        self._pending: deque[tuple[torch.cuda.Event, int]] = deque()
        self._bytes = self._last = 0

    def __call__(self, batch: Batch) -> Batch:
        """Hand a batch over to the stream that is current now."""
        if self._last:
            # The last batch has been used as far as it will be, as a rule: what reads it has been queued.
            self._pending.append((record(torch.cuda.current_stream(self.device)), self._last))
            self._bytes += self._last
        while self._pending and (self._bytes > self.pending_bytes or self._pending[0][0].query()):
            event, nbytes = self._pending.popleft()
            event.synchronize()
            self._bytes -= nbytes
        hand_over(batch)
        self._last = sum(tensor.nbytes for tensor in tensors_of(batch))
        return batch


def moved(value: Any, device: torch.device) -> Any:
    """A field of a host batch on the device; texts stay."""
    if isinstance(value, tuple):
        return tuple(part.to(device) for part in value)
    return value if isinstance(value, list) else value.to(device)
