"""Runs of bytes from anywhere to a GPU, by its copy engine, which leaves the multiprocessors alone."""

from __future__ import annotations

import mmap

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.memory import flat_view
from gdsload.streams import DeviceBytes

__all__ = ["copy_runs"]


def copy_runs(
    addresses: NDArray[np.int64], nbytes: NDArray[np.int64], on_host: NDArray[np.bool_], out: torch.Tensor
) -> None:
    """Queue copies of runs to the begin of `out`, one behind the other, on the current stream.

    Args:
        addresses: address of each run.
        nbytes: bytes of each.
        on_host: which of them lie in host memory; it must be registered with CUDA, or the copy would wait.
        out: vector of bytes on the device.
    """
    position = 0
    for address, length, host in zip(addresses.tolist(), nbytes.tolist(), on_host.tolist(), strict=True):
        if host:
            begin = address - mmap.PAGESIZE
            source = flat_view(1)[begin : begin + length]
        else:
            source = torch.as_tensor(DeviceBytes(address, length), device=out.device)
        out[position : position + length].copy_(source, non_blocking=True)
        position += length
