"""nvJPEG's batched decoder, called by itself: what of a decoder's rate is the hardware's, and what its wrapper's.

Only what `benchmarks.jpeg_decoders` measures: images of one size, memory that is made once, no checks of what they are.
"""

from __future__ import annotations

import ctypes
import importlib.util
import site
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

__all__ = ["BACKENDS", "BatchedDecoder", "engines"]

BACKENDS = {"hardware": 3, "gpu": 2}
"""nvjpegBackend_t: the JPEG engines, or the multiprocessors with Huffman decoding on them, too."""
_FORMATS = {"planes": 3, "rows": 5}  # nvjpegOutputFormat_t: RGB, RGBI
_SUBSAMPLED = 2  # NVJPEG_CSS_420


class _Image(ctypes.Structure):
    _fields_ = (("channel", ctypes.c_void_p * 4), ("pitch", ctypes.c_size_t * 4))


def _candidates() -> Iterator[str]:
    yield from ("libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so")
    for package in ("torchcodec", "torchvision"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).parent
            for place in (folder, folder.parent / f"{package}.libs"):
                yield from map(str, sorted(place.rglob("libnvjpeg*.so*")))
    for folder in map(Path, site.getsitepackages()):
        yield from map(str, sorted(folder.glob("nvidia/*/lib/libnvjpeg.so*")))
    yield from map(str, sorted(Path("/usr/local").glob("cuda*/**/libnvjpeg.so*")))


def _library() -> ctypes.CDLL:
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise RuntimeError("libnvjpeg is nowhere to be found")


def _check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"{what} has returned {status}")


def engines() -> dict[str, int]:
    """How many JPEG engines the GPU has, and how many cores each."""
    calls, handle = _library(), ctypes.c_void_p()
    _check(calls.nvjpegCreateEx(BACKENDS["hardware"], None, None, 0, ctypes.byref(handle)), "nvjpegCreateEx")
    count, cores = ctypes.c_uint(), ctypes.c_uint()
    status = calls.nvjpegGetHardwareDecoderInfo(handle, ctypes.byref(count), ctypes.byref(cores))
    _check(status, "nvjpegGetHardwareDecoderInfo")
    return {"engines": count.value, "cores_of_each": cores.value}


class BatchedDecoder:
    """Decodes batches of JPEGs of one size, into the same memory each time.

    Args:
        device: the GPU.
        count: images of a batch.
        size: their height and width.
        backend: one of `BACKENDS`.
        form: ``"planes"`` or ``"rows"`` of pixels.
        allocated: whether nvJPEG allocates its memory beforehand.
    """

    def __init__(
        self, device: torch.device, count: int, size: tuple[int, int], backend: str, form: str, *, allocated: bool
    ) -> None:
        self._calls, self._handle, self._state = _library(), ctypes.c_void_p(), ctypes.c_void_p()
        height, width = size
        calls, self._count = self._calls, count
        status = calls.nvjpegCreateEx(BACKENDS[backend], None, None, 0, ctypes.byref(self._handle))
        _check(status, "nvjpegCreateEx")
        _check(calls.nvjpegJpegStateCreate(self._handle, ctypes.byref(self._state)), "nvjpegJpegStateCreate")
        if allocated:
            _check(
                calls.nvjpegDecodeBatchedPreAllocate(
                    self._handle, self._state, count, width, height, _SUBSAMPLED, _FORMATS[form]
                ),
                "nvjpegDecodeBatchedPreAllocate",
            )
        status = calls.nvjpegDecodeBatchedInitialize(self._handle, self._state, count, 1, _FORMATS[form])
        _check(status, "nvjpegDecodeBatchedInitialize")
        self.out = torch.empty((count, height, width, 3), dtype=torch.uint8, device=device)
        self._images = (_Image * count)()
        each = height * width
        for number, image in enumerate(self._images):
            at = self.out.data_ptr() + number * 3 * each
            if form == "rows":
                image.channel[0], image.pitch[0] = at, 3 * width
                continue
            for channel in range(3):
                image.channel[channel], image.pitch[channel] = at + channel * each, width

    def __call__(self, data: Sequence[torch.Tensor], stream: torch.cuda.Stream) -> None:
        """Decode a batch, and wait for it.

        Args:
            data: the encoded bytes, in host memory.
            stream: where it is queued.
        """
        pointers = (ctypes.c_void_p * self._count)(*[one.data_ptr() for one in data])
        lengths = (ctypes.c_size_t * self._count)(*map(len, data))
        status = self._calls.nvjpegDecodeBatched(
            self._handle, self._state, pointers, lengths, self._images, ctypes.c_void_p(stream.cuda_stream)
        )
        _check(status, "nvjpegDecodeBatched")
        stream.synchronize()
