"""The encoded images of batches become tensors, on the host."""

from __future__ import annotations

import logging
import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from gdsload.engine.images.encoded import Looked, Place, look_at
from gdsload.engine.images.frames import Draws, Frame, frames
from gdsload.engine.images.host_decoders import Pixels, decode_image
from gdsload.engine.images.resample import put_normalized, resampled
from gdsload.errors import LoaderClosedError
from gdsload.shards.format.image_header import ImageHeader
from gdsload.shards.gather_host import limit_threads
from gdsload.system.arrays import IntArray
from gdsload.system.pool import Future, Pool, end_at_exit
from gdsload.system.share import processors
from gdsload.transforms import DecodeImage

_log = logging.getLogger("gdsload")
_MOST_AT_ONCE = 4
"""Images that a thread takes at once: few, so that all threads end together, at some microseconds each time."""
_MOST_SCRATCH_BYTES = 2**25
"""Memory that a thread keeps for pixels; a larger image gets other memory."""
_ALIGNMENT = 64
_BYTES_FOR_EACH = 10
"""Bytes of pixels for each byte of an image, where nothing else is known: about those of JPEG photographs."""


def decoded_nbytes(options: DecodeImage, encoded_nbytes: float) -> float:
    """About how many bytes a decoded image has in a batch."""
    size = options.rows_and_columns
    if size is None:
        return encoded_nbytes * _BYTES_FOR_EACH * options.result.itemsize
    return 3.0 * math.prod(size) * options.result.itemsize


class ImageBatch(NamedTuple):
    """A batch whose images are to be decoded.

    Attributes:
        batch: its fields, of which some are `EncodedImages`.
        draws: what random numbers are drawn from.
        samples: gives their ids in the shard table.
    """

    batch: dict[str, Any]
    draws: Draws
    place: Place
    samples: Callable[[], IntArray]


class FieldImages(NamedTuple):
    """The encoded images of one field of several batches, numbered through.

    Attributes:
        edges: the number of the first image of each batch, and how many there are.
        looked: what their headers say.
        frames: what becomes of each; see `frames.frames`.
        results: of each batch: a tensor, or a list if images keep their sizes.
    """

    name: str
    options: DecodeImage
    batches: Sequence[ImageBatch]
    edges: Sequence[int]
    looked: Looked
    frames: IntArray
    results: list[Any]

    def frame(self, number: int) -> Frame:
        """The frame of an image."""
        return Frame(*self.frames[number].tolist())

    def place(self, number: int) -> tuple[Any, int]:
        """The result that an image is part of, and its place there."""
        batch = bisect_right(self.edges, number) - 1
        return self.results[batch], number - self.edges[batch]


class HostImages:
    """Decodes the images of batches by all processors.

    `empty` makes the memory of a result, uninitialized, given bytes; None: torch's.
    """

    device = torch.device("cpu")
    """The device of the results."""

    def __init__(self, options: Mapping[str, DecodeImage], empty: Callable[[int], memoryview] | None = None) -> None:
        self.options = dict(options)
        # Threads that make batches only wait for these: so all processors are busy, however few such threads there are.
        self.processors = Pool(processors(), "gdsload-decode", partial(limit_threads, 1))
        end_at_exit(self.processors)
        self._empty = empty
        self.tables = {name: one.table() for name, one in options.items()}
        self._scratch = threading.local()

    def __call__(self, batches: Sequence[ImageBatch], stopped: Callable[[], bool]) -> None:
        """Put decoded images in the place of encoded ones. Only complete batches come out, or an error.

        Raises:
            FormatError: if an image cannot be decoded, and that is to be raised.
            LoaderClosedError: if nobody wants them.
        """
        having = {name: [one for one in batches if name in one.batch] for name in self.options}
        fields = [self.look(name, those) for name, those in having.items() if those]
        for images, complete in [(images, self.begin(images, stopped)) for images in fields]:
            complete()
            self.finish(images)

    def close(self) -> None:
        """End the threads; may be called twice."""
        self.processors.close()

    def look(self, name: str, batches: Sequence[ImageBatch]) -> FieldImages:
        """The images of a field before they are decoded: their headers, frames and places in the results."""
        options, encoded = self.options[name], [one.batch[name] for one in batches]
        counts = [len(one.lengths) for one in encoded]
        looked = look_at(encoded, options.max_pixels)
        framed = frames(options, *looked.sizes(), Draws.of_all([one.draws for one in batches]))
        whole = options.rows_and_columns is not None
        results = [self.empty_batch(name, count) if whole else [None] * count for count in counts]
        return FieldImages(name, options, batches, list(accumulate(counts, initial=0)), looked, framed, results)

    def finish(self, images: FieldImages) -> None:
        """Put a field's decoded images into the batches, or raise the error of the first batch that some are none of.

        Raises:
            FormatError: if an image cannot be decoded, and that is to be raised.
        """
        name, looked = images.name, images.looked
        wrong = np.array(sorted(looked.errors), np.int64)
        for one, (low, high), result in zip(images.batches, pairwise(images.edges), images.results, strict=True):
            mine = wrong[(wrong >= low) & (wrong < high)]
            if images.options.on_error == "zeros":
                good = np.ones(high - low, np.bool_)
                good[mine - low] = False
                one.batch[f"{name}.decoded"] = torch.from_numpy(good)
            if len(mine):
                error = looked.error(name, mine.tolist(), low, one.place)
                if images.options.on_error == "raise":
                    raise error
                _log.warning("zeros are handed out instead: %s", error)
                self._zero(images, mine.tolist())
            one.batch[name] = result

    def decode(
        self,
        images: FieldImages,
        numbers: Sequence[int],
        stopped: Callable[[], bool],
        put: Callable[[int, Pixels], None],
        *,
        reuse: bool = False,
        into: Callable[[int], memoryview] | None = None,
    ) -> Future:
        """Have some of a field's images decoded by all processors; those that are known to be damaged are left out.

        `stopped` returns whether nobody wants them any more. `put` is called with an image's number and pixels, in one
        of the threads; with `reuse` it is done with the pixels when it returns, so that others may take their place.
        `into` gives the memory where each image's pixels may go otherwise; None: into new memory.
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
        return self.processors.run([partial(some, low) for low in range(0, len(wanted), at_once)])

    def _decode_one(
        self,
        images: FieldImages,
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

    def begin(self, images: FieldImages, stopped: Callable[[], bool]) -> Callable[[], None]:
        """Start the decoding of a field; returns what waits until its results are complete."""
        options, table = images.options, self.tables[images.name]
        size = options.rows_and_columns
        as_decoded = size is None and options.channels_last and table is None
        memory = self._memory_of_each(images) if size is None else None

        def put(number: int, pixels: Pixels) -> None:
            frame, (result, at) = images.frame(number), images.place(number)
            shown = resampled(torch.from_numpy(pixels).permute(2, 0, 1), frame, size)
            if size is not None:
                put_normalized(shown, table, result[at])
            elif as_decoded:
                result[at] = alone(shown, options, table) if frame.flip else shown
            else:
                result[at] = alone(shown, options, table, None if memory is None else memory[number])

        into = memory.__getitem__ if as_decoded and memory is not None else None
        return self.decode(images, range(len(images.looked)), stopped, put, reuse=not as_decoded, into=into).wait

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

    def _zero(self, images: FieldImages, numbers: Sequence[int]) -> None:
        for result, at in map(images.place, numbers):
            if isinstance(result, list):
                result[at] = torch.zeros((3, 1, 1), dtype=images.options.result, device=self.device)
            else:
                result[at].zero_()

    def _memory_of_each(self, images: FieldImages) -> list[memoryview] | None:
        """Memory for images that keep their size, out of the pool: new memory costs a tenth of decoding."""
        if self._empty is None:
            return None
        heights, widths = images.looked.sizes()
        nbytes = 3 * heights * widths * images.options.result.itemsize
        found: list[memoryview] = []
        for low, high in pairwise(images.edges):  # each batch has its own, and keeps no other's
            if low == high:
                continue
            ends = np.cumsum(-(-nbytes[low:high] // _ALIGNMENT) * _ALIGNMENT)
            memory, begins = self._empty(int(ends[-1])), np.append(0, ends[:-1])
            last = begins + nbytes[low:high]
            found += [memory[begin:end] for begin, end in zip(begins.tolist(), last.tolist(), strict=True)]
        return found

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
    """An image as its own tensor, laid out as wanted."""
    planes, height, width = shown.shape
    shape = (height, width, planes) if options.channels_last else (planes, height, width)
    if memory is None:
        found = torch.empty(shape, dtype=options.result, device=shown.device)
    else:
        found = torch.frombuffer(memory, dtype=options.result, count=shown.numel()).view(shape)
    found = found.permute(2, 0, 1) if options.channels_last else found
    put_normalized(shown, table, found)
    return found
