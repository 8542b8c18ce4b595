"""nvJPEG's hardware decoder, called as it is: one call for many images, into memory that is ours.

torchcodec and torchvision call it, too. What they do around it for each image (a tensor, two readings of its header,
objects of Python) takes longer than the hardware does: docs/design/0017 has the figures.

A decoder is used by one thread at a time.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import site
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gdsload.system.arrays import IntArray
from gdsload.system.memory import address_of

_log = logging.getLogger("gdsload")
_HARDWARE = 3  # nvjpegBackend_t
GREY, COLOURS = 2, 3
"""nvjpegOutputFormat_t: one plane of brightness, or three of RGB."""
_WORDS = 8
"""Of an nvjpegImage_t: the addresses of four planes, and the bytes of a row of each."""


def destinations(begins: IntArray, heights: IntArray, widths: IntArray, planes: int) -> IntArray:
    """The destinations of images, as nvJPEG has them: int64 ``[images, 8]``.

    `begins` has the address of each image's first plane, of 1 or 3; the others follow it.
    """
    found = np.zeros((len(begins), _WORDS), np.int64)
    for plane in range(planes):
        found[:, plane] = begins + plane * heights * widths
        found[:, 4 + plane] = widths
    return found


class NvJpeg:
    """A decoder, on the device that is current when it is made, which takes 0.6 s.

    Raises:
        RuntimeError: if the GPU has no hardware decoder, or nvJPEG does not find it.
    """

    def __init__(self, calls: Any) -> None:
        self._calls, self._handle = calls, ctypes.c_void_p()
        self._state, self._ready_for = ctypes.c_void_p(), (0, 0)  # a format and a number of images
        self._check("nvjpegCreateEx", _HARDWARE, None, None, 0, ctypes.byref(self._handle))
        try:
            self._check("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))
        except RuntimeError:
            self.close()
            raise

    def decode(self, pointers: IntArray, lengths: IntArray, targets: IntArray, form: int, stream: int) -> None:
        """Decode images; the hardware may write at once, whatever is queued on the stream, and be at it afterwards.

        Call it in a thread that has used the device before, and so has its context. `pointers` has the address of each
        image's bytes in host memory: pinned, or it takes longer. For `targets` see `destinations`; `form` is `GREY` or
        `COLOURS`, and `stream` CUDA's handle of the stream that waits for it.

        Raises:
            RuntimeError: if nvJPEG refuses them.
        """
        wanted = form, len(pointers)
        if self._ready_for != wanted:  # it takes less than a millisecond; a new state would take 0.1 s
            self._ready_for = 0, 0
            self._check("nvjpegDecodeBatchedInitialize", self._handle, self._state, len(pointers), 1, form)
            self._ready_for = wanted
        arrays = [np.ascontiguousarray(one, np.int64) for one in (pointers, lengths, targets)]
        where = [ctypes.c_void_p(address_of(one)) for one in arrays]
        self._check("nvjpegDecodeBatched", self._handle, self._state, *where, ctypes.c_void_p(stream))

    def close(self) -> None:
        """Release it; may be called twice. Nothing may be being decoded."""
        if self._state.value:
            self._calls.nvjpegJpegStateDestroy(self._state)
            self._state = ctypes.c_void_p()
        if self._handle.value:
            self._calls.nvjpegDestroy(self._handle)
            self._handle = ctypes.c_void_p()

    def _check(self, name: str, *arguments: object) -> None:
        if status := getattr(self._calls, name)(*arguments):
            raise RuntimeError(f"{name} has returned {status}")


def hardware_decoder(device: torch.device) -> NvJpeg | None:
    """A decoder of a GPU's hardware; None if there is none, or nvJPEG is nowhere to be found."""
    calls = _library()
    if calls is None:
        return None
    try:
        with torch.cuda.device(device):
            return NvJpeg(calls)
    except (RuntimeError, AttributeError) as error:  # no such hardware, or an older library
        _log.debug("nvJPEG's hardware decoder cannot be used: %s", error)
    return None


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """The library for the CUDA that torch has."""
    for name in _names(torch.version.cuda):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _names(version: str | None) -> Iterator[str]:
    """The paths to try: where the system looks, in NVIDIA's wheels, and in torchcodec's or torchvision's."""
    if version is None:
        return
    major = version.partition(".")[0]
    yield f"libnvjpeg.so.{major}"
    roots = dict.fromkeys([sysconfig.get_path("purelib"), *site.getsitepackages()])
    for pattern in (
        f"nvidia/*/lib/libnvjpeg.so.{major}",
        "torchcodec*/**/libnvjpeg*.so*",
        "torchvision.libs/libnvjpeg*",
    ):
        for root in roots:
            yield from map(str, sorted(Path(root).glob(pattern)))
    spec = importlib.util.find_spec("torchcodec")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        yield from map(str, sorted(Path(place).rglob("libnvjpeg*.so*")))
    yield from map(str, sorted(Path("/usr/local").glob(f"cuda*/lib64/libnvjpeg.so.{major}")))
