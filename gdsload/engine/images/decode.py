"""The encoded images of batches become tensors, on the host."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from gdsload.engine.images.encoded import EncodedImages, Looked, Place, look_at
from gdsload.engine.images.frames import Draws, Frame, frames
from gdsload.engine.images.host_decoders import Pixels, decode_image
from gdsload.engine.images.processors import Processors, Tasks
from gdsload.engine.images.resample import put_normalized, resampled
from gdsload.errors import LoaderClosedError
from gdsload.shards.format.image_header import ImageHeader
from gdsload.system.arrays import IntArray
from gdsload.transforms import DecodeImage

__all__ = ["BatchImages", "HostImages", "ImageBatch", "alone", "decoded_nbytes"]

_log = logging.getLogger("gdsload")
_MOST_AT_ONCE = 4
"""Images that a thread takes at once: few, so that all threads end together, at some microseconds each time."""
_MOST_SCRATCH_BYTES = 2**25
"""Memory that a thread keeps for pixels; an image that is larger gets some of its own."""
_ALIGNMENT = 64
_BYTES_FOR_EACH = 10
"""Bytes of pixels for each byte of an image, where nothing else is known: about those of JPEG photographs."""


def decoded_nbytes(options: DecodeImage, encoded_nbytes: float) -> float:
    """About how many bytes a decoded image has in a batch."""
    size = options.rows_and_columns
    if size is None:
        return encoded_nbytes * _BYTES_FOR_EACH * options.result.itemsize
    return 3.0 * math.prod(size) * options.result.itemsize


class BatchImages(NamedTuple):
    """The encoded images of one field of a batch.

    Attributes:
        name: the field's.
        options: what is wanted of them.
        looked: what their headers say.
        frames: what becomes of each; see `frames.frames`.
    """

    name: str
    options: DecodeImage
    looked: Looked
    frames: IntArray

    def frame(self, number: int) -> Frame:
        """What becomes of an image."""
        return Frame(*self.frames[number].tolist())


class ImageBatch(NamedTuple):
    """A batch whose images are to be decoded.

    Attributes:
        batch: its fields, of which some are `EncodedImages`.
        draws: what random numbers are drawn from.
        place: where its samples are.
        samples: gives their ids in the shard table.
    """

    batch: dict[str, Any]
    draws: Draws
    place: Place
    samples: Callable[[], IntArray]


class HostImages:
    """Decodes the images of batches by all processors.

    Args:
        options: what is wanted of each field that is decoded.
        empty: makes the memory of a result, uninitialized, given bytes; None: torch's.
    """

    def __init__(self, options: Mapping[str, DecodeImage], empty: Callable[[int], memoryview] | None = None) -> None:
        self.options, self.processors = dict(options), Processors()
        self._empty = empty
        self.tables = {name: one.table() for name, one in options.items()}
        self._scratch = threading.local()

    def __call__(self, batches: Sequence[ImageBatch], stopped: Callable[[], bool]) -> None:
        """Put decoded images in the place of encoded ones. Only complete batches come out, or an error.

        Args:
            batches: changed in place: those of the fields that they have.
            stopped: whether nobody wants them any more.

        Raises:
            FormatError: if an image cannot be decoded, and that is to be raised.
            LoaderClosedError: if nobody wants them.
        """
        begun = [(one, self.begin(name, one, stopped)) for one in batches for name in self.options if name in one.batch]
        for one, (images, result, complete) in begun:
            complete()
            self.finish(images, one, result)

    def close(self) -> None:
        """End the threads; may be called twice."""
        self.processors.close()

    def look(self, name: str, one: ImageBatch) -> BatchImages:
        """What is known of a field's images before they are decoded."""
        encoded: EncodedImages = one.batch[name]
        options = self.options[name]
        looked = look_at(encoded, options.max_pixels)
        return BatchImages(name, options, looked, frames(options, *looked.sizes(), one.draws))

    def finish(self, images: BatchImages, one: ImageBatch, result: Any) -> None:
        """Put a field's decoded images into the batch, or raise the error of those that are none.

        Raises:
            FormatError: if an image cannot be decoded, and that is to be raised.
        """
        name, looked = images.name, images.looked
        if images.options.on_error == "zeros":
            good = np.ones(len(looked), np.bool_)
            good[list(looked.errors)] = False
            one.batch[f"{name}.decoded"] = torch.from_numpy(good)
        if looked.errors:
            error = looked.error(name, one.place)
            if images.options.on_error == "raise":
                raise error
            _log.warning("zeros are handed out instead: %s", error)
            self._zero(images, result)
        one.batch[name] = result

    def decode(
        self,
        images: BatchImages,
        numbers: Sequence[int],
        stopped: Callable[[], bool],
        put: Callable[[int, Pixels], None],
        *,
        reuse: bool = False,
        into: Callable[[int], memoryview] | None = None,
    ) -> Tasks:
        """Have some of a field's images decoded by all processors.

        Args:
            images: the field's.
            numbers: which of them; those that are known to be damaged are left out.
            stopped: whether nobody wants them any more.
            put: called with an image's number and pixels, in one of the threads.
            reuse: whether `put` is done with the pixels when it returns, so that others may take their place.
            into: where each image's pixels may go otherwise; None: into new memory.
        """

        def some(low: int) -> None:
            for number in wanted[low : low + at_once]:
                if stopped():
                    raise LoaderClosedError("the loader was closed")
                header = images.looked.header(number)
                place = into if into is None else into(number)
                self._decode_one(images, number, put, self._buffer(header) if reuse else place)

        wanted = [number for number in numbers if number not in images.looked.errors]
        at_once = min(_MOST_AT_ONCE, max(len(wanted) // (2 * self.processors.count), 1))
        return self.processors.start([partial(some, low) for low in range(0, len(wanted), at_once)])

    def _decode_one(
        self,
        images: BatchImages,
        number: int,
        put: Callable[[int, Pixels], None],
        buffer: bytearray | memoryview | None,
    ) -> None:
        looked = images.looked
        try:
            pixels = decode_image(looked.data(number), looked.header(number), buffer)
        except MemoryError:
            raise
        except Exception as error:  # of any kind: Pillow's decoders have many
            looked.failed(number, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            return
        put(number, pixels)

    def begin(
        self, name: str, one: ImageBatch, stopped: Callable[[], bool]
    ) -> tuple[BatchImages, Any, Callable[[], None]]:
        """Start the decoding of a field: what is known of it, its result, and what waits until that is complete."""
        images = self.look(name, one)
        options, table = images.options, self.tables[name]
        size, count = options.rows_and_columns, len(images.looked)
        result: Any = [None] * count if size is None else self.empty_batch(name, count)
        as_decoded = size is None and options.channels_last and table is None
        memory = self._memory_of_each(images) if size is None else None

        def put(number: int, pixels: Pixels) -> None:
            frame = images.frame(number)
            shown = resampled(torch.from_numpy(pixels).permute(2, 0, 1), frame, size)
            if size is not None:
                put_normalized(shown, table, result[number])
            elif as_decoded:
                result[number] = alone(shown, options, table) if frame.flip else shown
            else:
                result[number] = alone(shown, options, table, None if memory is None else memory[number])

        into = memory.__getitem__ if as_decoded and memory is not None else None
        tasks = self.decode(images, range(count), stopped, put, reuse=not as_decoded, into=into)
        return images, result, tasks.wait

    def empty_batch(self, name: str, count: int) -> torch.Tensor:
        """An uninitialized batch ``[count, 3, *size]`` of a field whose images have one size."""
        options = self.options[name]
        size = options.rows_and_columns or (0, 0)
        shape = (count, *size, 3) if options.channels_last else (count, 3, *size)
        nbytes = math.prod(shape) * options.result.itemsize
        if self._empty is None or not nbytes:
            found = torch.empty(shape, dtype=options.result, device="cpu")
        else:
            memory = self._empty(nbytes)
            found = torch.frombuffer(memory, dtype=options.result, count=math.prod(shape)).view(shape)
        return found.permute(0, 3, 1, 2) if options.channels_last else found

    def _zero(self, images: BatchImages, result: Any) -> None:
        """Put zeros where images cannot be decoded."""
        for number in images.looked.errors:
            if isinstance(result, list):
                result[number] = torch.zeros((3, 1, 1), dtype=images.options.result, device=self.device)
            else:
                result[number].zero_()

    @property
    def device(self) -> torch.device:
        """Where results are."""
        return torch.device("cpu")

    def _memory_of_each(self, images: BatchImages) -> list[memoryview] | None:
        """Memory for images that keep their size, out of the pool: new memory costs a tenth of decoding."""
        heights, widths = images.looked.sizes()
        nbytes = 3 * heights * widths * images.options.result.itemsize
        ends = np.cumsum(-(-nbytes // _ALIGNMENT) * _ALIGNMENT)
        if self._empty is None or not len(ends):
            return None
        memory, begins = self._empty(int(ends[-1])), np.append(0, ends[:-1])
        return [memory[low:high] for low, high in zip(begins.tolist(), (begins + nbytes).tolist(), strict=True)]

    def _buffer(self, header: ImageHeader) -> bytearray:
        """Memory of this thread's, for pixels that are used at once."""
        nbytes = header.width * header.height * 3
        found: bytearray = getattr(self._scratch, "memory", bytearray())
        if nbytes > _MOST_SCRATCH_BYTES:
            return bytearray()
        if len(found) < nbytes:
            found = self._scratch.memory = bytearray(nbytes)
        return found


def alone(
    shown: torch.Tensor, options: DecodeImage, table: torch.Tensor | None, memory: memoryview | None = None
) -> torch.Tensor:
    """An image as a tensor of its own, laid out as wanted.

    Args:
        shown: the image.
        options: how it is wanted.
        table: see `DecodeImage.table`.
        memory: where it goes; None: into new memory.
    """
    planes, height, width = shown.shape
    shape = (height, width, planes) if options.channels_last else (planes, height, width)
    if memory is None:
        found = torch.empty(shape, dtype=options.result, device=shown.device)
    else:
        found = torch.frombuffer(memory, dtype=options.result, count=shown.numel()).view(shape)
    found = found.permute(2, 0, 1) if options.channels_last else found
    put_normalized(shown, table, found)
    return found
