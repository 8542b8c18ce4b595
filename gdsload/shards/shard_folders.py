"""Shards on other drives than their dataset's folder, which holds links to them.

    /data/birds/index.json
    /data/birds/shard-00000.safetensors -> /nvme0/birds.gdsload-3fa9c1d2e4b5/shard-00000.safetensors
    /data/birds/shard-00001.safetensors -> /nvme1/birds.gdsload-3fa9c1d2e4b5/shard-00001.safetensors
    /nvme0/birds.gdsload-3fa9c1d2e4b5/     a folder of shards: those of one dataset, and of no other
        dataset-8127-9f3c5a1e              whose: the dataset folder's inode and file system, which a rename leaves as
                                           they are; for people, its path is in the file
        shard-00000.safetensors

Links are followed into such folders only. Their names cannot be guessed, so no link is followed in a dataset of unknown
origin, whose links may lead anywhere. A copy of a folder of links has another inode, or the same one in another file
system: removing it leaves the shards.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Sequence

from gdsload.errors import OptionError, ReadError, WriteError
from gdsload.shards.durable import fsync_path
from gdsload.shards.status import is_absent
from gdsload.system.paths import absolute, listed_paths

_FOLDER = re.compile(r".+\.gdsload-[0-9a-f]{12}", re.DOTALL)
_SHARD = re.compile(r"shard-\d{5,}\.safetensors")


def shard_name(number: int) -> str:
    """The name of a writer's shard of that number."""
    return f"shard-{number:05d}.safetensors"


def is_shard_name(name: str) -> bool:
    """Return whether a name is that of a writer's shard."""
    return _SHARD.fullmatch(name) is not None


def check_targets(spread_over: Iterable[str | os.PathLike[str]] | None, path: str) -> list[str]:
    """The folders, absolute, over which a dataset at `path` is to be spread.

    Raises:
        OptionError: if it is no list of paths, a folder comes twice, or one is in the dataset itself.
        WriteError: if one is not there, or nothing can be written to it.
    """
    if isinstance(spread_over, str | bytes | os.PathLike) or not isinstance(spread_over, Iterable | None):
        raise OptionError(
            f"is {spread_over!r}, no list", option="spread_over", remedy="Pass a list of folders, one a drive."
        )
    found: dict[tuple[int, int], str] = {}
    for folder in map(absolute, listed_paths("spread_over", () if spread_over is None else spread_over)):
        if twin := found.get(identity := _checked_target(folder)):
            named = "twice" if twin == folder else f"twice: {twin} is the same"
            raise OptionError(
                f"names the folder {named}", option="spread_over", file=folder, remedy="Name each drive once."
            )
        if f"{os.path.realpath(folder)}/".startswith(f"{os.path.realpath(path)}/"):
            raise OptionError(
                "names a folder of the dataset itself", option="spread_over", file=folder, remedy="Name another."
            )
        found[identity] = folder
    return list(found.values())


def _checked_target(folder: str) -> tuple[int, int]:
    """The file system and inode of a folder in which shards may be made."""
    remedy = "Mount its drive, or make it: a folder that is made here may be on another drive."
    try:
        status = os.stat(folder)
        if stat.S_ISDIR(status.st_mode) and os.access(folder, os.W_OK | os.X_OK):
            return status.st_dev, status.st_ino
        what = "it is no folder"
    except OSError as error:
        what = "there is no such folder" if is_absent(error) else str(error.strerror)
    if os.path.isdir(folder):
        what = "permission denied, or its file system is read-only"
        remedy = "Make it yours. A drive that fails is made read-only by the system: dmesg says so."
    raise WriteError(f"shards cannot be written there: {what}", file=folder, remedy=remedy)


def turned(folders: Sequence[str], number: int) -> tuple[str, ...]:
    """The same folders, beginning with the one whose turn `number` is."""
    first = number % max(len(folders), 1)
    return (*folders[first:], *folders[:first])


def shard_folder(target: str, path: str, token: str) -> str:
    """The folder of shards in `target` of the dataset at `path`, with a token of 12 hexadecimal digits."""
    return os.path.join(target, f"{os.path.basename(path)}.gdsload-{token}")


def make_shard_folder(folder: str, owner: str, path: str) -> None:
    """Make a folder of shards.

    Args:
        folder: its path.
        owner: the folder of the dataset, which is in the making.
        path: where the dataset will be.
    """
    os.mkdir(folder)
    with open(_mark(folder, owner), "xb") as file:
        file.write(os.fsencode(path) + b"\n")
    fsync_path(folder)  # shards without their mark would stay for ever


def _mark(folder: str, owner: str) -> str:
    """The file that names the owner of a folder of shards.

    The inode alone is not enough: two new file systems use the same ones, so that a copy could be taken for the owner.
    If the number of a file system changes at a restart of the machine, the owner is unknown, and shards stay.
    """
    return os.path.join(folder, f"dataset-{os.lstat(owner).st_ino}-{os.statvfs(owner).f_fsid:x}")


def _followed(folder: str | int, name: str) -> tuple[str, str]:
    """The text of a link in a folder, and the path without links that it leads to, whether that exists or not."""
    base = f"/proc/self/fd/{folder}" if isinstance(folder, int) else folder
    said = os.readlink(os.path.join(base, name))
    return said, os.path.realpath(os.path.join(base, said))


def link_target(folder: str | int, name: str) -> str:
    """The file that a symbolic link in a dataset's folder leads to, as a path without links.

    Args:
        folder: the dataset's folder, or a descriptor of it.
        name: the link.

    Raises:
        ReadError: if it is in no folder of shards, or not there. The message is what the link is, without a verb.
        OSError: if there is no link.
    """
    said, target = _followed(folder, name)
    if not _FOLDER.fullmatch(os.path.basename(os.path.dirname(target))):
        remedy = "Links are followed only into folders that are named NAME.gdsload- and 12 hexadecimal digits."
        raise ReadError(f"a symbolic link to {said}, which is in no folder of shards", remedy=remedy)
    try:
        os.lstat(target)
    except (FileNotFoundError, NotADirectoryError):
        raise ReadError(
            f"a symbolic link to {said}, where there is nothing: its drive may not be mounted",
            remedy=f"Mount the drive of {os.path.dirname(said)}, or copy its folder back to it.",
        ) from None
    except OSError as error:
        raise ReadError(
            f"a symbolic link to {said}, which cannot be looked at: {error.strerror}",
            remedy=f"See whether you may enter {os.path.dirname(said)}, and whether its drive is well.",
        ) from None
    return target


def linked_folder(folder: str, name: str) -> str | None:
    """The folder of shards that a link in a dataset's folder leads into, whether it is there or not; None elsewhere."""
    try:
        found = os.path.dirname(_followed(folder, name)[1])
    except OSError:
        return None
    return found if _FOLDER.fullmatch(os.path.basename(found)) else None


def remove_shards(owner: str) -> None:
    """Remove the shards of a dataset's folder that its links lead to; the links stay, and what is not its own.

    Raises:
        OSError: if one cannot be removed.
    """
    # Every call may fail: a folder that is passed over for that stays for ever, as its links are removed next.
    with os.scandir(owner) as entries:
        links = [entry.path for entry in entries if entry.is_symlink()]
    for folder in sorted({os.path.dirname(os.path.join(owner, os.readlink(link))) for link in links}):
        if _FOLDER.fullmatch(os.path.basename(folder)):
            _remove_shard_folder(folder, owner)


def _remove_shard_folder(folder: str, owner: str) -> None:
    """Remove a folder of shards, if it is that of this dataset's folder, or empty; what else is in it stays."""
    files: dict[str, bool] = {}
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return
        with os.scandir(folder) as entries:
            files = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    except OSError as error:
        if not is_absent(error):
            raise
    mark = _mark(folder, owner)
    if os.path.basename(mark) in files:
        for name in [name for name, regular in files.items() if regular and is_shard_name(name)]:
            os.unlink(os.path.join(folder, name))
            del files[name]
        os.unlink(mark)  # last: until then the owner is known
        del files[os.path.basename(mark)]
    try:
        os.rmdir(folder)
        fsync_path(os.path.dirname(folder))  # before its links go, by which it is found
    except OSError as error:
        if not (is_absent(error) or (files and error.errno in (errno.ENOTEMPTY, errno.EEXIST))):
            raise  # and its links stay, by which it is found the next time
