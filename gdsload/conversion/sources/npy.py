"""Arrays of `.npy` files, out of bytes that are not trusted."""

from __future__ import annotations

import io
import math
import os
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["decode_npy", "map_npy"]

_parsing = threading.RLock()
"""numpy reads headers by Python's parser, which now and then fails where several threads use it at once: Python 3.11
counts how deep it is for all of them together (https://github.com/python/cpython/issues/106905)."""
os.register_at_fork(before=_parsing.acquire, after_in_parent=_parsing.release, after_in_child=_parsing.release)


def decode_npy(content: bytes) -> NDArray[Any]:
    """An array of a `.npy` file. Memory is asked for only once its bytes are known to be there.

    Raises:
        ValueError: if it is damaged, or an array of objects.
    """
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with _parsing:
        shape, fortran, dtype = reader(stream)
    if dtype.hasobject:
        raise ValueError("an array of objects is a pickle, which is never loaded")
    left, wanted = len(content) - stream.tell(), math.prod(shape) * dtype.itemsize
    if wanted != left or min(shape, default=0) < 0:
        raise ValueError(f"its header promises {wanted} bytes, but {left} are there")
    array = np.frombuffer(content, dtype, offset=stream.tell()) if left else np.empty(0, dtype)
    return array.reshape(shape, order="F" if fortran else "C").copy()


def map_npy(file: str) -> Any:
    """The array of a file, mapped, or the archive of several, as `numpy.load` gives it.

    Raises:
        OSError, ValueError, EOFError, SyntaxError: as `numpy.load`.
    """
    with _parsing:
        return np.load(file, mmap_mode="r", allow_pickle=False)
