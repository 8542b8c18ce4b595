"""The check that files are still those that were opened.

A file is known by what its file system says of it. Its ctime cannot be put back, so each write to the file moves it.
chmod, a hard link and a rename move it, too, and are an error likewise.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gdsload.errors import FileChangedError
from gdsload.shards.reads import distinct
from gdsload.shards.status import is_absent, read_error
from gdsload.system.arrays import IntArray

LOOK_BEFORE_S = 0.01
"""Seconds for which a look holds before bytes are read, which are checked again afterwards: it protects the process,
which a mapping that was cut short would end."""
_SHARE = 0.05
"""The share of the time that looking may take."""
_CREDIT_S = 0.25
"""Seconds that looking may have taken above its share. A long look may be due to another program on the processor. Then
it would be wrong to leave the files alone for twenty times as long: a mapping that is cut short meanwhile ends the
process."""


class FileIdentity(NamedTuple):
    """The facts that a file system gives of a file; together they show whether it is still the same.

    Attributes:
        device: the file system.
        inode: the file's number in it.
        nbytes: its length.
        mtime_ns: when it was last written to, unless the time was set.
        ctime_ns: when it was last changed in any way.
    """

    device: int
    inode: int
    nbytes: int
    mtime_ns: int
    ctime_ns: int


def identity_of(found: os.stat_result) -> FileIdentity:
    """The identity of a file."""
    return FileIdentity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class ShardSource:
    """A shard as a dataset names it.

    Attributes:
        path: its path.
        samples: its number of samples, or -1 if the dataset does not know before opening it.
        file_bytes: its length, or -1 likewise.
        sha256: SHA-256 of its header, or None likewise.
        follow_links: whether the path may be a symbolic link.
        identity: which file it was when the dataset was opened, or None if that is known only when it is opened.
    """

    path: str
    samples: int = -1
    file_bytes: int = -1
    sha256: str | None = None
    follow_links: bool = True
    identity: FileIdentity | None = None

    def length(self) -> int:
        """Its length; from the file system if the dataset does not know it.

        Raises:
            OSError: if it cannot be asked.
        """
        return self.file_bytes if self.file_bytes >= 0 else os.stat(self.path).st_size


class Watch:
    """Looks whether files are still those that were opened, as often as a share of the time allows.

    Its methods may be called from several threads.

    Args:
        sources: the files.
    """

    def __init__(self, sources: Sequence[ShardSource]) -> None:
        self._sources = sources
        self._known = {file: source.identity for file, source in enumerate(sources) if source.identity}
        self._looked = np.zeros(len(sources))
        """When the last look at each file began; 0: never."""
        self._passed = np.zeros(len(sources))
        """When each was last passed over to save time."""
        self._paid = 0.0  # up to when looking has used up its share of the time
        self._noting = threading.Lock()

    def length(self, file: int) -> int:
        """Bytes of a file that is or was open."""
        return self._known[file].nbytes

    def check(self, files: IntArray, *, believed_s: float = 0.0) -> None:
        """See `Files.check`. Files that are passed over to save time are left to `check_passed`."""
        now = time.monotonic()
        stale = files[self._looked[files] <= now - believed_s] if believed_s else files
        if self._paid > now:
            with self._noting:  # or a thread that took the time early and notes it late would undo another's note
                self._passed[stale] = time.monotonic()
            stale = stale[self._looked[stale] == 0]  # each at least once
        if len(stale):
            took_s = self._look(stale, now)
            self._paid = max(self._paid, now - _CREDIT_S / _SHARE) + took_s / _SHARE

    def check_now(self, files: IntArray) -> None:
        """As `check`, at once, however long it takes; that does not delay other looks."""
        self._look(files, time.monotonic())

    def check_passed(self) -> None:
        """Look at all files that were passed over and not looked at since."""
        self.check_now(np.flatnonzero(self._passed > self._looked))

    def _look(self, files: IntArray, now: float) -> float:
        """Look at files; returns how many seconds it took."""
        for file in distinct(files, len(self._sources)).tolist():
            source = self._sources[file]
            try:
                status = os.stat(source.path, follow_symlinks=source.follow_links)
            except OSError as error:
                if is_absent(error):
                    raise gone(source.path) from None
                raise read_error("the shard cannot be looked at", error, source.path) from None
            self.opened(file, status)
        # The time at which it began, noted last: files that were passed over meanwhile may have been read after the
        # look.
        self._looked[files] = now
        return time.monotonic() - now

    def opened(self, file: int, status: os.stat_result) -> None:
        """Note which file was opened first, and then refuse any other. Asked of each shard of each read.

        Raises:
            FileChangedError: if it is not the one that was opened first, or was changed.
        """
        found = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        known = self._known.get(file)
        if known is None:
            known = self._known.setdefault(file, FileIdentity(*found))
        if known == found:
            return
        what = "was written to, or its rights or links were changed,"
        if known[:4] != found[:4]:
            what = "was written to" if known[:2] == found[:2] else "was replaced by another file"
        raise FileChangedError(
            f"the shard {what} while the dataset was in use",
            file=self._sources[file].path,
            remedy="Open the dataset again; to change one in use, write a new folder and switch to it.",
        )


def gone(path: str) -> FileChangedError:
    """The error for a file that is not there any more."""
    lost = f", or the drive of {os.path.realpath(path)}, where it is, is not mounted any more"
    what = f"the shard was removed while the dataset was in use{lost if os.path.islink(path) else ''}"
    return FileChangedError(what, file=path, remedy="Restore it, and open the dataset again.")
