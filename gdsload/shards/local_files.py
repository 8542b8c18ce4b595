"""Files of this machine's file systems: opened on first use, few descriptors at a time, and the same files all along.

Descriptors are kept for the least recently used few only, because a dataset may have more shards than a process may
have open files.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import DatasetNotFoundError, FileChangedError, LoaderClosedError, ReadError, ShortReadError
from gdsload.shards.drive_order import DriveOrder, file_system_of
from gdsload.shards.guard import Guard
from gdsload.shards.handles import HandleTable, Lent
from gdsload.shards.identity import ShardSource, Watch, gone
from gdsload.shards.page_cache import is_resident
from gdsload.shards.prepared_reads import PreparedReads
from gdsload.shards.reads import Extents, distinct
from gdsload.shards.shard_folders import link_target
from gdsload.shards.status import NO_DESCRIPTORS, close, read_error, status_of
from gdsload.system.arrays import IntArray
from gdsload.system.bulk_reads import BulkReads
from gdsload.system.memory import map_file, unmap

_AHEAD_BYTES = 128 * 1024
"""Linux cuts longer requests to the size that the drive reads at once, or reads ahead: this is the smallest that is
usual."""
_UNKNOWN = -1
"""The mark of a file that has not been tried with O_DIRECT."""


def open_regular(path: str, *, follow_links: bool = True, flags: int = 0, folder: int | None = None) -> int:
    """Open a regular file for reading; anything else (a pipe would block for ever) is refused.

    Args:
        path: its path.
        follow_links: whether it may be a symbolic link.
        flags: further flags for open(2).
        folder: descriptor of the folder it is in, to have it from there even if the folder is moved meanwhile.

    Raises:
        DatasetNotFoundError: if there is no such file.
        ReadError: if it cannot be opened, with the system's reason in `errno`; or is no regular file.
    """
    flags |= os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    try:
        fd = os.open(path if folder is None else os.path.basename(path), flags, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetNotFoundError(
            "there is no such file", file=path, remedy="Restore it, or write the dataset again."
        ) from None
    except OSError as error:
        remedy = _about_link(path) if error.errno == errno.ELOOP and not follow_links else None
        raise read_error("the file cannot be opened", error, path, remedy) from None
    try:
        if not stat.S_ISREG(status_of(fd, path).st_mode):
            raise ReadError("it is no regular file", file=path, remedy="Put the shard in its place.")
    except BaseException:
        close(fd)
        raise
    return fd


def _about_link(path: str) -> str | None:
    try:
        link_target(*os.path.split(path))
    except ReadError as error:
        return f"It is {error.message}. {error.remedy}"
    except OSError:
        return None  # it is no link
    return "It is a symbolic link, which must not be here."


def pread_exact(fd: int, into: memoryview, offset: int, file: str) -> None:
    """Fill `into` with the bytes at `offset`.

    Raises:
        ShortReadError: if the file ends before.
        ReadError: if the disk fails.
    """
    position = 0
    while position < len(into):
        try:
            count = os.preadv(fd, [into[position:]], offset + position)
        except OSError as error:
            raise read_error("reading failed", error, file, offset=offset + position) from error
        if count == 0:
            raise ShortReadError(
                f"the file ended {len(into) - position} bytes too early",
                file=file,
                offset=offset + position,
                remedy="It was cut short after it was written: restore it, or write the dataset again.",
            )
        position += count


class LocalFiles:
    """Local files, which are only ever read; see `Files`.

    Args:
        sources: the files, in order.
        mapped: whether they are mapped into memory; if not, they are only ever read with preadv.
    """

    made_reader: Callable[[], BulkReads] = BulkReads
    """Makes reads into host memory. A subclass may read in another way."""
    drive_key: Callable[[ShardSource], Hashable] = staticmethod(file_system_of)
    """Tells apart the drives of shards, each of which has its own readers."""

    def __init__(self, sources: Sequence[ShardSource], *, mapped: bool) -> None:
        self.sources, self.mapped = tuple(sources), mapped
        count = len(self.sources)
        self.base = np.zeros(count, np.int64)
        self.sizes = np.zeros(count, np.int64)
        self.opened = np.zeros(count, bool)
        self._unopened = count
        self._watch = Watch(self.sources)
        self.check, self.check_now = self._watch.check, self._watch.check_now
        self.check_passed, self.length = self._watch.check_passed, self._watch.length
        self._guard = Guard([source.path for source in self.sources], self.base, self._read)
        self.only, self.missing = self._guard.only, self._guard.missing
        self.ensure, self.populate = self._guard.ensure, self._guard.populate
        self.through = HandleTable(count, partial(self._descriptor, flags=0), close)
        """Descriptors for reads through the page cache."""
        self.around = HandleTable(count, partial(self._descriptor, flags=os.O_DIRECT), close)
        """Descriptors for reads around it. Ask `allow_direct` which files can have one."""
        self._direct = np.full(count, _UNKNOWN, np.int8)
        self.kept = np.zeros(count, bool)
        self.reader = self.made_reader()
        self.drives = DriveOrder([self.drive_key(source) for source in self.sources])
        self._mappings = count, (np.zeros(0, np.int64), np.zeros(0, np.int64))
        """The number of files that were not open at the last look at the ranges of mapped files, and those ranges."""
        self._lock = threading.RLock()
        self._closed = False

    def ensure_open(self, files: IntArray) -> None:
        if not self._unopened or self.opened[files].all():  # the first is known at once, and stays true
            return
        for file in distinct(files, len(self.sources)):
            with self._lock:
                self.refuse_closed()
                if not self.opened[file]:
                    self._open(int(file))

    def refuse_closed(self) -> None:
        if self._closed:
            raise LoaderClosedError("the shards were closed")

    def _open(self, file: int) -> None:
        with self.descriptor(file) as fd:
            self.sizes[file] = nbytes = self.length(file)
            if self.mapped:
                self.base[file] = map_file(fd, nbytes, self.sources[file].path)
                self._guard.opened(file, nbytes)
            self.opened[file] = True
            self._unopened -= 1

    def read_into(self, file: int, offset: int, memory: memoryview) -> None:
        with self.descriptor(file) as fd:
            pread_exact(fd, memory, offset, self.sources[file].path)

    def will_need(self, file: int, offset: int, nbytes: int) -> None:
        """See `Files.will_need`.

        A touch of a page that is not there waits for the drive's read-ahead around it, megabytes.
        """
        with self.descriptor(file) as fd:
            for low in range(offset, offset + nbytes, _AHEAD_BYTES):
                os.posix_fadvise(fd, low, min(_AHEAD_BYTES, offset + nbytes - low), os.POSIX_FADV_WILLNEED)

    def reads(self, extents: Extents, direct: NDArray[np.bool_] | None = None) -> PreparedReads:
        return PreparedReads(self, extents, direct)

    def is_resident(self, file: int, offset: int) -> bool:
        with self.descriptor(file) as fd:
            return is_resident(fd, offset)

    def _read(self, file: int, offset: int, nbytes: int) -> None:
        """Read bytes of a mapped file only to learn whether they can be read."""
        try:
            self.read_into(file, offset, memoryview(bytearray(nbytes)))
        except ShortReadError:
            raise FileChangedError(
                "the file became shorter while it was being read",
                file=self.sources[file].path,
                remedy="Do not write to a dataset in use.",
            ) from None

    def descriptor(self, file: int, *, direct: bool = False) -> Lent:
        return (self.around if direct and self._allows_direct(file) else self.through).lent(file)

    def _descriptor(self, file: int, *, flags: int) -> int:
        source = self.sources[file]
        try:
            fd = open_regular(source.path, follow_links=source.follow_links, flags=flags)
        except DatasetNotFoundError:
            raise gone(source.path) from None
        try:
            self._watch.opened(file, status_of(fd, source.path))
        except BaseException:
            close(fd)
            raise
        return fd

    def _allows_direct(self, file: int) -> bool:
        """Return whether the file can be opened with O_DIRECT; some file systems have none."""
        if self._direct[file] == _UNKNOWN:
            try:
                with self.around.lent(file):
                    self._direct[file] = True
            except FileChangedError:
                raise
            except ReadError as error:
                if error.errno in NO_DESCRIPTORS:
                    return False  # for this time
                self._direct[file] = False
        return bool(self._direct[file])

    def allow_direct(self, files: IntArray) -> NDArray[np.bool_]:
        """A mask of these files that can be opened with O_DIRECT."""
        found = self._direct[files]
        for file in distinct(files[found == _UNKNOWN], len(self.sources)).tolist():
            self._allows_direct(file)
        return self._direct[files].astype(bool)

    def whole(self, file: int) -> Extents:
        return Extents(np.array([file]), np.array([0]), np.array([self.length(file)]))

    def in_mappings(self, addresses: IntArray) -> NDArray[np.bool_]:
        starts, ends = self._ranges()
        if not len(starts):
            return np.zeros(len(addresses), bool)
        at = starts.searchsorted(addresses, side="right") - 1
        return (at >= 0) & (addresses < ends[at])

    def _ranges(self) -> tuple[IntArray, IntArray]:
        """The begin and end of each mapped file, in rising order; worked out again only when one was opened."""
        unopened, found = self._mappings
        if unopened != self._unopened:
            unopened = self._unopened
            files = self.base.copy().nonzero()[0]  # others open files, and it must not change while it is looked at
            files = files[self.base[files].argsort()]
            found = self.base[files], self.base[files] + self.sizes[files]
            self._mappings = unopened, found
        return found

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for table in (self.through, self.around):
                table.close()
            self.reader.close()
            for file in np.flatnonzero(self.base).tolist():
                address, self.base[file] = int(self.base[file]), 0  # an interrupted close must not unmap anything twice
                unmap(address, self.length(file))
            self.opened[:] = False
            self._unopened = len(self.opened)
