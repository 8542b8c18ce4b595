"""The page cache: files are dropped from it or read into it, and mincore checks which of their pages it has.

mincore touches no page. It only answers users who may write to the file; to others all pages look resident. It does
not work on every file system, so it must see a page that was just read before "no pages" is trusted.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import ReadError
from gdsload.shards.local_files import open_regular
from gdsload.system.memory import map_file, unmap
from gdsload.system.pool import Pool

_STRAY_SHARE = 0.001
"""Share of the pages that may be on the wrong side: it changes a rate by as much."""
_ATTEMPTS = 5
_READ_BYTES = 8 * 2**20
_READERS = 16
_MOST_PAGES, _DRAWN_PAGES = 2**20, 2**15
"""Of more pages, some are drawn: to look at all pages of 200 GB would take two seconds, each time."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


@dataclass(frozen=True, slots=True)
class Residency:
    """How many pages some files have, and how many of these are in the page cache."""

    pages: int
    resident: int

    @property
    def share(self) -> float:
        """Share of the pages that are there; 1 for no pages."""
        return self.resident / self.pages if self.pages else 1.0

    @property
    def cold(self) -> bool:
        """True if the files are not in the page cache, but for stray pages."""
        return bool(self.pages) and self.share <= _STRAY_SHARE

    @property
    def hot(self) -> bool:
        """True if the files are in the page cache, but for stray pages."""
        return self.share >= 1 - _STRAY_SHARE

    def __str__(self) -> str:
        return f"{self.resident} of {self.pages} pages in the page cache, by mincore"


def look(files: Sequence[str]) -> Residency:
    """Look which pages of some files are in the page cache: of all of them, or of 32768 that are drawn.

    Raises:
        ReadError: if one cannot be opened.
    """
    pages = np.array([-(-os.stat(file).st_size // mmap.PAGESIZE) for file in files], np.int64)
    ends = pages.cumsum()
    if (total := int(pages.sum())) <= _MOST_PAGES:
        found = [_pages(file, [0], count) for file, count in zip(files, pages.tolist(), strict=True) if count]
    else:
        places = np.sort(np.random.default_rng().integers(total, size=_DRAWN_PAGES))
        by_file = zip(files, ends - pages, np.split(places, np.searchsorted(places, ends[:-1])), strict=True)
        found = [_pages(file, (drawn - first).tolist()) for file, first, drawn in by_file if len(drawn)]
    return Residency(sum(map(len, found)), sum(int(some.sum()) for some in found))


def resident_share(places: Iterable[tuple[str, int]]) -> float:
    """Share of some pages, given by file and a byte in them, that are in the page cache; 0 for none.

    Raises:
        ReadError: if a file cannot be opened, or mincore fails.
    """
    by_file: dict[str, list[int]] = {}
    for file, offset in places:
        by_file.setdefault(file, []).append(offset // mmap.PAGESIZE)
    found = [_pages(file, pages) for file, pages in by_file.items()]
    return float(np.concatenate(found).mean()) if found else 0.0


def why_blind(files: Sequence[str]) -> str:
    """The reason why it cannot be found out which pages are in the page cache; empty if it can."""
    for file in files:
        if not (os.access(file, os.W_OK) or os.stat(file).st_uid == os.geteuid()):
            return f"the kernel shows the page cache of {file} only to users who may write to it"
    for file in {os.stat(file).st_dev: file for file in files}.values():
        with open(file, "rb", buffering=0) as stream:
            stream.read(1)
        if not resident_share([(file, 0)]):
            return f"mincore does not report a page that was just read, so its results for {file} cannot be trusted"
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
    return found


def who_maps(files: Sequence[str]) -> str:
    """Another process that maps one of these files, as ``pid 4711 python``; empty if none is seen."""
    real = {os.path.realpath(file) for file in files}
    for process in filter(str.isdecimal, os.listdir("/proc")):
        if int(process) == os.getpid():
            continue
        with suppress(OSError):  # it has ended, or is another user's
            with open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as maps:
                mapped = {line[line.index("/") :].rstrip("\n") for line in maps if "/" in line}
            if mapped & real:
                with open(f"/proc/{process}/comm", encoding="utf-8", errors="replace") as name:
                    return f"pid {process} {name.read().strip()}"
    return ""


def fill(files: Sequence[str]) -> Residency:
    """Read whole files, several at once, and return which of their pages are in the page cache then."""
    with closing(Pool(min(_READERS, len(files)), "gdsload-fill")) as pool:
        pool.run([partial(_read, file) for file in files]).wait()
    return look(files)


def _read(file: str) -> None:
    buffer = bytearray(_READ_BYTES)
    with open(file, "rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


def _drop(file: str) -> None:
    fd = open_regular(file)
    try:
        with suppress(OSError):  # a read-only file system has nothing to write back
            os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _pages(file: str, begins: Sequence[int], count: int = 1) -> NDArray[np.bool_]:
    """For each of some pages of a file, and so many that follow it: True if it is in the page cache."""
    found = np.zeros((len(begins), count), np.uint8)
    fd = open_regular(file)
    try:
        nbytes = os.fstat(fd).st_size
        address = map_file(fd, nbytes, file)
    finally:
        os.close(fd)
    try:
        for row, begin in zip(found, begins, strict=True):
            if _libc.mincore(address + begin * mmap.PAGESIZE, count * mmap.PAGESIZE, row.ctypes.data):
                why = os.strerror(ctypes.get_errno())
                raise ReadError(f"mincore does not say what is in the page cache: {why}", file=file)
    finally:
        unmap(address, nbytes)
    return (found & 1).astype(bool).reshape(-1)
