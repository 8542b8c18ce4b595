"""The encoded images of batches become tensors on a GPU: nvJPEG, the processors for what it does not take, one kernel.

nvJPEG's hardware decoder (seen on an H100) does not wait for the stream that it is given: it may write into an image's
memory before work is done that was queued earlier and still reads what lay there. So there are streams for this alone,
each with one call of the decoder at a time; the host waits for a stream before decoding begins on it, and again before
the memory of images is given back. Then memory that the allocator hands out on it is free in fact, not only in the
stream's order.

A decoder's call takes its images' headers apart and copies their bytes before the hardware has anything to do, and ends
with a wait. So batches are decoded in parts, several of them at once, by threads of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.gpu.resample_device import resample
from gdsload.engine.images.decode import BatchImages, HostImages, ImageBatch, alone
from gdsload.engine.images.host_decoders import Pixels
from gdsload.engine.images.processors import Processors, Tasks
from gdsload.engine.images.resample import resampled
from gdsload.errors import LoaderClosedError
from gdsload.system.streams import no_room, on, record, side_stream
from gdsload.transforms import DecodeImage

__all__ = ["CALLS", "IMAGES_OF_A_CALL", "DeviceImages", "JpegDecoder", "best_jpeg_decoder", "fresh", "turned"]

_log = logging.getLogger("gdsload")
CALLS = 4
"""Calls of the decoder that are under way at once."""
IMAGES_OF_A_CALL = 128
"""Images that one call decodes at most."""
_BYTES_OF_A_CALL = 2**28
"""About how many bytes of pixels it makes at most: they are in the GPU's memory until they are resized."""


class JpegDecoder(NamedTuple):
    """What decodes JPEGs on a GPU.

    Attributes:
        name: for people.
        decode: makes uint8 tensors ``[3, height, width]`` on a device, on the stream that is current, of uint8 tensors
            of encoded bytes in host memory.
        turns: whether they are upright then.
    """

    name: str
    decode: Callable[[list[torch.Tensor], torch.device], list[torch.Tensor]]
    turns: bool


@lru_cache(maxsize=1)
def best_jpeg_decoder() -> JpegDecoder | None:
    """The decoder of torchcodec, or else of torchvision; None if neither is installed and works."""
    try:
        from torchcodec.decoders import decode_jpeg

        return JpegDecoder("torchcodec", lambda data, device: decode_jpeg(data, mode="RGB", device=device), turns=True)
    except Exception as error:  # also where it was built for another torch
        _log.debug("torchcodec cannot be used: %s", error)
    try:
        from torchvision.io import ImageReadMode
        from torchvision.io import decode_jpeg as old

        rgb = ImageReadMode.RGB
        return JpegDecoder("torchvision", lambda data, device: old(data, mode=rgb, device=device), turns=False)
    except Exception as error:
        _log.debug("torchvision cannot be used: %s", error)
    return None


class DeviceImages(HostImages):
    """Decodes the images of batches on a GPU.

    Args:
        options: what is wanted of each field that is decoded.
        device: the GPU.
        decoder: what decodes JPEGs; None: the processors do, and the GPU only does the rest.
    """

    def __init__(
        self, options: Mapping[str, DecodeImage], device: torch.device, decoder: JpegDecoder | None = None
    ) -> None:
        super().__init__(options)
        self._device, self._decoder = device, decoder
        self._streams = SimpleQueue[torch.cuda.Stream]()
        for _ in range(CALLS):
            self._streams.put(side_stream(device))
        self._results = side_stream(device)  # whose memory batches are in, which nothing but kernels is queued on
        self._calls, self._at_once = Processors(CALLS, "gdsload-images"), IMAGES_OF_A_CALL
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
            record(self._results).synchronize()

    def close(self) -> None:
        """See `HostImages.close`."""
        self._calls.close()
        super().close()

    def begin(self, name: str, one: ImageBatch, stopped: Callable[[], bool]) -> tuple[BatchImages, Any, Tasks]:
        """See `HostImages.begin`."""
        images = self.look(name, one)
        looked, size = images.looked, images.options.rows_and_columns
        given = looked.complete_baseline() if self._decoder is not None else np.zeros(len(looked), np.bool_)
        result: Any = [None] * len(looked) if size is None else self.empty_batch(name, len(looked))
        heights, widths = looked.sizes()
        nbytes = 3 * int((heights * widths).sum())
        parts = max(-(-len(looked) // self._at_once), min(-(-nbytes // _BYTES_OF_A_CALL), len(looked)), 1)
        edges = [len(looked) * part // parts for part in range(parts + 1)]
        calls = [partial(self._part, images, range(*ends), given, result, stopped) for ends in pairwise(edges)]
        return images, result, self._calls.start(calls)

    def _part(
        self, images: BatchImages, every: range, given: NDArray[np.bool_], result: Any, stopped: Callable[[], bool]
    ) -> None:
        """Decode a part of a batch, and make that part of its result."""
        if stopped():
            raise LoaderClosedError("the loader was closed")
        mine = [number for number in every if given[number]]
        pixels: dict[int, Pixels] = {}
        tasks = self.decode(images, [number for number in every if not given[number]], stopped, pixels.__setitem__)
        stream = self._streams.get()
        try:
            with on(stream):
                try:
                    found = self._by_gpu(images, mine, stream) if mine else {}
                    if found is None:
                        found = {}
                        self.decode(images, mine, stopped, pixels.__setitem__).wait()
                    tasks.wait()
                    for number, array in pixels.items():
                        found[number] = torch.from_numpy(array).to(self._device, non_blocking=True).permute(2, 0, 1)
                    self._put(images, every, found, result)
                finally:
                    record(stream).synchronize()  # before any image's memory is given back
        finally:
            self._streams.put(stream)

    def _by_gpu(
        self, images: BatchImages, numbers: Sequence[int], stream: torch.cuda.Stream
    ) -> dict[int, torch.Tensor] | None:
        """Decode some images by nvJPEG, into new memory; None if one of them cannot be decoded so."""
        if (decoder := self._decoder) is None:
            return None
        looked = images.looked
        each = looked.values.split_with_sizes([high - low for low, high in looked.edges])  # one call for all
        data = [each[number] for number in numbers]
        made = fresh(decoder, data, self._device, stream)
        if made is None:
            return None
        found = {}
        for number, image in zip(numbers, made, strict=True):
            header = looked.headers[number]
            if header is None:
                continue
            if not decoder.turns and header.orientation != 1:
                image = turned(image, header.orientation)  # noqa: PLW2901 (it is the same image)
            width, height = header.upright
            if image.shape != (3, height, width):
                return None
            found[number] = image
        return found

    def empty_batch(self, name: str, count: int) -> torch.Tensor:
        """See `HostImages.empty_batch`."""
        options = self.options[name]
        layout = torch.channels_last if options.channels_last else torch.contiguous_format
        with on(self._results):
            shape = (count, 3, *(options.rows_and_columns or (0, 0)))
            return torch.empty(shape, dtype=options.result, device=self._device, memory_format=layout)

    def _put(self, images: BatchImages, every: range, found: dict[int, torch.Tensor], result: Any) -> None:
        """Make a part of a result of decoded images, queued on the stream."""
        table = self._on_device[images.name]
        if isinstance(result, torch.Tensor):
            part = slice(every.start, every.stop)
            resample([found.get(number) for number in every], images.frames[part], table, result[part])
            return
        for number, image in found.items():
            shown = resampled(image, images.frame(number), None)
            plain = table is None and not images.options.channels_last and shown.is_contiguous()
            result[number] = shown if plain else alone(shown, images.options, table)


def fresh(
    decoder: JpegDecoder, data: list[torch.Tensor], device: torch.device, stream: torch.cuda.Stream
) -> list[torch.Tensor] | None:
    """Decode JPEGs into memory that nothing reads or writes any more; None if one of them cannot be decoded.

    Args:
        decoder: what decodes them.
        data: their bytes, in host memory.
        device: where the images go.
        stream: the current one.
    """
    record(stream).synchronize()
    try:
        return decoder.decode(data, device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        _log.debug("%s cannot decode a batch of %d JPEGs, which the processors do: %s", decoder.name, len(data), error)
        record(stream).synchronize()  # raises what has made the GPU unusable
        return None


def turned(image: torch.Tensor, orientation: int) -> torch.Tensor:
    """An image on a GPU, turned as EXIF's orientation says."""
    found = image.transpose(1, 2) if orientation >= 5 else image
    dims = [dim for dim, those in ((1, (3, 4, 7, 8)), (2, (2, 3, 6, 7))) if orientation in those]
    return found.flip(dims) if dims else found
