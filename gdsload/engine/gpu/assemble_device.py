"""Batches on a GPU: gathered on a stream of the loader's, allocated there, and handed over to the consumer's.

The memory of a batch belongs to the loader's stream. Allocated on the consumer's, its gather would have to wait behind
whatever is queued there. So whoever hands a batch out calls `hand_over`: it tells the allocator that the consumer's
stream uses it too, or memory that the user has dropped would be gathered into while the consumer's kernels still read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.assemble import Batch, BatchForm, BatchMaker, joined, texts
from gdsload.engine.gpu.gather_device import DeviceGather
from gdsload.engine.read_planner import RowSlice
from gdsload.shards.format.schema import Field
from gdsload.shards.values import torch_dtype
from gdsload.system.streams import SideStream, current_stream, no_room, on, record, side_stream

__all__ = ["DeviceAssembler", "hand_over", "tensors_of"]

IntArray = NDArray[np.int64]
T = TypeVar("T")

_EVENTS = 8
"""Events within the bytes that may be pending: one for each batch would take longer than handing it over."""


class DeviceAssembler(BatchMaker):
    """Builds batches on a CUDA device.

    Args:
        fields: the fields that are wanted.
        device: the device.
        form: how ragged fields are handed out.
        on_host: which of some addresses are of host memory; the others are the device's.
        pending_bytes: bytes of batches that were dropped while the GPU may still be reading them.
        budget: what the user may lower, for the error when memory runs out.
    """

    takes_processor = False

    def __init__(
        self,
        fields: Mapping[str, Field],
        device: torch.device,
        form: BatchForm,
        *,
        on_host: Callable[[IntArray], NDArray[np.bool_]],
        pending_bytes: int = 2**28,
        budget: str = "",
    ) -> None:
        super().__init__(fields, form)
        self.device, self.budget = device, budget
        self.stream, self.aside = side_stream(device), SideStream(device)
        self.gather = DeviceGather(device, on_host)
        self._hand_over = ConsumerThrottle(device, pending_bytes)

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """See `BatchMaker.tensor`: on the device, ordered on the loader's stream."""
        return self.gather.upload(array)

    def follow(self) -> None:
        """See `BatchMaker.follow`."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def hand_over(self, batch: Any) -> Any:
        """See `BatchMaker.hand_over`: to the stream that is current now."""
        return self._hand_over(batch)

    def assemble(self, slices: Sequence[RowSlice], sizes: Sequence[int]) -> list[Batch]:
        """See `BatchMaker.assemble`. The batches are complete when it returns: the gather has ended.

        Raises:
            BudgetError: if the device has no memory left.
        """
        edges = list(pairwise(accumulate(sizes, initial=0)))
        batches = self.build(lambda: self._gather(slices, edges))
        self.add_index(batches, slices, edges)
        return batches

    def build(self, make: Callable[[], T]) -> T:
        """See `BatchMaker.build`: on the loader's stream."""
        try:
            with on(self.stream):
                try:
                    return make()
                finally:
                    # Nothing of the arena may go back before, also if something went wrong half-way.
                    record(self.stream).synchronize()
        except torch.OutOfMemoryError:
            raise no_room(self.device, f"a group of batches ({self.budget})") from None

    def _gather(self, slices: Sequence[RowSlice], edges: Sequence[tuple[int, int]]) -> list[Batch]:
        batches: list[Batch] = [{} for _ in edges]
        begins = np.unique(np.concatenate([np.zeros(0, np.int64), *(part.rows.pending.begins for part in slices)]))
        shared: list[list[tuple[IntArray, torch.Tensor]]] = [[] for _ in edges]
        for name, field in self.fields.items():
            addresses, lengths = joined(name, field.ragged, slices)
            if lengths is None:
                for batch, (low, high) in zip(batches, edges, strict=True):
                    batch[name] = self.empty(high - low, field)
                outs, sizes = [batch[name] for batch in batches], [high - low for low, high in edges]
                self.gather.batches(addresses, field.row_bytes, outs, sizes, begins)
                continue
            for batch, (low, high), known in zip(batches, edges, shared, strict=True):
                rows = lengths[low:high]
                values = self.empty(int(rows.sum()), field)
                self.gather.pieces(addresses[low:high], rows, field.row_bytes, values)
                if field.kind in ("str", "bytes"):
                    batch[name] = texts(name, field, values.cpu().numpy().tobytes(), rows)
                else:
                    batch[name] = self.ragged(name, values, rows, known)
        return batches

    def empty(self, rows: int, field: Field) -> torch.Tensor:
        """A tensor for so many rows of a field, on the current stream."""
        return torch.empty((rows, *field.row_shape), dtype=torch_dtype(field.dtype), device=self.device)


class ConsumerThrottle:
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
        self._spare: list[torch.cuda.Event] = []
        self._bytes = self._dropped = 0
        self._lock = threading.RLock()  # epochs of one loader may be gone through by several threads

    def __call__(self, batch: Any) -> Any:
        """Hand a batch over to the stream that is current now."""
        # Each batch costs this, also where a training step has nothing but launches to do: no object is made anew.
        past: list[torch.cuda.Event] = []
        with self._lock:
            stream = current_stream(self.device)
            if self._dropped * _EVENTS >= max(self.pending_bytes, 1):
                # The last batch has been used as far as it will be, as a rule: what reads it has been queued.
                event = self._spare.pop() if self._spare else torch.cuda.Event(blocking=True)
                event.record(stream)
                self._pending.append((event, self._dropped))
                self._bytes, self._dropped = self._bytes + self._dropped, 0
            while self._pending and self._bytes + self._dropped > self.pending_bytes:
                event, nbytes = self._pending.popleft()
                past.append(event)
                self._bytes -= nbytes
            self._dropped += hand_over(batch, stream)
        for event in past:  # not with the lock: what it waits for may be for another thread to queue
            event.synchronize()
            self._spare.append(event)
        return batch


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The plain tensors in a batch, a field of one, or what a transform made of it: any nest of containers."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            jagged: Any = value
            yield from (jagged.values(), jagged.offsets())
        else:
            yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_of(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_of(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))


def hand_over(batch: Any, stream: torch.cuda.Stream) -> int:
    """Let a stream use a finished batch, and of other devices the stream that is current there; returns its bytes."""
    nbytes, index = 0, stream.device_index
    for tensor in tensors_of(batch):
        if tensor.is_cuda:
            here = tensor.get_device() == index
            tensor.record_stream(stream if here else torch.cuda.current_stream(tensor.device))
        nbytes += tensor.nbytes
    return nbytes
