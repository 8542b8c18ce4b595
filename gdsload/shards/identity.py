"""The check that files are still those that were opened.

A file is known by what its file system says of it. Its ctime cannot be put back, so that each write to the file
moves it; but so do chmod, a hard link and a rename, which change no byte. Where nothing else differs, the bytes are
compared with their checksums, once, by the thread that has found it out, and read through the file: what is mapped or
registered with a GPU is left alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import FileChangedError
from gdsload.shards.reads import distinct
from gdsload.shards.status import is_absent, read_error

__all__ = ["LOOK_BEFORE_S", "FileIdentity", "ShardSource", "Watch", "gone", "identity_of"]

IntArray = NDArray[np.int64]

LOOK_BEFORE_S = 0.01
"""For how long a look is believed where bytes are about to be read, and will be looked at once more afterwards: it is
for the process, which a mapping that was cut short would end."""
_SHARE = 0.05
"""The share of the time that looking may take."""
_CREDIT_S = 0.25
"""Seconds that looking may have taken above its share. A look that takes long may be another program's turn at the
processor: to leave the files alone for twenty times as long at once would be no service to anybody, and a mapping that
is cut short meanwhile ends the process."""


class FileIdentity(NamedTuple):
    """The facts that a file system gives of a file; together they show whether it is still the same.

    Attributes:
        device: the file system.
        inode: the file's number in it.
        nbytes: its length.
        mtime_ns: when it was last written to, as far as nobody has set that.
        ctime_ns: when it was last changed in any way.
        rights: mode, number of links, owner and group: what changes ctime, and nothing else of these.
    """

    device: int
    inode: int
    nbytes: int
    mtime_ns: int
    ctime_ns: int
    rights: tuple[int, int, int, int]

    def but_for_ctime(self) -> tuple[int, ...]:
        """The facts that differ only if the file is another one, or was written to."""
        return self.device, self.inode, self.nbytes, self.mtime_ns


def identity_of(found: os.stat_result) -> FileIdentity:
    """The identity of a file."""
    rights = found.st_mode, found.st_nlink, found.st_uid, found.st_gid
    return FileIdentity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, rights)


@dataclass(frozen=True, slots=True)
class ShardSource:
    """A shard as a dataset names it.

    Attributes:
        path: its path.
        samples: its number of samples, or -1 if the dataset does not know before opening it.
        file_bytes: its length, or -1 likewise.
        sha256: SHA-256 of its header, or None likewise.
        follow_links: whether the path may be a symbolic link.
        identity: which file it was when the dataset was opened, or None if that is only known once it is opened itself.
    """

    path: str
    samples: int = -1
    file_bytes: int = -1
    sha256: str | None = None
    follow_links: bool = True
    identity: FileIdentity | None = None

    def length(self) -> int:
        """Its length, which the file system is asked for if the dataset does not know it.

        Raises:
            OSError: if it cannot be asked.
        """
        return self.file_bytes if self.file_bytes >= 0 else os.stat(self.path).st_size


class Watch:
    """Looks whether files are still those that were opened, as often as a share of the time allows.

    Its methods may be called from several threads.

    Args:
        sources: the files.
        as_written: says whether a file's bytes are those that were written; None if it has no checksums to tell.
    """

    def __init__(self, sources: Sequence[ShardSource], as_written: Callable[[int], bool | None]) -> None:
        self._sources, self._as_written = sources, as_written
        self._known = {file: source.identity for file, source in enumerate(sources) if source.identity}
        self._looked = np.zeros(len(sources))
        """When the last look at each file began; 0: never."""
        self._passed = np.zeros(len(sources))
        """When each was last passed over for want of time."""
        self._paid = 0.0  # up to when looking has used up its share of the time
        self._noting, self._comparing = threading.Lock(), threading.Lock()

    def length(self, file: int) -> int:
        """Bytes of a file that is or was open."""
        return self._known[file].nbytes

    def opened(self, file: int, found: os.stat_result) -> None:
        """Note which file it is that was opened. Its ctime is for `check` to judge.

        Raises:
            FileChangedError: if it is not the one that was opened first.
        """
        self._compare(file, identity_of(found))

    def check(self, files: IntArray, *, believed_s: float = 0.0) -> None:
        """Make sure that these files are still those that were opened.

        Where looking has used up its share of the time, they are passed over this time; `check_passed` looks at them.

        Args:
            files: the files.
            believed_s: how long ago the last look may have been.

        Raises:
            FileChangedError: if one was replaced, changed or removed.
            ReadError: if one cannot be read, that has to be compared with its checksums.
        """
        now = time.monotonic()
        stale = files[self._looked[files] <= now - believed_s] if believed_s else files
        if self._paid > now:
            with self._noting:  # or who took the time first and notes it last would take another's back
                self._passed[stale] = time.monotonic()
            stale = stale[self._looked[stale] == 0]  # each at least once
        if len(stale):
            took_s = self._look(stale, now)
            self._paid = max(self._paid, now - _CREDIT_S / _SHARE) + took_s / _SHARE

    def check_now(self, files: IntArray) -> None:
        """As `check`, at once, whatever it takes; other looks do not pay for it."""
        self._look(files, time.monotonic())

    def check_passed(self) -> None:
        """Look at all files that were passed over and not looked at since."""
        self.check_now(np.flatnonzero(self._passed > self._looked))

    def _look(self, files: IntArray, now: float) -> float:
        """Look at files; the seconds that it took, without those for comparing bytes."""
        distinct_files = distinct(files, len(self._sources)).tolist()
        moved = [file for file in distinct_files if self._moved(file, self._stat(file))]
        took_s = time.monotonic() - now
        for file in moved:
            self._compare_bytes(file)
        # When it began, and last of all: what was passed over meanwhile may have been read after the look.
        self._looked[files] = now
        return took_s

    def _stat(self, file: int) -> os.stat_result:
        source = self._sources[file]
        try:
            return os.stat(source.path, follow_symlinks=source.follow_links)
        except OSError as error:
            if is_absent(error):
                raise gone(source.path) from None
            raise read_error("the shard cannot be looked at", error, source.path) from None

    def _moved(self, file: int, found: os.stat_result) -> bool:
        """Refuse a file that is another one; whether its ctime is another, too. Asked of each shard of each read."""
        same = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        known = self._known.get(file)
        return (known is None or known[: len(same)] != same) and not self._compare(file, identity_of(found))

    def _compare(self, file: int, found: FileIdentity) -> bool:
        """Refuse a file that is another one; whether its ctime is the same, too."""
        known = self._known.setdefault(file, found)
        if known != found and known.but_for_ctime() != found.but_for_ctime():
            same = known.device == found.device and known.inode == found.inode
            raise self._changed(file, "was written to" if same else "was replaced by another file")
        return known.ctime_ns == found.ctime_ns

    def _compare_bytes(self, file: int) -> None:
        """Take a file's new ctime, if its bytes are what they were."""
        with self._comparing:  # one thread is enough, and disks are not made for more
            found = identity_of(self._stat(file))
            if self._compare(file, found):
                return
            same = self._as_written(file)
            if same is None and found.rights == self._known[file].rights:
                raise self._changed(
                    file,
                    "may have been written to",
                    ": the time of its last change is another, and it has no checksums that would tell",
                    " `gdsload.merge` makes shards with checksums of files without.",
                )
            if same is False:
                raise self._changed(file, "was written to")
            self._known[file] = found  # as it was before: if it is changed meanwhile, the next look finds that out

    def _changed(self, file: int, what: str, why: str = "", remedy: str = "") -> FileChangedError:
        return FileChangedError(
            f"the shard {what} while the dataset was in use{why}",
            file=self._sources[file].path,
            remedy=f"Open the dataset again; to change one in use, write a new folder and switch to it.{remedy}",
        )


def gone(path: str) -> FileChangedError:
    """The error for a file that is not there any more."""
    lost = f", or the drive of {os.path.realpath(path)}, where it lies, is not mounted any more"
    return FileChangedError(
        f"the shard was removed while the dataset was in use{lost if os.path.islink(path) else ''}",
        file=path,
        remedy="Restore it, and open the dataset again.",
    )
