"""Tensors over addresses of the host's memory."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import torch

ADDRESS_SPACE = 1 << 52
"""Above every host address: 64-bit processors give user space at most 52 bits unless asked for more."""
# From the second page on, because torch takes a null pointer for "no memory".
_SPACE: Any = (ctypes.c_char * (ADDRESS_SPACE - mmap.PAGESIZE)).from_address(mmap.PAGESIZE)

UNIT_DTYPES = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
_NUMPY_DTYPES: dict[int, np.dtype[Any]] = {unit: np.dtype(f"{'i' if unit > 1 else 'u'}{unit}") for unit in UNIT_DTYPES}


def row_view(unit: int, row_bytes: int, low: int, high: int) -> torch.Tensor:
    """The host memory from address `low` to `high` as overlapping rows; row i begins at address ``low + i * unit``.

    `unit` is bytes of an element, which divides all the others. `high` is the address of the last row; both so that
    ``((high - low) // unit + 1) * row_bytes`` is below 2**63.
    """
    return _view(unit, ((high - low) // unit + 1, row_bytes // unit), low, (unit, unit))


def dense_view(unit: int, row_bytes: int, address: int, rows: int) -> torch.Tensor:
    """The host memory from an address on as rows of elements of `unit` bytes, which divides all the others."""
    return _view(unit, (rows, row_bytes // unit), address, (row_bytes, unit))


def _view(unit: int, shape: tuple[int, int], address: int, strides: tuple[int, int]) -> torch.Tensor:
    # Made by numpy: each of torch's own views releases the interpreter lock, and another thread may keep it.
    return torch.from_numpy(np.ndarray(shape, _NUMPY_DTYPES[unit], _SPACE, address - mmap.PAGESIZE, strides))
