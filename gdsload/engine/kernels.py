"""CUDA kernels by way of cupy, on torch's streams."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from gdsload.driver import driver
from gdsload.streams import stream_handle

__all__ = [
    "IN_VRAM",
    "OVER_PCIE",
    "WARP",
    "WORDS",
    "Grid",
    "cupy_works",
    "kernel",
    "launch",
    "reading_host",
]

WORDS = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short", 1: "unsigned char"}
"""CUDA's type for a word of so many bytes; kernels have it as WORD."""
WARP = 32


@dataclass(frozen=True, slots=True)
class Grid:
    """How a kernel is laid out on the multiprocessors.

    Attributes:
        blocks: thread blocks; with `paired` an even number.
        threads: threads of each.
        depth: words that a thread asks for before it waits for them.
        paired: whether two blocks at a time are a cluster, where the GPU has clusters: products of matrices occupy
            multiprocessors by twos, and so lose no more of them than there are blocks.
        remote: whether the kernel reads beyond the device's memory (see `gdsload.driver.Driver.remote`).
    """

    blocks: int
    threads: int
    depth: int
    paired: bool = False
    remote: bool = False

    @property
    def warps(self) -> int:
        """Warps of all blocks."""
        return self.blocks * self.threads // WARP

    def apply(self, source: str, *, clusters: bool) -> str:
        """A kernel's source with LAYOUT and DEPTH filled in, for a GPU that has clusters or not."""
        pairs = "__cluster_dims__(2, 1, 1) " if self.paired and clusters else ""
        layout = f"{pairs}__launch_bounds__({self.threads}, 1)"
        return source.replace("LAYOUT", layout).replace("DEPTH", str(self.depth))


IN_VRAM = Grid(1056, 256, 8)
"""For rows in the GPU's own memory."""
OVER_PCIE = Grid(4, 1024, 4, paired=True, remote=True)
"""For rows that come over the link: what saturates PCIe 5 x16, with no more multiprocessors than it takes (measured on
an H200; docs/design/0004)."""
_CLUSTERS = range(9, 12)
"""Major compute capabilities that have clusters of several blocks; those of GeForce RTX 50, 12, are of one."""


class _Stream:
    """A stream, in the words that libraries share."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def cupy_works() -> bool:
    """Whether cupy is there and finds CUDA."""
    return _cupy() is not None


@lru_cache(maxsize=32)
def kernel(source: str, name: str, unit: int, grid: Grid, device: torch.device) -> Any:
    """Compile a kernel for words of `unit` bytes: WORD in the source. LAYOUT and DEPTH are the grid's."""
    clusters = torch.cuda.get_device_capability(device)[0] in _CLUSTERS
    return _cupy().RawKernel(grid.apply(source.replace("WORD", WORDS[unit]), clusters=clusters), name)


def launch(compiled: Any, device: torch.device, grid: Grid, arguments: tuple[Any, ...]) -> None:
    """Queue a kernel on the stream that is current for torch."""
    if torch.cuda.current_device() != device.index:
        with torch.cuda.device(device):
            launch(compiled, device, grid, arguments)
        return
    handle = stream_handle(device)
    with _stream(handle, device.index), reading_host(device, really=grid.remote):
        compiled((grid.blocks,), (grid.threads,), arguments)


def reading_host(device: torch.device, *, really: bool = True) -> AbstractContextManager[None]:
    """Launch kernels on the current stream that read host memory: a training step's do not wait for their reads."""
    calls = driver() if really else None
    return nullcontext() if calls is None else calls.remote(stream_handle(device))


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
