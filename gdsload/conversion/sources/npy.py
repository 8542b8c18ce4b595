"""Arrays of `.npy` files and `.npz` archives, out of bytes that are not trusted."""

from __future__ import annotations

import io
import math
import os
import threading
import zipfile
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.folders import is_path_passed_over

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


def map_npy(file: str) -> NDArray[Any]:
    """The array of a file, mapped, as `numpy.load` gives it.

    Raises:
        OSError, ValueError, EOFError, SyntaxError: as `numpy.load`.
    """
    with _parsing:
        return np.lib.format.open_memmap(file, mode="r")


class NpzArchive:
    """The arrays of an archive, each of which is read once, for all readers of its rows; zipfile compares checksums.

    A damaged archive raises errors of many types, which are those of `zipfile`.
    """

    def __init__(self, file: str | IO[bytes]) -> None:
        self._file = file
        self._read: dict[str, NDArray[Any]] = {}
        self._lock = threading.Lock()

    def members(self) -> list[str]:
        """The names of all that is in it: those of arrays end in ``.npy``."""
        with zipfile.ZipFile(self._file) as archive:
            return archive.namelist()

    def arrays(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Some of its arrays, by name."""
        with self._lock, zipfile.ZipFile(self._file) as archive:
            for name in names:
                if name not in self._read:
                    if f"{name}.npy" not in archive.namelist():
                        raise ValueError(f"member {name!r:.100} is no array")
                    self._read[name] = decode_npy(archive.read(f"{name}.npy"))
            return {name: self._read[name] for name in names}

    def __reduce__(self) -> tuple[object, ...]:
        return NpzArchive, (self._file,)


def is_left_out(member: str) -> bool:
    """Return whether another program keeps a member of this name beside arrays, as macOS does when it packs them.

    An array may have any name, so the name alone says that only of ``.DS_Store``, and if it begins with ``._``.
    """
    folder, _, base = member.rpartition("/")
    return base == ".DS_Store" or base.startswith("._") or is_path_passed_over(folder)
