"""CUDA kernels by way of cupy, on torch's streams."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from gdsload.streams import stream_handle

__all__ = ["THREADS", "WORDS", "cupy_works", "kernel", "launch"]

WORDS = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short", 1: "unsigned char"}
"""CUDA's type for a word of so many bytes; kernels have it as WORD."""
THREADS = 256


class _Stream:
    """A stream, in the words that libraries share."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def cupy_works() -> bool:
    """Whether cupy is there and finds CUDA."""
    return _cupy() is not None


@lru_cache(maxsize=16)
def kernel(source: str, name: str, unit: int) -> Any:
    """Compile a kernel for words of `unit` bytes."""
    return _cupy().RawKernel(source.replace("WORD", WORDS[unit]), name)


def launch(compiled: Any, device: torch.device, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
    """Queue a kernel of `THREADS` threads a block on the stream that is current for torch."""
    if torch.cuda.current_device() == device.index:
        with _stream(stream_handle(device), device.index):
            compiled(grid, (THREADS,), arguments)
    else:
        with torch.cuda.device(device), _stream(stream_handle(device), device.index):
            compiled(grid, (THREADS,), arguments)


@lru_cache(maxsize=64)
def _stream(handle: int, index: int) -> Any:
    """A stream of the current device, which has that index, as cupy's; before cupy 14 there was another way."""
    # cupy's streams know their device. All default streams have one handle, so the handle does not say whose it is.
    cuda = _cupy().cuda
    if hasattr(cuda.Stream, "from_external"):
        return cuda.Stream.from_external(_Stream(handle))
    return cuda.ExternalStream(handle, index)


@lru_cache(maxsize=1)
def _cupy() -> Any:
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except Exception:  # it raises many things where CUDA's libraries are missing
        return None
    return cupy
