"""Batches on a GPU: allocated and gathered on the loader's stream, and handed over to the consumer's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.assemble import Batch, BatchForm, BatchMaker, bytes_at_each, padding_rows
from gdsload.engine.codecs import FieldCodec
from gdsload.engine.gpu.batch_memory import batch_tensors
from gdsload.engine.gpu.decode_images import DeviceImages
from gdsload.engine.gpu.device_queue import DeviceQueue
from gdsload.engine.gpu.jpeg_decoders import best_jpeg_decoder
from gdsload.engine.gpu.kept_images import DeviceKeptImages
from gdsload.engine.group_lengths import GroupLengths, padded_pieces
from gdsload.engine.images.kept import Keep, as_kept
from gdsload.engine.loaded_rows import Slices
from gdsload.kernels.gather_device import DeviceGather
from gdsload.kernels.gather_positions import Tensors
from gdsload.shards.format.schema import Field
from gdsload.shards.gather_host import gather_pieces
from gdsload.shards.values import torch_dtype
from gdsload.system.arrays import IntArray, unique
from gdsload.system.streams import current_stream, on, record, side_stream

_IMAGE_BYTES = 2**20
"""Encoded values up to this length are copied many by one call. While a dozen threads read, 768 images of 56 kB took 30
to 40 ms when each was copied by a call, and 14 ms by one call for all (an H100's host, 16 processors)."""


class DeviceAssembler(BatchMaker):
    """Builds batches on a CUDA device; `on_host` is a mask of the addresses that are of host memory."""

    takes_processor = False

    def __init__(
        self,
        form: BatchForm,
        queue: DeviceQueue,
        *,
        on_host: Callable[[IntArray], NDArray[np.bool_]],
        keep: Keep | None = None,
    ) -> None:
        super().__init__(form)
        self.queue = self.onto = queue
        self.device = device = queue.device
        self.stream, self._side = queue.stream, side_stream(device)
        self.gather = DeviceGather(device, on_host, prepared=False)
        if form.decode:
            decode = form.decode if keep is None else as_kept(form.decode)
            self.images = DeviceImages(decode, device, partial(best_jpeg_decoder, device))
            if keep is not None:
                self.kept = DeviceKeptImages(form.decode, self.images, keep)

    def prepare(self) -> None:
        """See `BatchMaker.prepare`: kernels are compiled."""
        fields = [codec.stored for codec in self.form.codecs.values() if codec.wants != "host"]
        rows = [field.row_bytes for field in fields if not field.ragged]
        self.gather.prepare(rows, pieces=len(rows) < len(fields))

    def side(self, make: Callable[[], Tensors]) -> Tensors:
        """Queue the making of tensors that bytes cannot be fetched without, such as ids, on a stream for these alone.

        The current stream waits for them, and may use them. They depend on nothing that is queued elsewhere, so the GPU
        computes them while it still fetches the batches before. On their stream it would do so after them, while the
        link is idle.
        """
        with on(self._side):
            made, event = make(), record(self._side)
        stream = current_stream(self.device)
        stream.wait_event(event)
        for tensor in made:
            tensor.record_stream(stream)
        return made

    def assemble(self, slices: Slices, sizes: Sequence[int]) -> list[Batch]:
        """See `BatchMaker.assemble`. The batches are complete when it returns: the gather has ended.

        Raises:
            BudgetError: if the device has no memory left.
        """
        batches, columns = [self.form.new_batch() for _ in sizes], self.located(slices, sizes)
        begins = unique(np.concatenate([np.zeros(0, np.int64), *(part.rows.pending.begins for part in slices.parts)]))
        with self.making():
            for codec, addresses, group in columns:
                if group is None:
                    rows = [size * len(codec.offsets) for size in sizes]
                    outs: Sequence[torch.Tensor] = batch_tensors(rows, codec.stored, self.device)
                    nbytes = bytes_at_each(addresses, sum(rows), codec.stored)
                    each = rows if nbytes == codec.stored.row_bytes else sizes
                    self.gather.batches(addresses, nbytes, outs, each, begins)
                else:
                    outs = self._ragged(codec, addresses, group, begins)
                for number, (batch, out) in enumerate(zip(batches, outs, strict=True)):
                    codec.put(batch, out, group, number)
        self.add_index(batches, slices, sizes)
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
            # Those alone: the GPU cannot read what is in a mapping that is not registered.
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
        gather_pieces(addresses, lengths, field.row_bytes, memory.data_ptr(), short_bytes=_IMAGE_BYTES)
        return memory.view(torch_dtype(field.dtype)).view(count, *field.row_shape)
