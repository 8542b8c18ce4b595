"""Runs of bytes from anywhere to a GPU, by its copy engine, which takes no multiprocessor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.system.arrays import IntArray
from gdsload.system.driver import driver
from gdsload.system.memory_views import dense_view
from gdsload.system.streams import DeviceBytes, stream_handle

LONG_BYTES = 64 * 1024
"""Mean length of runs from which the copy engine copies them: over PCIe 5 x16 a run then takes longer than queueing it
together with many others, though not as long as queueing it by itself (docs/design/0004)."""

SHORT_BYTES = 32 * 1024
"""Runs that are shorter are queued one by one. Where many of 1 to 8 KB were under way by calls for many, on two and
three streams, the driver crashed within seconds, and by calls of 1024 also those of 10 to 40 KB (an H200, driver
580.159; by one stream, and from 8 KB on by calls of 256, millions were as they should be)."""


def copies_scattered_runs() -> bool:
    """Return whether many runs can be queued at once: queueing one by itself takes longer than copying 64 KiB."""
    calls = driver()
    return calls is not None and calls.copies_many


def copy_runs(
    addresses: IntArray | list[int],
    nbytes: IntArray | list[int],
    on_host: Callable[[IntArray], NDArray[np.bool_]],
    out: torch.Tensor,
) -> None:
    """Queue copies of runs, concatenated, to the beginning of `out`, on the current stream; see `copy_to`."""
    lengths = np.asarray(nbytes, np.int64)
    copy_to(addresses, lengths, out.data_ptr() + np.cumsum(lengths) - lengths, on_host, out.device)


def copy_to(
    addresses: IntArray | list[int],
    nbytes: IntArray,
    targets: IntArray,
    on_host: Callable[[IntArray], NDArray[np.bool_]],
    device: torch.device,
) -> None:
    """Queue copies of runs on the current stream, each from its address to its target on the device.

    `on_host` returns which of some addresses are of host memory; it must be registered with CUDA, or the copy would
    wait.
    """
    calls, sources = driver(), np.asarray(addresses, np.int64)
    if calls is None or device.index is None:
        _by_torch(sources, nbytes, targets, on_host(sources), device)
        return
    handle = stream_handle(device)
    # Entering the device that is current already takes several calls more.
    elsewhere = torch.cuda.current_device() != device.index
    with torch.cuda.device(device) if elsewhere else nullcontext(), calls.inside(device.index):
        one_by_one = nbytes < SHORT_BYTES
        long = [np.ascontiguousarray(column[~one_by_one]) for column in (targets, sources, nbytes)]
        if len(long[0]) < 2 or not calls.copy_many(long[0], long[1], long[2], handle):
            one_by_one[:] = True
        columns = (column[one_by_one].tolist() for column in (targets, sources, nbytes))
        for target, source, length in zip(*columns, strict=True):
            calls.copy_any(target, source, length, handle)


def _by_torch(
    sources: IntArray, nbytes: IntArray, targets: IntArray, on_host: NDArray[np.bool_], device: torch.device
) -> None:
    columns = (column.tolist() for column in (sources, nbytes, targets, on_host))
    for address, length, target, host in zip(*columns, strict=True):
        memory = dense_view(1, length, address, 1)[0] if host else _on_device(address, length, device)
        _on_device(target, length, device).copy_(memory, non_blocking=True)


def _on_device(address: int, nbytes: int, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return dense_view(1, nbytes, address, 1)[0]
    return torch.as_tensor(DeviceBytes(address, nbytes), device=device)
