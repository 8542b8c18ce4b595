"""Arrays of `.npz` archives: what is not compressed is mapped, and the checksum of everything is compared."""

from __future__ import annotations

import os
import struct
import threading
import zipfile
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.folders import is_path_passed_over
from gdsload.conversion.input_files import check_file, open_file
from gdsload.conversion.sources.npy import decode_npy, npy_header

__all__ = ["NpzArchive", "is_left_out"]

_SUFFIX = ".npy"
_SMALL_BYTES = 2**20
_CHUNK_BYTES = 2**22
_LOCAL = struct.Struct("<4s22xHH")
_ENCRYPTED = 1


class NpzArchive:
    """The arrays of an archive, each of which is opened once, for all readers of its rows.

    A damaged archive raises errors of many types, which are those of `zipfile`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._open: dict[str, NDArray[Any]] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """The names of its arrays; of a member that is none its own."""
        return [name.removesuffix(_SUFFIX) for name in self._members() if not is_left_out(name)]

    def left_out(self) -> list[str]:
        """The names of members that other programs keep beside arrays."""
        return [name for name in self._members() if is_left_out(name)]

    def _members(self) -> list[str]:
        check_file(self._path)
        with zipfile.ZipFile(self._path) as archive:
            return archive.namelist()

    def arrays(self, names: Iterable[str], *, compare: bool) -> dict[str, NDArray[Any]]:
        """Some of its arrays, by name; also those that are mapped are read to `compare` them with their checksums."""
        with self._lock, zipfile.ZipFile(self._path) as archive:
            for name in names:
                if compare or name not in self._open:
                    self._open[name] = self._array(archive, name, compare=compare)
            return {name: self._open[name] for name in names}

    def _array(self, archive: zipfile.ZipFile, name: str, *, compare: bool) -> NDArray[Any]:
        entries = {entry.filename: entry for entry in archive.infolist()}
        entry = entries.get(name + _SUFFIX)
        if entry is None:
            raise ValueError(f"member {name!r:.100} is no array")
        stored = entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & _ENCRYPTED
        if not stored or entry.file_size < _SMALL_BYTES:
            return decode_npy(archive.read(entry))
        if compare:
            with archive.open(entry) as member:  # which compares
                while member.read(_CHUNK_BYTES):
                    pass
        return _mapped(self._path, entry)

    def __reduce__(self) -> tuple[object, ...]:
        return NpzArchive, (self._path,)


def is_left_out(name: str) -> bool:
    """Return whether another program keeps a member of this name beside arrays, as macOS does when it packs them.

    An array may have any name, so the name alone says that only of ``.DS_Store``, and if it begins with ``._``.
    """
    folder, _, base = name.rpartition("/")
    return base == ".DS_Store" or base.startswith("._") or is_path_passed_over(folder)


def _mapped(path: str, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with open_file(path) as file:
        file.seek(entry.header_offset)
        magic, *lengths = _LOCAL.unpack(file.read(_LOCAL.size))
        begin = entry.header_offset + _LOCAL.size + sum(lengths)
        if magic != b"PK\x03\x04" or begin + entry.file_size > os.fstat(file.fileno()).st_size:
            raise zipfile.BadZipFile(f"{entry.filename!r:.100} is not where the archive says")
        file.seek(begin)
        shape, fortran, dtype = npy_header(file, entry.file_size)
        return np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")
