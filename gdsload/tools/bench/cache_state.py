"""Files into the page cache and out of it, with a check of the kernel's whether they are there.

The owner of files uses mincore, which looks at every page and touches none; for others it reports all pages as
resident. They use reads that do not wait, at some places of each file. Either way may not work on a file system, so it
must see a page that was just read before its answer "none" counts.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import ReadError
from gdsload.shards.local_files import open_regular
from gdsload.shards.page_cache import is_resident
from gdsload.system.memory import map_file, unmap
from gdsload.system.probe.mounts import IN_MEMORY
from gdsload.system.units import format_bytes

__all__ = ["Residency", "drop", "fill", "look", "not_cold", "not_hot", "why_blind"]

_PLACES = 64
_STRAY_SHARE = 0.001
"""Share of the pages that may be on the wrong side: it changes a rate by as much."""
_ATTEMPTS = 5
_READ_BYTES = 8 * 2**20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


@dataclass(frozen=True, slots=True)
class Residency:
    """The number of some files' pages that are in the page cache.

    Attributes:
        places: how many pages were looked at.
        resident: how many of them are there.
        asked: ``"mincore"``, for every page; ``"RWF_NOWAIT"``, for some; or both.
    """

    places: int
    resident: int
    asked: str

    @property
    def share(self) -> float:
        """Share of the pages that are there; 1 for no pages."""
        return self.resident / self.places if self.places else 1.0

    @property
    def cold(self) -> bool:
        """True if the files are not in the page cache, but for stray pages."""
        return bool(self.places) and self.share <= _STRAY_SHARE

    @property
    def hot(self) -> bool:
        """True if the files are in the page cache, but for stray pages."""
        return self.share >= 1 - _STRAY_SHARE

    def __str__(self) -> str:
        return f"{self.resident} of {self.places} pages in the page cache, by {self.asked}"


def look(files: Sequence[str]) -> Residency:
    """Look which pages of some files are in the page cache.

    Raises:
        ReadError: if one cannot be opened.
    """
    places = resident = 0
    asked: dict[str, None] = {}
    for file in files:
        fd = open_regular(file)
        try:
            method, answers = _answers(fd, file, range(os.fstat(fd).st_size))
        finally:
            os.close(fd)
        asked[method] = None
        places, resident = places + answers.size, resident + int(answers.sum())
    return Residency(places, resident, " and ".join(asked) or "nothing")


def why_blind(files: Sequence[str]) -> str:
    """The reason why it cannot be found out whether a page is in the page cache; empty if it can."""
    for file in {os.stat(file).st_dev: file for file in files}.values():
        fd = open_regular(file)
        try:
            os.pread(fd, 1, 0)
            method, answers = _answers(fd, file, range(1))
        finally:
            os.close(fd)
        if not answers.all():
            return f"{method} does not see a page that was just read, so nothing it says about {file} counts"
    return ""


def drop(files: Sequence[str]) -> Residency:
    """Drop files from the page cache, and return what is left. Pages that a process maps or writes stay."""
    for attempt in range(_ATTEMPTS):
        for file in files:
            _drop(file)
        found = look(files)
        if found.cold:
            break
        time.sleep(0.02 * 2**attempt)  # what was being read ahead may have come in meanwhile
    if "RWF_NOWAIT" in found.asked:
        for file in files:  # newer kernels begin to read a page that they were asked for
            _drop(file)
    return found


def fill(files: Sequence[str]) -> Residency:
    """Read whole files, and return which of their pages are in the page cache then."""
    buffer = bytearray(_READ_BYTES)
    for file in files:
        with open(file, "rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass
    return look(files)


def not_cold(found: Residency, file_system: str) -> str:
    """A note on files that could not be dropped from the page cache."""
    why = (
        f"a {file_system} has its files in memory alone"
        if file_system in IN_MEMORY
        else "another process maps, reads or writes them, or the file system keeps them"
    )
    return f"{found}, after they were dropped: {why}"


def not_hot(num_bytes: int, room: int) -> str:
    """A note on a dataset that does not fit into memory."""
    return f"the dataset has {format_bytes(num_bytes)}, and {format_bytes(room)} of memory are to be had"


def _drop(file: str) -> None:
    fd = open_regular(file)
    try:
        with suppress(OSError):  # a read-only file system has nothing to write back
            os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _answers(fd: int, file: str, part: range) -> tuple[str, NDArray[np.bool_]]:
    """The way that was used, and a mask of the pages (or some) of a range of a file that are in the page cache."""
    if not part:
        return "mincore", np.zeros(0, bool)
    if os.fstat(fd).st_uid == os.geteuid():
        return "mincore", _mincore(fd, file, len(part))
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # or asking for a page would read ahead
    places = np.unique(np.linspace(part[0], part[-1], _PLACES, dtype=np.int64) // mmap.PAGESIZE * mmap.PAGESIZE)
    return "RWF_NOWAIT", np.array([is_resident(fd, int(place)) for place in places], bool)


def _mincore(fd: int, file: str, nbytes: int) -> NDArray[np.bool_]:
    found = np.zeros(-(-nbytes // mmap.PAGESIZE), np.uint8)
    address = map_file(fd, nbytes, file)
    try:
        failed = _libc.mincore(address, nbytes, found.ctypes.data)
    finally:
        unmap(address, nbytes)
    if failed:
        raise ReadError(f"mincore does not say what is in the page cache: {os.strerror(ctypes.get_errno())}", file=file)
    return (found & 1).astype(bool)
