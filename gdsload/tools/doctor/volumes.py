"""The mounts on which the shards of a dataset are, and the drives below each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

from gdsload.shards.catalog import SHARD_SUFFIX
from gdsload.system.probe.mounts import IN_MEMORY, Mount, find_mount, read_mounts
from gdsload.system.probe.tree import Tree
from gdsload.tools.doctor.block import BlockDevice, find_block, stack_of


@dataclass(frozen=True, slots=True)
class Volume:
    """A mount, and the data on it.

    Attributes:
        folder: a folder of it that data are in, or one file, without links.
        mount: the mount; None if the mount table does not say.
        stack: block devices from the file system down to the drives.
        shards: safetensors files on it.
        nbytes: bytes in them.
    """

    folder: str
    mount: Mount | None = None
    stack: tuple[BlockDevice, ...] = ()
    shards: int = 0
    nbytes: int = 0

    @property
    def point(self) -> str:
        """The mount point, or else the folder."""
        return self.mount.point if self.mount else self.folder

    @property
    def device(self) -> str:
        """The name of the mounted block device, or else the source in the mount table."""
        return self.stack[0].name if self.stack else self.mount.source if self.mount else ""

    @property
    def in_memory(self) -> bool:
        """True if its file system has its files in memory and nowhere else."""
        return self.mount is not None and self.mount.kind in IN_MEMORY

    @property
    def drives(self) -> tuple[BlockDevice, ...]:
        """The devices at the bottom."""
        return tuple(block for block in self.stack if block.kind not in ("md", "dm"))


def volumes_of(
    files: Iterable[tuple[str, int]], number: Callable[[str], str], tree: Tree | None = None
) -> tuple[Volume, ...]:
    """The mounts that files are on, those with the most files first.

    Args:
        files: for each the folder that it is in, without links, and its bytes.
        number: gives ``major:minor`` of the device of a path; raises OSError.
        tree: where the mount table and sysfs are; None for this machine's.
    """
    tree = tree or Tree()
    folders: dict[str, list[int]] = {}
    for folder, nbytes in files:
        folders.setdefault(folder, []).append(nbytes)
    mounts, found = read_mounts(tree), dict[Mount | str, Volume]()
    for folder, sizes in folders.items():
        mount = find_mount(mounts, folder, _number(tree.at(folder), number))
        known = found.get(mount or folder)
        if known is None:
            block = find_block(tree, mount) if mount else None
            known = Volume(folder, mount, tuple(stack_of(tree, block)) if block else ())
        found[mount or folder] = replace(known, shards=known.shards + len(sizes), nbytes=known.nbytes + sum(sizes))
    return tuple(sorted(found.values(), key=lambda volume: -volume.shards))


def _number(path: str, number: Callable[[str], str]) -> str | None:
    try:
        return number(path)
    except (OSError, ValueError):
        return None


def shard_files(tree: Tree, real: str) -> Iterator[tuple[str, int] | None]:
    """The folder and the bytes of each safetensors file at a path without links; None for a link that leads nowhere."""
    path, resolved = tree.at(real), cache(tree.resolve)
    with suppress(OSError):
        if os.path.isfile(path):
            yield real, os.path.getsize(path)
            return
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.endswith(SHARD_SUFFIX) and (entry.is_symlink() or entry.is_file()):
                    link = os.readlink(entry.path) if entry.is_symlink() else entry.name
                    yield _found(entry, resolved(os.path.dirname(os.path.join(real, link))))


def _found(entry: os.DirEntry[str], folder: str | None) -> tuple[str, int] | None:
    """See `shard_files`; a link that cannot be looked at leads nowhere, without effect on the others."""
    try:
        return (folder, entry.stat().st_size) if folder and entry.is_file() else None
    except OSError:
        return None
