"""The encoded images of batches become tensors on a GPU: by its decoder, by processors for the others, by one kernel.

The images of a group of batches are decoded together: in one call, or in several if their pixels are many. Each thread
that makes batches calls the decoder itself, and then runs the kernel. See `jpeg_decoders` for whose memory is whose,
and when.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Literal, NamedTuple

import numpy as np
import torch

from gdsload.engine.gpu.device_queue import to_its_end
from gdsload.engine.gpu.jpeg_decoders import JpegDecoder
from gdsload.engine.gpu.pixels import Pixels, TensorPixels
from gdsload.engine.gpu.resample_device import prepare, resample
from gdsload.engine.images import host_decoders
from gdsload.engine.images.decode import FieldImages, HostImages, ImageBatch, alone
from gdsload.engine.images.encoded import Looked
from gdsload.engine.images.resample import resampled
from gdsload.errors import LoaderClosedError
from gdsload.system.arrays import IntArray, unique
from gdsload.system.pool import Future
from gdsload.system.streams import on, record, room_for, side_stream
from gdsload.transforms import DecodeImage

BYTES_OF_A_CALL = 2**29
"""About how many bytes of pixels a call makes at most: they are in the GPU's memory until they are resized. Some nine
hundred images of 500 x 375 pixels."""
_STREAMS = 3
"""Only the owner of a stream may have the pixels of a call: two calls decode at once, while the next one is made ready,
or the kernel reads the pixels of the last one."""


class _Part(NamedTuple):
    """Consecutive images whose pixels are in memory at once.

    Attributes:
        given: the numbers of those that are for the decoder.
        numbers: those of all.
        by_host: pixels of the others, once they are decoded, by number.
        stopped: whether nobody wants them any more.
    """

    images: FieldImages
    given: IntArray
    numbers: IntArray
    by_host: dict[int, host_decoders.Pixels]
    stopped: Callable[[], bool]


class DeviceImages(HostImages):
    """Decodes the images of batches on a GPU.

    Args:
        open_decoder: makes what decodes JPEGs, which is closed with this; or None: the processors do, and the GPU only
            does the rest. It is called in a thread: the first images are read while nvJPEG starts.
    """

    def __init__(
        self, options: Mapping[str, DecodeImage], device: torch.device, open_decoder: Callable[[], JpegDecoder | None]
    ) -> None:
        super().__init__(options)
        self.device, self._open_decoder = device, open_decoder
        self._opening = threading.Lock()
        self._opened: JpegDecoder | Literal["not yet"] | None = "not yet"
        self._streams = SimpleQueue[torch.cuda.Stream]()
        for _ in range(_STREAMS):
            self._streams.put(side_stream(device))
        self._results = side_stream(device)  # the kernel's, whose memory batches are in
        self._on_device = {name: None if one is None else one.to(device) for name, one in self.tables.items()}
        torch.cuda.current_stream(device).synchronize()  # they are used on other streams
        for one in options.values():
            if one.rows_and_columns is not None:
                prepare(one.result, channels_last=one.channels_last, device=device)
        with suppress(RuntimeError):  # no thread is left: it is opened for the first batch
            threading.Thread(target=self._open_ahead, name="gdsload-nvjpeg", daemon=False).start()

    def _open_ahead(self) -> None:
        with suppress(Exception):  # raised again for the first batch
            self._decoder()

    def _decoder(self) -> JpegDecoder | None:
        """The decoder. The first thread that asks opens it, and others wait for that."""
        with self._opening:
            if self._opened == "not yet":
                self._opened = self._open_decoder()
            return self._opened

    def __call__(self, batches: Sequence[ImageBatch], stopped: Callable[[], bool]) -> None:
        """See `HostImages`. The results are complete when it returns.

        Raises:
            BudgetError: if the device has no memory left.
        """
        with room_for("decoded images", self.device):
            super().__call__(batches, stopped)

    def finish(self, images: FieldImages) -> None:
        with on(self._results):
            super().finish(images)
            if images.looked.errors:  # whose images it may just have filled with zeros
                record(self._results).synchronize()

    def close(self) -> None:
        with self._opening:
            decoder, self._opened = self._opened, None
        if decoder is not None and decoder != "not yet":
            decoder.close()
        super().close()

    def begin(self, images: FieldImages, stopped: Callable[[], bool]) -> Callable[[], None]:
        looked = images.looked
        given = np.zeros(len(looked), np.bool_) if self._decoder() is None else looked.hardware()
        parts = [_Part(images, part[given[part]], part, {}, stopped) for part in _parts(looked)]
        begun = [self._on_host(one, one.numbers[~given[one.numbers]]) for one in parts]

        def complete() -> None:
            for one, tasks in zip(parts, begun, strict=True):
                stream = self._streams.get()
                try:
                    self._complete(one, tasks, stream)
                finally:
                    self._streams.put(stream)

        return complete

    def look(self, name: str, batches: Sequence[ImageBatch]) -> FieldImages:
        with on(self._results):
            return super().look(name, batches)

    def empty_batch(self, name: str, count: int) -> torch.Tensor:
        """See `HostImages.empty_batch`. The current stream is the one that is to write to it first."""
        options = self.options[name]
        layout = torch.channels_last if options.channels_last else torch.contiguous_format
        shape = (count, 3, *(options.rows_and_columns or (0, 0)))
        return torch.empty(shape, dtype=options.result, device=self.device, memory_format=layout)

    def _on_host(self, part: _Part, numbers: IntArray) -> Future:
        return self.decode(part.images, numbers.tolist(), part.stopped, part.by_host.__setitem__)

    def _complete(self, part: _Part, hosted: Future, stream: torch.cuda.Stream) -> None:
        """Make the results of a part; nothing is in the stream's memory when it returns."""
        pixels = self._by_decoder(part, stream)
        hosted.wait()
        if sum(len(some.numbers) for some in pixels) < len(part.given):
            found = np.concatenate([np.zeros(0, np.int64), *(some.numbers for some in pixels)])
            self._on_host(part, np.setdiff1d(part.given, found, assume_unique=True)).wait()
        with to_its_end(self._results):
            self._queue(part, pixels)

    def _by_decoder(self, part: _Part, stream: torch.cuda.Stream) -> list[Pixels]:
        """Decode the images that are for the decoder; what could not be decoded is missing."""
        decoder = self._decoder()
        if decoder is None or not len(part.given):
            return []
        if part.stopped():
            raise LoaderClosedError("the loader was closed")
        with on(stream):
            try:
                return decoder.decode(part.images.looked, part.given, stream)
            except BaseException:
                record(stream).synchronize()  # what it has queued
                raise

    def _queue(self, part: _Part, pixels: Sequence[Pixels]) -> None:
        """Queue what makes the results of decoded images."""
        images, numbers, table = part.images, part.numbers.tolist(), self._on_device[part.images.name]
        copied = {
            number: torch.from_numpy(array).to(self.device, non_blocking=True).permute(2, 0, 1)
            for number, array in part.by_host.items()
        }
        part.by_host.clear()
        pixels = [*pixels, TensorPixels(copied)]
        if images.options.rows_and_columns is not None:
            first, end = numbers[0], numbers[-1] + 1
            outs = [
                result[max(first - low, 0) : max(end - low, 0)]
                for result, low in zip(images.results, images.edges, strict=False)
            ]
            resample(pixels, images.frames, table, outs, first)
            return
        for number in numbers:
            image = next((image for some in pixels if (image := some.image(number)) is not None), None)
            if image is not None:
                result, at = images.place(number)
                result[at] = alone(resampled(image, images.frame(number), None), images.options, table)


def _parts(looked: Looked) -> list[IntArray]:
    """The numbers of images whose pixels may be in memory at once, in order."""
    ends = np.cumsum(3 * looked.widths * looked.heights)
    count = -(-int(ends[-1]) // BYTES_OF_A_CALL) if len(ends) else 0
    cuts = unique(np.searchsorted(ends, ends[-1:] * np.arange(1, count) // max(count, 1)))
    return [part for part in np.split(np.arange(len(ends)), cuts) if len(part)]
