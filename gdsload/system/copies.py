"""Runs of bytes from anywhere to a GPU, by its copy engine, which takes no multiprocessor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.system.arrays import IntArray
from gdsload.system.driver import driver
from gdsload.system.memory import dense_view
from gdsload.system.streams import DeviceBytes, stream_handle

__all__ = ["LONG_BYTES", "copies_scattered_runs", "copy_runs"]


LONG_BYTES = 64 * 1024
"""Mean length of runs from which the copy engine copies them: over PCIe 5 x16 a run then takes longer than queueing it
together with many others, though not as long as queueing it by itself (docs/design/0004)."""


def copies_scattered_runs() -> bool:
    """Whether many runs can be queued at once: queueing each by itself takes longer than copying 64 KiB."""
    calls = driver()
    return calls is not None and calls.copies_many


def copy_runs(
    addresses: IntArray | list[int],
    nbytes: IntArray | list[int],
    on_host: Callable[[IntArray], NDArray[np.bool_]],
    out: torch.Tensor,
) -> None:
    """Queue copies of runs, concatenated, to the beginning of `out`, on the current stream.

    Args:
        addresses: address of each run.
        nbytes: bytes of each.
        on_host: which of some addresses are of host memory; it must be registered with CUDA, or the copy would wait.
        out: contiguous tensor on the device.
    """
    calls = driver()
    if calls is None or out.device.index is None:
        addresses, nbytes = np.asarray(addresses), np.asarray(nbytes)
        _by_torch(addresses, nbytes, on_host(addresses), out.view(-1).view(torch.uint8))
        return
    target, handle = out.data_ptr(), stream_handle(out.device)
    # Entering the device that is current already takes several calls more.
    elsewhere = torch.cuda.current_device() != out.device.index
    with torch.cuda.device(out.device) if elsewhere else nullcontext(), calls.inside(out.device.index):
        if len(addresses) > 1:
            lengths = np.ascontiguousarray(nbytes, np.int64)
            targets = target + np.cumsum(lengths) - lengths
            if calls.copy_many(targets, np.ascontiguousarray(addresses, np.int64), lengths, handle):
                return
        for address, count in zip(addresses, nbytes, strict=True):
            length = int(count)
            calls.copy_any(target, int(address), length, handle)
            target += length


def _by_torch(addresses: IntArray, nbytes: IntArray, on_host: NDArray[np.bool_], out: torch.Tensor) -> None:
    position = 0
    for address, length, host in zip(addresses.tolist(), nbytes.tolist(), on_host.tolist(), strict=True):
        if host:
            source = dense_view(1, length, address, 1)[0]
        else:
            source = torch.as_tensor(DeviceBytes(address, length), device=out.device)
        out[position : position + length].copy_(source, non_blocking=True)
        position += length
