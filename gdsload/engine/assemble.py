"""Batches from loaded rows: one gather per field and group, then tensors that own their part of the memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.batch_source import Ready, StepTransform, identity, transformed
from gdsload.engine.codecs import FieldCodec
from gdsload.engine.gpu.device_queue import DeviceQueue
from gdsload.engine.gpu.plain_tensors import each_tensor
from gdsload.engine.group_lengths import GroupLengths, padded_pieces
from gdsload.engine.images.decode import HostImages, ImageBatch
from gdsload.engine.images.kept import Keep, KeptImages, as_kept
from gdsload.engine.loaded_rows import Slices
from gdsload.shards.format.schema import Field
from gdsload.shards.gather_host import gather_pieces, gather_rows
from gdsload.shards.values import numpy_dtype, torch_dtype
from gdsload.system.arrays import IntArray
from gdsload.system.memory import BatchPool, address_of
from gdsload.transforms import DecodeImage

Batch = dict[str, Any]
Located = list[tuple[FieldCodec, IntArray, GroupLengths | None]]
"""Of each column the codec, the address of each sample's rows, and how many they are if the field is ragged."""

_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True, slots=True)
class BatchForm:
    """The form of a batch: the codec of each column, the fields, and the decoding of images.

    Attributes:
        index: the key under which a batch carries the indices of its samples; None: it does not.
        fields: the fields in the order of a batch; none: in that of the columns.
    """

    codecs: Mapping[str, FieldCodec]
    index: str | None = None
    fields: tuple[str, ...] = ()
    decode: Mapping[str, DecodeImage] = dataclasses.field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The stored columns that batches are made of."""
        return tuple(self.codecs)

    @property
    def offsets(self) -> dict[str, Sequence[int]]:
        """For clips, the places of each column's samples, counted from the clip's first; empty for single samples."""
        found = {name: codec.offsets for name, codec in self.codecs.items()}
        return found if any(offsets != range(1) for offsets in found.values()) else {}

    @property
    def on_host(self) -> frozenset[str]:
        """The columns whose bytes are decoded in memory of the host."""
        return frozenset(name for name, codec in self.codecs.items() if codec.wants == "host")

    def new_batch(self) -> Batch:
        """A batch for codecs to put fields into, whose places they have already."""
        return dict.fromkeys(self.fields)


class BatchMaker:
    """The base of the assemblers of all devices."""

    takes_processor = True
    """True if gathering keeps a processor busy; if not, a thread that gathers waits for a device."""
    images: HostImages | None = None
    """Decodes encoded images; None: they stay as they are."""
    kept: KeptImages | None = None
    """Keeps decoded images; None: none are kept."""
    queue: DeviceQueue | None = None
    """The device whose stream batches are handed over to; None: they are in CPU memory, or wherever a transform put
    them."""
    onto: DeviceQueue | None = None
    """The same, if batches are made there; None: in CPU memory."""

    def __init__(self, form: BatchForm) -> None:
        self.form = form

    def prepare(self) -> None:
        """Begin to make ready, in threads, what takes time and can be done without until then; again: nothing."""

    def assemble(self, slices: Slices, sizes: Sequence[int]) -> list[Batch]:
        """Gather batches of so many samples each, whose bytes have landed, and stay until it returns."""
        raise NotImplementedError

    def decode(self, batches: Sequence[ImageBatch], stopped: Callable[[], bool]) -> None:
        """Decode the images of batches, in place; they are complete when it returns. See `HostImages`."""
        if (decode := self.kept or self.images) is not None:
            decode(batches, stopped)

    def making(self) -> AbstractContextManager[object]:
        """The context in which batches are made; see `DeviceQueue.making`."""
        return nullcontext() if self.onto is None else self.onto.making()

    def follow(self) -> None:
        """Order what is built from now on after what the calling thread has queued."""
        if self.queue is not None:
            self.queue.follow()

    def transformed(
        self,
        transform: StepTransform,
        ready: Ready,
        steps: range,
        stopped: Callable[[], bool],
        after: torch.cuda.Event | None = None,
    ) -> Ready:
        """See `batch_source.transformed`: it begins after an event on the device, and is complete when it returns."""
        with nullcontext() if self.queue is None else self.queue.transforming(ready.batches, after):
            return transformed(transform, ready.batches, ready.sizes, steps, stopped)

    def hand_over(self, batches: Sequence[Any]) -> Callable[[Any], Any]:
        """See `BatchSource.hand_over`: to the stream that is current at each call."""
        return identity if self.queue is None else self.queue.hand_over(batches)

    def close(self) -> None:
        """Release kept memory, and end threads."""
        if (images := self.kept or self.images) is not None:
            images.close()

    def tensors(self, array: NDArray[Any], counts: Sequence[int]) -> Sequence[torch.Tensor]:
        """The parts of an array, of so many elements each, as tensors beside the batches' values."""
        if self.onto is not None:  # none a view for autograd: others' gradients may need what one is changed in
            return [part.data for part in self.onto.copied(torch.from_numpy(array)).split_with_sizes(list(counts))]
        edges = pairwise(accumulate(counts, initial=0))
        return [torch.from_numpy(array[low:high]) for low, high in edges]  # each with its own storage

    def located(self, slices: Slices, sizes: Sequence[int]) -> Located:
        """The columns of batches of so many samples; equal lengths are shared, where the form of tensors lets them."""
        found: Located = []
        shared: list[GroupLengths] = []
        for name, codec in self.form.codecs.items():
            addresses, lengths = _joined(name, codec.stored, slices)
            group = None
            if lengths is not None:
                others = [] if codec.own_lengths else shared
                group = next((one for one in others if np.array_equal(one.lengths, lengths)), None)
                if group is None:
                    group = GroupLengths(lengths, sizes, self.tensors)
                    others.append(group)
            found.append((codec, addresses, group))
        return found

    def add_index(self, batches: Sequence[Batch], slices: Slices, sizes: Sequence[int]) -> None:
        """Add to each batch the user's indices of its samples, if that is wanted."""
        if self.form.index is None:
            return
        index = slices.arranged([part.rows.index[part.chosen] for part in slices.parts])
        for batch, (low, high) in zip(batches, pairwise(accumulate(sizes, initial=0)), strict=True):
            batch[self.form.index] = torch.from_numpy(index[low:high].copy())


class Assembler(BatchMaker):
    """Builds batches in CPU memory, and copies them to a device if there is one to make them on.

    Args:
        pool: where batch memory comes from; pinned, if it is copied to a device.
        keep: how many of the images that it decodes it keeps; None: none.
        queue: the device that they are handed over on; None: none.
        copies: whether they are copied there; else a transform does it.
    """

    def __init__(
        self,
        form: BatchForm,
        pool: BatchPool,
        keep: Keep | None = None,
        queue: DeviceQueue | None = None,
        *,
        copies: bool = True,
    ) -> None:
        super().__init__(form)
        self.pool, self.queue, self.onto = pool, queue, queue if copies else None
        if form.decode:
            decode = form.decode if keep is None else as_kept(form.decode)
            self.images = HostImages(decode, lambda nbytes: pool.lease(nbytes).data)
            if keep is not None:
                self.kept = KeptImages(form.decode, self.images, keep)

    def assemble(self, slices: Slices, sizes: Sequence[int]) -> list[Batch]:
        """See `BatchMaker.assemble`."""
        batches, columns = [self.form.new_batch() for _ in sizes], self.located(slices, sizes)
        rows = [
            [size * len(codec.offsets) for size in sizes] if group is None else codec.rows(group)
            for codec, _, group in columns
        ]
        nbytes = [sum(some) * codec.stored.row_bytes for some, (codec, *_) in zip(rows, columns, strict=True)]
        *begins, total = accumulate((-(-one // _ALIGNMENT) * _ALIGNMENT for one in nbytes), initial=0)
        lease = self.pool.lease(total)
        base, memory = address_of(lease), lease.data
        with self.making():  # the lease is held until this ends: it is copied from
            for (codec, addresses, group), some, begin in zip(columns, rows, begins, strict=True):
                self._gather(codec, addresses, group, sum(some), base + begin)
                tensors = _tensors(memory, begin, some, codec)
                for number, (batch, values) in enumerate(zip(batches, tensors, strict=True)):
                    wanted = values if self.onto is None or codec.wants == "host" else self.onto.copied(values)
                    codec.put(batch, wanted, group, number)
        self.add_index(batches, slices, sizes)
        return batches

    def decode(self, batches: Sequence[ImageBatch], stopped: Callable[[], bool]) -> None:
        """See `BatchMaker.decode`."""
        super().decode(batches, stopped)
        if (onto := self.onto) is not None:
            images = [{name: one.batch[name] for name in self.form.decode if name in one.batch} for one in batches]
            with self.making():
                for one, made in zip(batches, images, strict=True):
                    one.batch.update(each_tensor(made, onto.copied))

    def close(self) -> None:
        """See `BatchMaker.close`."""
        super().close()
        self.pool.clear()

    def _gather(self, codec: FieldCodec, addresses: IntArray, group: GroupLengths | None, rows: int, out: int) -> None:
        """Copy so many rows of a column of a group's samples to an address."""
        field = codec.stored
        if group is None:
            gather_rows(addresses, bytes_at_each(addresses, rows, field), out)
            return
        lengths = group.lengths
        if codec.padding is not None:
            fill = padding_rows(codec.padding, max(group.longest, default=0) * field.row_bytes)
            addresses, lengths = padded_pieces(addresses, group, address_of(fill))
        gather_pieces(addresses, lengths, field.row_bytes, out)


def padding_rows(element: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    """So many bytes of one element again and again, and at least one element."""
    return np.tile(element, max(nbytes // len(element), 1))


def bytes_at_each(addresses: IntArray, rows: int, field: Field) -> int:
    """Bytes of a field at each address: a row's, or those of all rows of a clip that is in one place."""
    return rows * field.row_bytes // max(len(addresses), 1)


def _joined(name: str, field: Field, slices: Slices) -> tuple[IntArray, IntArray | None]:
    """Addresses, and rows if the field is ragged, of a field of the samples of all slices."""
    parts = [(part.rows.fields[name], part.chosen) for part in slices.parts]
    each = [rows.addresses[chosen] for rows, chosen in parts]
    if len({one.ndim for one in each}) > 1:  # clips: some as one row each, and some with the rows of all samples
        within = np.arange(next(one.shape[1] for one in each if one.ndim > 1)) * field.row_bytes
        each = [one if one.ndim > 1 else one[:, None] + within for one in each]
    addresses = slices.arranged(each).reshape(-1)
    if not field.ragged:
        return addresses, None
    lengths = [rows.lengths[chosen] for rows, chosen in parts if rows.lengths is not None]
    return addresses, slices.arranged(lengths)


def _tensors(memory: memoryview, begin: int, rows: Sequence[int], codec: FieldCodec) -> list[torch.Tensor]:
    """Tensors of so many rows of a column each, which follow each other in `memory`: it lives as long as they do.

    Where numpy has the element type, each has its part of the memory alone as its storage: saving a batch does not save
    its neighbours.
    """
    field, each = codec.stored, len(codec.offsets)
    dtype, known, every = torch_dtype(field.dtype), numpy_dtype(field.dtype), sum(rows)
    whole = None
    if known is not None and every * field.row_bytes:  # of clips in their shape
        samples = (every,) if each == 1 else (every // each, each)
        whole = np.ndarray((*samples, *field.row_shape), known, memory, begin)
    found = []
    for low, high in pairwise(accumulate(rows, initial=0)):
        if whole is not None and low < high:
            found.append(torch.from_numpy(whole[low // each : high // each]))
            continue
        shape, count = (high - low, *field.row_shape), (high - low) * field.row_bytes // field.dtype.itemsize
        if not count:
            found.append(torch.empty(shape, dtype=dtype, device="cpu"))
            continue
        # torch's `view` releases the interpreter lock, and another thread may keep it for a while.
        offset = begin + low * field.row_bytes
        found.append(torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape))
    return found
