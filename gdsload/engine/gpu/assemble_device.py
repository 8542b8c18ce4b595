"""Batches on a GPU: allocated and gathered on the loader's stream, and handed over to the consumer's.

The memory of a batch belongs to the loader's stream. If it belonged to the consumer's, the gather would have to wait
for all that is queued there. So `hand_over` is called for all batches: it records in the allocator that the consumer's
stream uses them, too. Otherwise memory that the user has dropped would be gathered into while the consumer's kernels
still read it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.assemble import Batch, BatchForm, BatchMaker, bytes_at_each, joined, padding_rows
from gdsload.engine.batch_source import Ready, StepTransform
from gdsload.engine.codecs import FieldCodec
from gdsload.engine.gpu.batch_memory import batch_tensors
from gdsload.engine.gpu.decode_images import DeviceImages
from gdsload.engine.gpu.gather_device import DeviceGather
from gdsload.engine.gpu.jpeg_decoders import best_jpeg_decoder
from gdsload.engine.gpu.kept_images import DeviceKeptImages
from gdsload.engine.gpu.plain_tensors import tensors_of
from gdsload.engine.group_lengths import GroupLengths, padded_pieces
from gdsload.engine.images.kept import Keep, as_kept
from gdsload.engine.read_planner import Slices
from gdsload.shards.format.schema import Field
from gdsload.shards.gather_host import gather_pieces
from gdsload.shards.values import torch_dtype
from gdsload.system.arrays import IntArray
from gdsload.system.streams import SideStream, current_stream, on, record, room_for, side_stream

__all__ = ["DeviceAssembler", "GroupHandOver", "hand_over", "recordable"]

_EVENTS = 8
"""Events within the bytes that may be pending: one for each batch would take longer than its hand-over."""


class DeviceAssembler(BatchMaker):
    """Builds batches on a CUDA device.

    Args:
        form: how a batch looks.
        device: the device.
        on_host: which of some addresses are of host memory; the others are the device's.
        pending_bytes: bytes of batches that were dropped while the GPU may still be reading them.
        budget: what the user may lower, for the error when memory runs out.
        keep: how many of the images that it decodes it keeps; None: none.
    """

    takes_processor = False

    def __init__(
        self,
        form: BatchForm,
        device: torch.device,
        *,
        on_host: Callable[[IntArray], NDArray[np.bool_]],
        pending_bytes: int = 2**28,
        budget: str = "",
        keep: Keep | None = None,
    ) -> None:
        super().__init__(form)
        self.device, self.budget = device, budget
        self.stream, self.aside = side_stream(device), SideStream(device)
        self._transforms = side_stream(device)  # of their own: bytes arrive while batches are transformed
        self.gather = DeviceGather(device, on_host)
        self._throttle = ConsumerThrottle(device, pending_bytes)
        if form.decode:
            decode = form.decode if keep is None else as_kept(form.decode)
            self.images = DeviceImages(decode, device, best_jpeg_decoder(device))
            if keep is not None:
                self.kept = DeviceKeptImages(form.decode, self.images, keep)

    def tensors(self, array: NDArray[Any], counts: Sequence[int]) -> Sequence[torch.Tensor]:
        """See `BatchMaker.tensors`: parts of one tensor on the device, ordered on the loader's stream.

        None is a view for autograd: a change of one in place would be one of those that others' gradients need.
        """
        return [part.data for part in self.gather.upload(array).split_with_sizes(list(counts))]

    def follow(self) -> None:
        """See `BatchMaker.follow`."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def hand_over(self, batches: Sequence[Any]) -> Callable[[Any], Any]:
        """See `BatchMaker.hand_over`: to the stream that is current at each call."""
        return GroupHandOver(self._throttle, batches)

    def assemble(self, slices: Slices, sizes: Sequence[int]) -> list[Batch]:
        """See `BatchMaker.assemble`. The batches are complete when it returns: the gather has ended.

        Raises:
            BudgetError: if the device has no memory left.
        """
        batches = self.complete(lambda: self._gather(slices, sizes))
        self.add_index(batches, slices, list(pairwise(accumulate(sizes, initial=0))))
        return batches

    def complete(self, gather: Callable[[], list[Batch]]) -> list[Batch]:
        """What is gathered on the loader's stream, which has ended when it returns, or raises.

        Raises:
            BudgetError: if the device has no memory left.
        """
        with room_for(f"a group of batches ({self.budget})", self.device), on(self.stream):
            try:
                return gather()
            finally:
                # No arena memory may be released before, even after an error.
                record(self.stream).synchronize()

    def transformed(
        self,
        transform: StepTransform,
        ready: Ready,
        steps: range,
        stopped: Callable[[], bool],
        after: torch.cuda.Event | None = None,
    ) -> Ready:
        """See `BatchMaker.transformed`: on its own stream, after an event."""
        stream = self._transforms
        if after is not None:
            stream.wait_event(after)
        # Their memory belongs to the loader's stream, and is freed while this one runs.
        hand_over(ready.batches, stream)
        with on(stream):
            try:
                return super().transformed(transform, ready, steps, stopped)
            finally:
                record(stream).synchronize()

    def _gather(self, slices: Slices, sizes: Sequence[int]) -> list[Batch]:
        batches = [self.form.new_batch() for _ in sizes]
        begins = np.unique(
            np.concatenate([np.zeros(0, np.int64), *(part.rows.pending.begins for part in slices.parts)])
        )
        codecs = self.form.codecs
        sources = {name: joined(name, codec.stored, slices) for name, codec in codecs.items()}
        groups = self.group(sources, sizes)
        for name, codec in codecs.items():
            addresses, lengths = sources[name]
            if lengths is None:
                rows = [size * len(codec.offsets) for size in sizes]
                outs: Sequence[torch.Tensor] = batch_tensors(rows, codec.stored, self.device)
                nbytes = bytes_at_each(addresses, sum(rows), codec.stored)
                each = rows if nbytes == codec.stored.row_bytes else sizes
                self.gather.batches(addresses, nbytes, outs, each, begins)
            else:
                outs = self._ragged(codec, addresses, groups[name], begins)
            for number, (batch, out) in enumerate(zip(batches, outs, strict=True)):
                codec.put(batch, out, None if lengths is None else groups[name].of(number))
        return batches

    def _ragged(
        self, codec: FieldCodec, addresses: IntArray, group: GroupLengths, begins: IntArray
    ) -> Sequence[torch.Tensor]:
        """The stored rows of each batch's samples, concatenated, where the codec wants them."""
        field, counts, gather = codec.stored, codec.rows(group), self.gather
        if codec.wants == "host":
            whole = self._on_host(field, addresses, group.lengths, begins, pinned=codec.name in self.form.decode)
            return whole.split_with_sizes(counts)
        outs, over_pcie = batch_tensors(counts, field, self.device), gather.over_pcie(addresses)
        if codec.padding is None:
            gather.pieces(addresses, group.lengths, field.row_bytes, outs, group.sizes, begins, over_pcie=over_pcie)
            return outs
        fill = gather.upload(padding_rows(codec.padding, max(group.longest, default=0) * field.row_bytes))
        pieces, lengths = padded_pieces(addresses, group, fill.data_ptr())
        sizes, begins = [2 * size for size in group.sizes], np.append(begins, fill.data_ptr())
        gather.pieces(pieces, lengths, field.row_bytes, outs, sizes, begins, over_pcie=over_pcie)
        return outs

    def _on_host(
        self, field: Field, addresses: IntArray, lengths: IntArray, begins: IntArray, *, pinned: bool
    ) -> torch.Tensor:
        """The stored rows of a group's samples in memory of the host, read from there if they are there already.

        A decoder of images takes half as long again for what is not pinned.
        """
        count, there = int(lengths.sum()), (lengths > 0) & ~self.gather.on_host(addresses)
        if there.any():
            # Those alone: the GPU cannot read what lies in a mapping that is not registered.
            (values,) = batch_tensors([int(lengths[there].sum())], field, self.device)
            self.gather.pieces(
                addresses[there], lengths[there], field.row_bytes, [values], [int(np.count_nonzero(there))], begins
            )
            copied = values.cpu()
            if there.all():
                return copied
            ends = np.cumsum(lengths[there]) * field.row_bytes
            addresses = addresses.copy()
            addresses[there] = copied.data_ptr() + ends - lengths[there] * field.row_bytes
        memory = torch.empty(count * field.row_bytes, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        gather_pieces(addresses, lengths, field.row_bytes, memory.data_ptr())
        return memory.view(torch_dtype(field.dtype)).view(count, *field.row_shape)


class ConsumerThrottle:
    """Keeps the consumer's stream from running too far ahead of the GPU.

    The memory of a dropped batch cannot be used again before the kernels that were queued to read it have run. A
    consumer that queues without ever waiting would make the loader allocate ever more.

    Args:
        device: the device of the batches.
        pending_bytes: bytes of dropped batches that the GPU may still be reading.
    """

    def __init__(self, device: torch.device, pending_bytes: int) -> None:
        self.device, self.pending_bytes = device, pending_bytes
        self._pending: deque[tuple[torch.cuda.Event, int]] = deque()
        self._spare: list[torch.cuda.Event] = []
        self._bytes = self._dropped = 0
        self._lock = threading.RLock()  # several threads may iterate over epochs of one loader

    def __call__(self, stream: torch.cuda.Stream, nbytes: int) -> None:
        """Note that a stream gets a batch of so many bytes, and wait while too much is pending."""
        # Each batch costs this, even where a training step is bound by launches: no object is created.
        past: list[torch.cuda.Event] = []
        with self._lock:
            if self._dropped * _EVENTS >= max(self.pending_bytes, 1):
                # As a rule the last batch is not used any more: all that reads it has been queued.
                event = self._spare.pop() if self._spare else torch.cuda.Event(blocking=True)
                event.record(stream)
                self._pending.append((event, self._dropped))
                self._bytes, self._dropped = self._bytes + self._dropped, 0
            while self._pending and self._bytes + self._dropped > self.pending_bytes:
                event, pending = self._pending.popleft()
                past.append(event)
                self._bytes -= pending
            self._dropped += nbytes
        for event in past:  # without the lock: another thread may have to queue what it waits for
            event.synchronize()
            self._spare.append(event)


class GroupHandOver:
    """Hands the batches of a group over, one at a time and in order.

    At the first, the memory of all is recorded for its stream: the allocator is asked once for what they share.

    Args:
        throttle: what keeps the consumer's stream from running too far ahead.
        batches: they are held until the first call.
    """

    def __init__(self, throttle: ConsumerThrottle, batches: Sequence[Any]) -> None:
        self._throttle, self._ahead = throttle, list(batches)
        self._nbytes = deque[int]()
        self._recorded_for: int | None = None

    def __call__(self, batch: Any) -> Any:
        """Hand the next batch over to the stream that is current now."""
        stream = current_stream(self._throttle.device)
        if self._ahead:
            known, ahead = _Recorded(), self._ahead
            self._nbytes.extend([hand_over(one, stream, known) for one in ahead])
            # Of another device the current stream may be another one each time.
            self._ahead, self._recorded_for = [], None if known.elsewhere else stream.cuda_stream
        elif stream.cuda_stream != self._recorded_for:
            hand_over(batch, stream)
        self._throttle(stream, self._nbytes.popleft())
        return batch


@dataclass(slots=True)
class _Recorded:
    """For which memory of a group a stream has been recorded.

    Attributes:
        begins: addresses of what has been recorded, and is still held.
        elsewhere: whether some is another device's.
    """

    begins: set[int] = field(default_factory=set)
    elsewhere: bool = False


def hand_over(batch: Any, stream: torch.cuda.Stream, known: _Recorded | None = None) -> int:
    """Let a stream use a finished batch; for tensors of other devices, the stream current there. Returns its bytes.

    Args:
        batch: the batch.
        stream: the stream.
        known: what is not recorded again; more is added.
    """
    nbytes, index, begin, end = 0, stream.device_index, 0, 0
    known = _Recorded() if known is None else known
    for tensor in tensors_of(batch):
        nbytes += tensor.nbytes
        # The allocator notes it for memory, not for tensors, and packed fields and small batches share some.
        if tensor.is_cuda and not begin <= tensor.data_ptr() < end:
            memory = tensor.untyped_storage()
            begin, end = memory.data_ptr(), memory.data_ptr() + memory.nbytes()
            if begin not in known.begins:
                known.begins.add(begin)
                here = tensor.get_device() == index
                known.elsewhere = known.elsewhere or not here
                recordable(tensor).record_stream(stream if here else torch.cuda.current_stream(tensor.device))
    return nbytes


def recordable(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in the same memory for which torch records a stream.

    Of a conjugate or negative view, whose numbers are not those in memory, it would record it for a copy, and fail.
    """
    if not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
