"""The encoded images of batches become tensors on a GPU: by its decoder, by processors for the others, by one kernel.

A batch's call is made ready by a thread that makes batches, which waits for it and then has the kernel run, while
another thread, which does nothing else, is in the decoder with the batch before. See `jpeg_decoders` for whose memory
is whose, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.gpu.jpeg_decoders import Call, JpegDecoder
from gdsload.engine.gpu.pixels import Pixels, TensorPixels
from gdsload.engine.gpu.resample_device import resample
from gdsload.engine.images import host_decoders
from gdsload.engine.images.decode import BatchImages, HostImages, ImageBatch, alone
from gdsload.engine.images.processors import Processors
from gdsload.engine.images.resample import resampled
from gdsload.errors import LoaderClosedError
from gdsload.system.streams import no_room, on, record, side_stream
from gdsload.transforms import DecodeImage

__all__ = ["BYTES_OF_A_CALL", "DeviceImages"]

BYTES_OF_A_CALL = 2**29
"""About how many bytes of pixels a call makes at most: they are in the GPU's memory until they are resized. Half a
thousand images of 500 x 375 pixels."""


class DeviceImages(HostImages):
    """Decodes the images of batches on a GPU.

    Args:
        options: what is wanted of each field that is decoded.
        device: the GPU.
        decoder: what decodes JPEGs, closed with this; None: the processors do, and the GPU only does the rest.
    """

    def __init__(
        self, options: Mapping[str, DecodeImage], device: torch.device, decoder: JpegDecoder | None = None
    ) -> None:
        super().__init__(options)
        self._device, self._decoder = device, decoder
        calls = 1 if decoder is None else decoder.calls
        self._calls = Processors(calls, "gdsload-images")
        self._streams = SimpleQueue[torch.cuda.Stream]()
        for _ in range(calls):
            self._streams.put(side_stream(device))
        self._results = side_stream(device)  # the kernel's, whose memory batches are in
        self._on_device = {name: None if one is None else one.to(device) for name, one in self.tables.items()}
        torch.cuda.current_stream(device).synchronize()  # they are used on other streams

    @property
    def device(self) -> torch.device:
        """See `HostImages.device`."""
        return self._device

    def __call__(self, batches: Sequence[ImageBatch], stopped: Callable[[], bool]) -> None:
        """See `HostImages`. The results are complete when it returns.

        Raises:
            BudgetError: if the device has no memory left.
        """
        try:
            super().__call__(batches, stopped)
        except torch.OutOfMemoryError:
            raise no_room(self._device, "decoded images") from None

    def finish(self, images: BatchImages, one: ImageBatch, result: Any) -> None:
        """See `HostImages.finish`."""
        with on(self._results):
            super().finish(images, one, result)
            if images.looked.errors:  # whose images it may just have filled with zeros
                record(self._results).synchronize()

    def close(self) -> None:
        """See `HostImages.close`."""
        self._calls.close()
        if self._decoder is not None:
            self._decoder.close()
        super().close()

    def begin(
        self, name: str, one: ImageBatch, stopped: Callable[[], bool]
    ) -> tuple[BatchImages, Any, Callable[[], None]]:
        """See `HostImages.begin`."""
        images = self.look(name, one)
        looked = images.looked
        given = np.zeros(len(looked), np.bool_) if self._decoder is None else looked.hardware()
        by_host: dict[int, host_decoders.Pixels] = {}
        tasks = self.decode(images, np.flatnonzero(~given).tolist(), stopped, by_host.__setitem__)
        found: list[list[Pixels]] = []
        decoded = self._calls.start(
            [partial(self._decoded, call, found, stopped) for call in self._ready(images, given)]
        )

        def complete() -> None:
            try:
                decoded.wait()
            finally:
                tasks.wait()
            pixels = [part for parts in found for part in parts]
            found.clear()
            places = np.zeros((len(looked), 4), np.int64)
            for part in pixels:
                part.place(places)
            missing = np.flatnonzero(given & (places[:, 0] == 0)).tolist()
            if missing:
                self.decode(images, missing, stopped, by_host.__setitem__).wait()
            self._put(images, pixels, by_host, result)

        size = images.options.rows_and_columns
        result: Any = [None] * len(looked) if size is None else self.empty_batch(name, len(looked))
        return images, result, complete

    def empty_batch(self, name: str, count: int) -> torch.Tensor:
        """See `HostImages.empty_batch`."""
        options = self.options[name]
        layout = torch.channels_last if options.channels_last else torch.contiguous_format
        with on(self._results):
            shape = (count, 3, *(options.rows_and_columns or (0, 0)))
            return torch.empty(shape, dtype=options.result, device=self._device, memory_format=layout)

    def _ready(self, images: BatchImages, given: NDArray[np.bool_]) -> list[Call]:
        """Calls that decode the images that are for the decoder: one, or several if they are large."""
        if (decoder := self._decoder) is None:
            return []
        looked, numbers = images.looked, np.flatnonzero(given)
        nbytes = 3 * int((looked.widths * looked.heights)[numbers].sum())
        parts = min(-(-nbytes // BYTES_OF_A_CALL), len(numbers))
        edges = [len(numbers) * part // max(parts, 1) for part in range(parts + 1)]
        return [decoder.call(looked, numbers[low:high], self._device) for low, high in pairwise(edges)]

    def _decoded(self, call: Call, found: list[list[Pixels]], stopped: Callable[[], bool]) -> None:
        """Make a call, in the thread that is for it."""
        if stopped():
            raise LoaderClosedError("the loader was closed")
        stream = self._streams.get()
        try:
            with on(stream):
                try:
                    found.append(call(stream))
                finally:
                    record(stream).synchronize()
        finally:
            self._streams.put(stream)

    def _put(
        self, images: BatchImages, pixels: list[Pixels], by_host: Mapping[int, host_decoders.Pixels], result: Any
    ) -> None:
        """Make a result of decoded images. It is complete when it returns, so that they may be given back."""
        with on(self._results):
            try:
                if by_host:
                    copied = {
                        number: torch.from_numpy(array).to(self._device, non_blocking=True).permute(2, 0, 1)
                        for number, array in by_host.items()
                    }
                    pixels = [*pixels, TensorPixels(copied)]
                self._queue(images, pixels, result)
            finally:
                record(self._results).synchronize()

    def _queue(self, images: BatchImages, pixels: list[Pixels], result: Any) -> None:
        table = self._on_device[images.name]
        if isinstance(result, torch.Tensor):
            resample(pixels, images.frames, table, result)
            return
        for number in range(len(images.looked)):
            image = next((image for part in pixels if (image := part.image(number)) is not None), None)
            if image is not None:
                result[number] = alone(resampled(image, images.frame(number), None), images.options, table)
