"""The decoders of JPEGs on a GPU, and the memory of the pixels.

nvJPEG's hardware decoder (seen on an H100) does not wait for the stream that it is given: it may write into an image's
memory before work is done that was queued earlier and still reads what was there. So there are streams for decoding
alone, each for one call at a time; the host waits for a stream when memory for a call has been taken and when the call
is over, and the user of the pixels waits on the host, too, before their memory is given back. Then memory that the
allocator hands out on such a stream is free in fact, not only in the stream's order.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

import numpy as np
import torch

from gdsload.engine.gpu.nvjpeg import COLOURS, GREY, NvJpeg, destinations, hardware_decoder
from gdsload.engine.gpu.pixels import PackedPixels, Pixels, TensorPixels, turned
from gdsload.engine.images.encoded import Looked
from gdsload.system.arrays import IntArray
from gdsload.system.streams import record

_log = logging.getLogger("gdsload")
_ALIGNMENT = 256
_ROUND_BYTES = 2**24
"""Memory is asked for in multiples of this, so that what one call gives back fits the next one."""
_FORMS = ((COLOURS, 3), (GREY, 1))
"""How nvJPEG decodes images of so many channels: each in another call."""


class JpegDecoder(Protocol):
    """A decoder of JPEGs on a GPU, which several threads may use at once."""

    @property
    def name(self) -> str:
        """For people."""

    def decode(self, looked: Looked, numbers: IntArray, stream: torch.cuda.Stream) -> list[Pixels]:
        """Decode some images, at least one, and wait for them. What could not be decoded is missing.

        `numbers` are rising. `stream` is one for decoding alone, which is current.
        """

    def close(self) -> None:
        """Release what is held; nothing is being decoded any more."""


class HardwareDecoder:
    """Decodes by nvJPEG's hardware, in two calls at once.

    A processor submits each image of a call, so that the rate of one call depends on it: on hosts of H100s one call
    decodes 17 k to 41 k images of 500 x 375 pixels a second, and two 45 k to 47 k. Three are slower.

    Args:
        first: nvJPEG, for one call at a time.
        another: opens it for a second call, the first time that two are to be made at once; it may return None.
        instead: what decodes what they refuse, before the processors have to; None: nothing does.
    """

    name = "nvJPEG"

    def __init__(
        self, first: NvJpeg, another: Callable[[], NvJpeg | None] = lambda: None, instead: JpegDecoder | None = None
    ) -> None:
        self._decoders, self._another, self._instead, self._warned = [first], another, instead, False
        self._alone, self._opener = threading.Lock(), threading.Thread(target=self._open, name="gdsload-nvjpeg")
        self._free = SimpleQueue[NvJpeg]()
        self._free.put(first)

    def decode(self, looked: Looked, numbers: IntArray, stream: torch.cuda.Stream) -> list[Pixels]:
        """See `JpegDecoder.decode`."""
        forms = [(form, planes, numbers[looked.plain.channels[numbers] == planes]) for form, planes in _FORMS]
        forms = [one for one in forms if len(one[2])]
        heights, widths = looked.plain.heights, looked.plain.widths
        nbytes = [-(-planes * heights[mine] * widths[mine] // _ALIGNMENT) * _ALIGNMENT for _, planes, mine in forms]
        size = sum(int(each.sum()) for each in nbytes)
        memory = torch.empty(-(-size // _ROUND_BYTES) * _ROUND_BYTES, dtype=torch.uint8, device=stream.device)
        given, begin = [], 0
        for (form, planes, mine), each in zip(forms, nbytes, strict=True):
            begins = begin + np.cumsum(each) - each
            begin += int(each.sum())
            place = PackedPixels(memory, mine, begins, heights[mine], widths[mine], looked.orientations[mine], planes)
            encoded = looked.values.data_ptr() + looked.begins[mine], looked.ends[mine] - looked.begins[mine]
            targets = destinations(memory.data_ptr() + begins, heights[mine], widths[mine], planes)
            given.append((form, encoded, targets, place))
        record(stream).synchronize()  # nothing reads or writes that memory any more
        found: list[Pixels] = []
        decoder = self._take()
        try:
            for form, (pointers, lengths), targets, place in given:
                try:
                    decoder.decode(pointers, lengths, targets, form, stream.cuda_stream)
                except RuntimeError as error:
                    self._warn(error)
                    if self._instead is not None:
                        found += self._instead.decode(looked, place.numbers, stream)
                else:
                    found.append(place)
                finally:
                    record(stream).synchronize()
        finally:
            self._free.put(decoder)
        return found

    def _take(self) -> NvJpeg:
        """A decoder that is free. If none is for the first time, another one is opened, in a thread that ends then.

        CUDA remembers a failure for each thread, and torch would raise it at this thread's next kernel.
        """
        with suppress(Empty):
            return self._free.get_nowait()
        if self._alone.acquire(blocking=False):  # for good
            with suppress(RuntimeError):  # no thread is left
                self._opener.start()
        return self._free.get()

    def _open(self) -> None:
        with suppress(Exception):  # the first one is enough
            if (decoder := self._another()) is not None:
                self._decoders.append(decoder)
                self._free.put(decoder)

    def _warn(self, error: RuntimeError) -> None:
        if not self._warned:
            self._warned = True
            instead = "the processors decode" if self._instead is None else f"{self._instead.name} decodes"
            _log.warning("nvJPEG's hardware refuses images, which %s instead: %s", instead, error)

    def close(self) -> None:
        """See `JpegDecoder.close`."""
        if self._opener.ident is not None:
            self._opener.join()
        for decoder in self._decoders:
            decoder.close()


class ListDecoder(NamedTuple):
    """Decodes by a function of a library.

    Attributes:
        function: makes uint8 tensors ``[3, height, width]`` on a device, on the stream that is current, of encoded
            bytes in host memory, uint8 tensors, too.
        turns: whether they are upright then.
    """

    name: str
    function: Callable[[list[torch.Tensor], torch.device], list[torch.Tensor]]
    turns: bool

    def decode(self, looked: Looked, numbers: IntArray, stream: torch.cuda.Stream) -> list[Pixels]:
        """See `JpegDecoder.decode`."""
        edges = zip(looked.begins[numbers].tolist(), looked.ends[numbers].tolist(), strict=True)
        made = fresh(self, [looked.values[begin:end] for begin, end in edges], stream)
        if made is None:
            return []
        record(stream).synchronize()
        found = {}
        for number, image in zip(numbers.tolist(), made, strict=True):
            header = looked.header(number)
            upright = image if self.turns else turned(image, header.orientation)
            width, height = header.upright
            if upright.shape != (3, height, width):
                return []
            found[number] = upright
        record(stream).synchronize()  # what was turned
        return [TensorPixels(found)]

    def close(self) -> None:
        """See `JpegDecoder.close`."""


def best_jpeg_decoder(device: torch.device) -> JpegDecoder | None:
    """NvJPEG's hardware decoder, or else one of a library; None if there is none."""
    found = hardware_decoder(device)
    return (
        list_decoder() if found is None else HardwareDecoder(found, partial(hardware_decoder, device), list_decoder())
    )


@lru_cache(maxsize=1)
def list_decoder() -> ListDecoder | None:
    """The decoder of torchcodec, or else of torchvision; None if neither is installed and works."""
    try:
        from torchcodec.decoders import decode_jpeg

        return ListDecoder("torchcodec", lambda data, device: decode_jpeg(data, mode="RGB", device=device), turns=True)
    except Exception as error:  # also where it was built for another torch
        _log.debug("torchcodec cannot be used: %s", error)
    try:
        from torchvision.io import ImageReadMode
        from torchvision.io import decode_jpeg as old

        rgb = ImageReadMode.RGB
        return ListDecoder("torchvision", lambda data, device: old(data, mode=rgb, device=device), turns=False)
    except Exception as error:
        _log.debug("torchvision cannot be used: %s", error)
    return None


def fresh(decoder: ListDecoder, data: list[torch.Tensor], stream: torch.cuda.Stream) -> list[torch.Tensor] | None:
    """Decode JPEGs, whose bytes are in host memory, into memory that nothing reads or writes any more.

    `stream` is the current one, of the device where the images go. None if one of them cannot be decoded.
    """
    record(stream).synchronize()
    try:
        return decoder.function(data, stream.device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        _log.debug("%s cannot decode a batch of %d JPEGs, which the processors do: %s", decoder.name, len(data), error)
        record(stream).synchronize()  # raises what has made the GPU unusable
        return None
