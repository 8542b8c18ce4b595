"""Arrays of `.npz` archives, which are read whole, and whose checksums are compared."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Iterable, Sequence
from typing import IO, Any

from numpy.typing import NDArray

from gdsload.conversion.folders import is_path_passed_over
from gdsload.conversion.input_files import check_file
from gdsload.conversion.sources.npy import decode_npy

__all__ = ["NpzArchive", "is_left_out", "read_npz"]

_SUFFIX = ".npy"


class NpzArchive:
    """The arrays of an archive, each of which is read once, for all readers of its rows.

    A damaged archive raises errors of many types, which are those of `zipfile`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._read: dict[str, NDArray[Any]] = {}
        self._lock = threading.Lock()

    def members(self) -> list[str]:
        """The names of its arrays, with those that other programs keep beside them; of what is no array its own."""
        check_file(self._path)
        with zipfile.ZipFile(self._path) as archive:
            return [name.removesuffix(_SUFFIX) for name in archive.namelist()]

    def arrays(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Some of its arrays, by name."""
        with self._lock:
            self._read |= read_npz(self._path, [name for name in names if name not in self._read])
            return {name: self._read[name] for name in names}

    def __reduce__(self) -> tuple[object, ...]:
        return NpzArchive, (self._path,)


def read_npz(file: str | IO[bytes], names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names in an archive; zipfile compares the checksum of each."""
    found = {}
    with zipfile.ZipFile(file) as archive:
        there = set(archive.namelist())
        for name in names:
            if name + _SUFFIX not in there:
                raise ValueError(f"member {name!r:.100} is no array")
            found[name] = decode_npy(archive.read(name + _SUFFIX))
    return found


def is_left_out(name: str) -> bool:
    """Return whether another program keeps a member of this name beside arrays, as macOS does when it packs them.

    An array may have any name, so the name alone says that only of ``.DS_Store``, and if it begins with ``._``.
    """
    folder, _, base = name.rpartition("/")
    return base == ".DS_Store" or base.startswith("._") or is_path_passed_over(folder)
