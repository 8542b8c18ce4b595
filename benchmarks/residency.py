"""The residency of files in the page cache: asked of the kernel, not assumed."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["Residency", "files_under", "keep_warm", "measure", "warm"]

_READ_BYTES = 8 * 2**20
_WARM_TRIES = 3
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Residency:
    """Pages of some files, and how many of them are in the page cache."""

    files: int
    bytes: int
    pages: int
    resident_pages: int

    @property
    def fraction(self) -> float:
        """Resident share of the pages; 1 for no pages."""
        return self.resident_pages / self.pages if self.pages else 1.0


def files_under(folder: Path) -> list[Path]:
    """All plain files below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def warm(files: Iterable[Path]) -> None:
    """Read files whole, so that they come into the page cache."""
    buffer = bytearray(_READ_BYTES)
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def keep_warm(files: Sequence[Path]) -> Residency:
    """Ask the kernel, and read again what is not in the page cache; what it says at last."""
    found = measure(files)
    for _ in range(_WARM_TRIES):
        if found.fraction == 1:
            break
        warm(files)
        found = measure(files)
    return found


def measure(files: Iterable[Path]) -> Residency:
    """Ask mincore.

    Raises:
        PermissionError: for a file that this process does not own: the kernel then calls every page resident.
        OSError: if the kernel refuses.
    """
    count = size = pages = resident = 0
    for path in files:
        count += 1
        length = path.stat().st_size
        if path.stat().st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to somebody else, to whom alone mincore tells the truth")
        if length:
            found = _resident(path, length)
            pages, resident, size = pages + len(found), resident + int(found.sum()), size + length
    return Residency(count, size, pages, resident)


def _resident(path: Path, length: int) -> NDArray[np.uint8]:
    """One 0 or 1 a page."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        found = np.empty(-(-length // mmap.PAGESIZE), np.uint8)
        address, out = ctypes.c_void_p(view.ctypes.data), ctypes.c_void_p(found.ctypes.data)
        del view  # else the mapping cannot be closed
        if _libc.mincore(address, ctypes.c_size_t(length), out):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
        return np.bitwise_and(found, np.uint8(1))
