"""The encoded images of batches become tensors on a GPU: nvJPEG, the processors for what it does not take, one kernel.

nvJPEG's hardware decoder (seen on an H100) does not wait for the stream that it is given: it may write into an image's
memory before work is done that was queued earlier and still reads what lay there. So there are streams for this alone,
each with one batch at a time; the host waits for a stream before decoding begins on it, and again before the memory of
images is given back. Then memory that the allocator hands out on it is free in fact, not only in the stream's order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch

from gdsload.engine.gpu.resample_device import resample
from gdsload.engine.images.decode import BatchImages, HostImages, ImageBatch
from gdsload.engine.images.host_decoders import Pixels
from gdsload.engine.images.resample import put_normalized, resampled
from gdsload.shards.format.image_header import ImageHeader
from gdsload.system.streams import no_room, on, record, side_stream
from gdsload.transforms import DecodeImage

__all__ = ["DeviceImages", "JpegDecoder", "best_jpeg_decoder", "fresh", "takes", "turned"]

_log = logging.getLogger("gdsload")
_STREAMS = 2
"""Batches whose images are decoded at once: what the host does for one, and the kernel, take time that the decoder does
not need to be idle for."""
_END_OF_IMAGE = b"\xff\xd9"


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


def takes(header: ImageHeader | None, data: memoryview) -> bool:
    """Whether a GPU is to decode an image: a baseline JPEG, grey or in colours, that is not cut off."""
    return (
        header is not None
        and (header.codec, header.coding, header.bits) == ("jpeg", "baseline", 8)
        and header.channels in (1, 3)
        and bytes(data[-64:]).rfind(_END_OF_IMAGE) >= 0
    )


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
        for _ in range(_STREAMS):
            self._streams.put(side_stream(device))
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
            for one in batches:
                for name in self.options:
                    self._decode_field(name, one, stopped)
        except torch.OutOfMemoryError:
            raise no_room(self._device, "decoded images") from None

    def _decode_field(self, name: str, one: ImageBatch, stopped: Callable[[], bool]) -> None:
        images = self.look(name, one)
        looked = images.looked
        every = range(len(looked))
        mine = []
        if self._decoder is not None:
            mine = [number for number in every if takes(looked.headers[number], looked.data(number))]
        pixels: dict[int, Pixels] = {}
        tasks = self.decode(images, sorted(set(every) - set(mine)), stopped, pixels.__setitem__)
        stream = self._streams.get()
        try:
            with on(stream):
                try:
                    found = self._by_gpu(images, mine, stream) if mine else {}
                    if found is None:
                        self.decode(images, mine, stopped, pixels.__setitem__).wait()
                    tasks.wait()
                    on_gpu = [(found or {}).get(number) for number in every]
                    for number, array in pixels.items():
                        on_gpu[number] = torch.from_numpy(array).to(self._device, non_blocking=True).permute(2, 0, 1)
                    self.finish(images, one, self._result(images, on_gpu))
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

    def _result(self, images: BatchImages, found: Sequence[torch.Tensor | None]) -> Any:
        """What a batch has of a field, queued on the stream."""
        options, table = images.options, self._on_device[images.name]
        layout = torch.channels_last if options.channels_last else torch.contiguous_format
        size = options.rows_and_columns
        if size is not None:
            shape = (len(found), 3, *size)
            out = torch.empty(shape, dtype=options.result, device=self._device, memory_format=layout)
            resample(found, images.frames, table, out)
            return out
        result: list[Any] = [None] * len(found)
        for number, image in enumerate(found):
            if image is None:
                continue
            shown = resampled(image, images.frame(number), None)
            if table is None and not options.channels_last and shown.is_contiguous():
                result[number] = shown
                continue
            alone = torch.empty((1, *shown.shape), dtype=options.result, device=self._device, memory_format=layout)
            put_normalized(shown, table, alone[0])
            result[number] = alone[0]
        return result


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
