"""CUDA kernels: compiled by cupy, and queued on torch's streams by the driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.system.driver import Driver, driver
from gdsload.system.memory import address_of
from gdsload.system.streams import stream_handle

_log = logging.getLogger("gdsload")

WORDS = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short", 1: "unsigned char"}
"""CUDA's type for a word of so many bytes: WORD in the kernels' sources."""
WARP = 32


@dataclass(frozen=True, slots=True)
class Grid:
    """The layout of a kernel on the multiprocessors.

    Attributes:
        blocks: thread blocks; with `paired` an even number.
        threads: threads of each.
        depth: words that a thread requests before it waits for them.
        paired: whether two blocks at a time are a cluster, where the GPU has clusters: matrix products occupy
            multiprocessors in pairs, and so lose no more of them than there are blocks.
    """

    blocks: int
    threads: int
    depth: int
    paired: bool = False

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
OVER_PCIE = Grid(4, 1024, 4, paired=True)
"""For rows that come over the link: it saturates PCIe 5 x16 with as few multiprocessors as possible (measured on an
H200; docs/design/0004)."""
_CLUSTERS = range(9, 12)
"""Major compute capabilities that have clusters of several blocks; those of GeForce RTX 50, 12, are of one."""


def can_launch() -> bool:
    """Return whether cupy is installed and finds CUDA, and kernels can be queued."""
    return _cupy() is not None and driver() is not None


def word_in(row_bytes: int) -> int:
    """Bytes of the largest word, of 16 at most, that divides a row."""
    return min(row_bytes & -row_bytes, 16)


def kernel(source: str, name: str, unit: int, grid: Grid, device: torch.device) -> int:
    """CUDA's handle of a kernel that takes one structure, for WORDs of `unit` bytes; compiled once in a process.

    WORD, and the grid's LAYOUT and DEPTH, are replaced in its source. The device must have an index.
    """
    key = (source, name, unit, grid, device)
    found = _compiled.get(key)
    if found is None:
        with _compiling.setdefault(key, threading.Lock()):  # several threads may want the same one: it takes 0.1 s
            found = _compiled.get(key)
            if found is None:
                found = _compiled[key] = _compile(source, name, unit, grid, device)
    return found[0]


_compiled: dict[Hashable, tuple[int, Any]] = {}
"""Of each kernel CUDA's handle, and cupy's object, which keeps it loaded."""
_compiling: dict[Hashable, threading.Lock] = {}


def _compile(source: str, name: str, unit: int, grid: Grid, device: torch.device) -> tuple[int, Any]:
    clusters = torch.cuda.get_device_capability(device)[0] in _CLUSTERS
    with torch.cuda.device(device), _driver().inside(device.index):
        compiled = _cupy().RawKernel(grid.apply(source.replace("WORD", WORDS[unit]), clusters=clusters), name)
        return compiled.kernel.ptr, compiled


def launch(
    function: int, device: torch.device, grid: Grid, params: NDArray[np.uint64], *, over_pcie: bool = False
) -> None:
    """Queue a kernel on the stream that is current for torch; `params` is its structure, as words.

    Raises:
        RuntimeError: if the driver refuses, or work that was queued before has failed.
    """
    calls, index = _driver(), device.index
    elsewhere = torch.cuda.current_device() != index
    with torch.cuda.device(device) if elsewhere else nullcontext(), calls.inside(index):
        layout, stream = (grid.blocks, grid.threads), stream_handle(device)
        calls.launch(function, layout, address_of(params), stream, own_sync_domain=index if over_pcie else None)


def _driver() -> Driver:
    calls = driver()
    if calls is None:
        raise RuntimeError("a kernel cannot be launched without CUDA's driver")
    return calls


_prepared: dict[Hashable, bool] = {}
"""By the name of a thing that is to be prepared: True if it has been made, or could not be."""
_turn = threading.Lock()


def prepare(what: Hashable, make: Callable[[], object]) -> None:
    """Have something made once in a process, in a thread, one thing at a time.

    On a machine that has never run a kernel, compiling one and loading torch's for sorting take up to a second, in
    which the drive is read. The thread is no daemon: the program's end waits for it, as code that is being loaded must
    not be taken down. An error is not raised here: it will be where the thing is needed.
    """
    if what in _prepared:
        return
    _prepared[what] = False
    try:
        threading.Thread(target=_prepare, args=(what, make), name="gdsload-prepare", daemon=False).start()
    except RuntimeError:  # the system has no further thread: it is made where it is needed
        _prepared[what] = True


def _prepare(what: Hashable, make: Callable[[], object]) -> None:
    with _turn:
        try:
            make()
        except Exception:
            _log.debug("%s cannot be prepared", what, exc_info=True)
        finally:
            _prepared[what] = True


def prepared(what: Hashable) -> bool:
    """Return whether something that `prepare` was called with has been made, or could not be."""
    return _prepared.get(what, False)


@lru_cache(maxsize=1)
def _cupy() -> Any:
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except Exception:  # errors of many kinds, where CUDA's libraries are missing
        return None
    return cupy
