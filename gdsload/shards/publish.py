"""A folder that becomes visible whole: written beside its place, synced, and moved there by one rename.

The folder in the making has a hidden name, and beside it is a file that its writer holds a lock on. A lock that is
free was left by a writer that was killed; the next writer to the same place removes what belongs to it: also the
shards that are on other drives, where links in the folder lead.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
from collections.abc import Sequence

from gdsload.errors import DatasetExistsError, GdsloadError, WriteError
from gdsload.shards.durable import fsync_path, make_folders
from gdsload.shards.format.index import INDEX_NAME, Index
from gdsload.shards.shard_folders import (
    check_targets,
    is_shard_name,
    linked_folder,
    make_shard_folder,
    remove_shards,
    shard_folder,
)
from gdsload.shards.status import close, is_there, naming, write_error
from gdsload.system.file_locks import lock_file
from gdsload.system.paths import absolute

_LOCK_SUFFIX, _ASIDE_SUFFIX = ".lock", ".old"
_DATASET_MARK = b'"gdsload-dataset"'
_MARK_BYTES = 2**20
"""Bytes of an index that are searched for the mark, which a writer puts first."""
_NAMED = 5
_TRIES = 16
_AT_FDCWD = -100
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2  # linux/fs.h
_NOT_SUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
_libc = ctypes.CDLL(None, use_errno=True)


class Publication:
    """A dataset folder in the making. It belongs to the process that made it: forks neither publish nor remove it.

    Args:
        path: where it will appear.
        overwrite: whether a dataset that is there already is replaced.
        spread_over: folders, on other drives perhaps, over which its shards are spread; none: they are in its own.

    Attributes:
        folder: the folder in the making.

    Raises:
        OptionError: if `spread_over` is no list of paths, or names a folder twice.
        DatasetExistsError: if something is there that must not be replaced.
        WriteError: if a folder cannot be made.
    """

    def __init__(
        self, path: str, *, overwrite: bool, spread_over: Sequence[str | os.PathLike[str]] | None = ()
    ) -> None:
        self.path, self.overwrite = absolute(path), overwrite
        self.owner = os.getpid()
        targets = check_targets(spread_over, self.path)
        parent = os.path.dirname(self.path)
        with naming(write_error, "the dataset's folder cannot be made", parent):
            make_folders(parent)
            remove_left_behind(self.path)
            self._check_place()
            self.folder, self._lock = _make_folder(self.path)
        token = self.folder.rpartition("-")[2]
        self._targets = [shard_folder(target, self.path, token) for target in targets]
        self._made: list[str] = []
        """Those of these folders that have shards."""

    def place(self, name: str, number: int) -> str:
        """The path to write a shard to; if that is on another drive, there is a link to it from now on.

        Args:
            name: the shard's name.
            number: of which turn it is among the folders of `spread_over`.

        Raises:
            WriteError: if there can be no link, or no folder.
        """
        path = os.path.join(self.folder, name)
        if not self._targets:
            return path
        folder = self._targets[number % len(self._targets)]
        target = os.path.join(folder, name)
        with naming(write_error, "a shard cannot be put on its drive", folder):
            os.symlink(target, path)  # first: by it the folder is found if this writer is killed
            if folder not in self._made:
                for linking in (self.folder, os.path.dirname(self.folder)):  # a folder without links would stay too
                    fsync_path(linking)
                make_shard_folder(folder, self.folder, self.path)
                self._made.append(folder)
        return target

    def _check_place(self) -> None:
        """Refuse to replace anything but an empty folder, or a dataset and nothing else if that is asked for."""
        if not is_there(self.path) or _is_empty_folder(self.path):
            return
        if not self.overwrite:
            what = "there is something already"
            remedy = "Pass `overwrite=True` to replace a dataset, or another path."
        elif not _is_dataset(self.path):
            what, remedy = "what is there is no gdsload dataset, so it is not replaced", "Remove it yourself."
        elif others := strangers(self.path):
            more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
            listed = ", ".join(map(repr, others[:_NAMED])) + more
            what = f"the folder holds more than a dataset, which would be lost: {listed}"
            remedy = "Move that elsewhere first, or write to another path."
        else:
            return
        raise DatasetExistsError(what, file=self.path, remedy=remedy)

    def write_index(self, index: Index) -> None:
        """Write the dataset's index, the last file of its folder.

        Raises:
            WriteError: if it cannot be written.
        """
        path = os.path.join(self.folder, INDEX_NAME)
        with naming(write_error, "the file cannot be written", path):
            with open(path, "xb") as file:
                file.write(index.to_bytes())
            fsync_path(path)

    def publish(self) -> None:
        """Make the folder appear at its path, in place of an older dataset there.

        If that fails, the folder is removed, and the older dataset stays.

        Raises:
            DatasetExistsError: if something appeared there meanwhile.
            WriteError: if the file system fails.
        """
        try:
            for folder in self._made:
                with naming(write_error, "the shards cannot be written to their drive", folder):  # it may have gone
                    fsync_path(folder)
                    fsync_path(os.path.dirname(folder))
            fsync_path(self.folder)
            self._check_place()
            if not (self.overwrite and self._exchange()) and renameat2(self.folder, self.path, _RENAME_NOREPLACE):
                # An empty folder, or no such flag in this file system: rename(2) replaces nothing but an empty folder.
                os.rename(self.folder, self.path)
            fsync_path(os.path.dirname(self.path))
        except OSError as error:
            if isinstance(error, GdsloadError):
                raise
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                remedy = "Look what it is, and write to another path, or again."
                raise DatasetExistsError("something appeared there meanwhile", file=self.path, remedy=remedy) from error
            raise write_error("the dataset cannot be moved to its place", error, self.path) from error
        finally:
            self.abandon()

    def _exchange(self) -> bool:
        """Let the folder and what is at its place change places; False if there is nothing to change places with."""
        if not is_there(self.path) or _is_empty_folder(self.path):
            return False
        if renameat2(self.folder, self.path, _RENAME_EXCHANGE) != 0:
            code = ctypes.get_errno()
            if code not in _NOT_SUPPORTED:
                raise OSError(code, os.strerror(code))
            # No exchange on this file system: between these renames there is no dataset at the path, never half of one.
            os.rename(self.path, self.folder + _ASIDE_SUFFIX)
            os.rename(self.folder, self.path)
        return True

    def abandon(self) -> None:
        """Remove the folder in the making, or the dataset that it has replaced."""
        if os.getpid() == self.owner:
            try:
                _discard(self.folder, self.path)
            finally:  # also if Ctrl-C ends it: no other process can take the lock while this one lives
                close(self._lock)


def strangers(folder: str) -> list[str]:
    """The names in a dataset's folder that are neither its index nor such as a writer gives its shards, sorted."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not _is_ours(folder, entry))


def _is_ours(folder: str, entry: os.DirEntry[str]) -> bool:
    if entry.is_file(follow_symlinks=False):
        return entry.name == INDEX_NAME or is_shard_name(entry.name)
    return is_shard_name(entry.name) and linked_folder(folder, entry.name) is not None


def _is_empty_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)


def _is_dataset(path: str) -> bool:
    """Return whether a writer may remove everything in a folder: its index is ours, whole or damaged."""
    index = os.path.join(path, INDEX_NAME)
    if os.path.islink(path) or os.path.islink(index) or not os.path.isfile(index):
        return False
    with open(index, "rb") as file:
        return _DATASET_MARK in file.read(_MARK_BYTES)


def _make_folder(path: str) -> tuple[str, int]:
    """A new folder beside `path`, and the descriptor of its lock, which is held."""
    for _ in range(_TRIES):
        folder = _prefix(path) + secrets.token_hex(6)
        name = folder + _LOCK_SUFFIX
        lock = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            # Without locks in the file system, no writer can take one, so nothing is taken for abandoned.
            lock_file(lock, wait=True)
            if is_there(name) and os.path.samestat(os.stat(name), os.fstat(lock)):
                fsync_path(os.path.dirname(folder))  # a folder without its lock would stay for ever
                os.mkdir(folder)
                return folder, lock
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            close(lock)
            raise
        close(lock)  # Another writer took the new lock for one that was left.
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _prefix(path: str) -> str:
    parent, name = os.path.split(path)
    return os.path.join(parent, f".{name}.gdsload-")


def remove_left_behind(path: str) -> None:
    """Remove the folders that killed writers to `path` have left."""
    parent, prefix = os.path.split(_prefix(path))
    pattern = re.compile(re.escape(prefix) + "[0-9a-f]{12}" + re.escape(_LOCK_SUFFIX))
    for name in os.listdir(parent):
        if not pattern.fullmatch(name):
            continue
        lock = os.path.join(parent, name)
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if lock_file(fd, wait=False):
                _discard(lock.removesuffix(_LOCK_SUFFIX), path)
        except OSError:
            continue
        finally:
            close(fd)


def _discard(folder: str, path: str) -> None:
    """Remove a folder in the making, then its lock, which the caller holds."""
    aside, lock = folder + _ASIDE_SUFFIX, folder + _LOCK_SUFFIX
    with contextlib.suppress(OSError):  # what cannot be removed keeps its lock, so that the next writer tries again
        if is_there(aside) and not is_there(path):
            os.rename(aside, path)  # it was being replaced, and its replacement never came
        for leftover in (folder, aside):
            with contextlib.suppress(FileNotFoundError):
                remove_folder(leftover)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(leftover)  # fails if it is there all the same
        os.unlink(lock)


def remove_folder(folder: str) -> None:
    """Remove a dataset's folder, in the making or not, and its shards on other drives.

    Raises:
        OSError: if something cannot be removed.
    """
    remove_shards(folder)
    shutil.rmtree(folder)


def remove_interrupted(folder: str, stage: str) -> None:
    """As `remove_folder`, of what an interrupted run has left.

    Args:
        folder: what it left.
        stage: the folder that the run's user knows, which it is in.

    Raises:
        WriteError: if something cannot be removed, as where a drive has become read-only.
    """
    try:
        remove_folder(folder)
    except OSError as error:
        raise WriteError(
            f"what an interrupted run has left cannot be removed: {error.strerror}",
            file=str(error.filename or folder),
            remedy=f"Make its drive writable again. Or give it up, and remove {stage} yourself: what is in folders "
            "on other drives then stays.",
        ) from error


def renameat2(source: str, target: str, flags: int) -> int:
    """The system's call of that name; -1, with the reason in errno, where there is none."""
    if not hasattr(_libc, "renameat2"):
        ctypes.set_errno(errno.ENOSYS)
        return -1
    return int(_libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags))
