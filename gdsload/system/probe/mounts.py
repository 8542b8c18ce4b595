"""The mount that a path is on.

The format is that of proc(5), /proc/self/mountinfo: id, parent, major:minor, root, mount point, options, optional
fields, a dash, file system, source, options of the superblock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gdsload.system.probe.tree import Tree

IN_MEMORY = ("tmpfs", "ramfs")
"""File systems whose files are in memory and nowhere else."""
_LIMIT_BYTES = 4 * 2**20  # a host of containers has thousands of mounts, some with options of kilobytes
_OCTAL = re.compile(r"\\([0-7]{3})")
_NUMBER = re.compile(r"\d+:\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table.

    Attributes:
        root: which folder of the file system is mounted there; not ``/`` for a bind mount or a btrfs subvolume.
        number: ``major:minor`` of the device; the major number is 0 where there is no block device.
        kind: the file system, for instance ``ext4``.
        options: of the mount and of the superblock.
    """

    point: str
    root: str
    number: str
    kind: str
    source: str
    options: tuple[str, ...]


def read_mounts(tree: Tree) -> list[Mount]:
    """The mount table of this process; empty if it cannot be read."""
    return parse_mounts(tree.text("/proc/self/mountinfo", _LIMIT_BYTES) or "")


def parse_mounts(text: str) -> list[Mount]:
    """The mounts of a table; lines that cannot be parsed are left out."""
    mounts = []
    for line in text.splitlines():
        fields = line.split(" ")
        if "-" not in fields[6:]:
            continue
        dash = fields.index("-", 6)
        if len(fields) < dash + 3 or not _NUMBER.fullmatch(fields[2]):
            continue
        more = fields[dash + 3].split(",") if len(fields) > dash + 3 else []
        options = tuple(dict.fromkeys([*fields[5].split(","), *more]))
        texts = (fields[3], fields[4], fields[dash + 1], fields[dash + 2])
        root, point, kind, source = (_OCTAL.sub(lambda match: chr(int(match[1], 8)), text) for text in texts)
        mounts.append(Mount(point, root, fields[2], kind, source, options))
    return mounts


def find_mount(mounts: Iterable[Mount], path: str, number: str | None = None) -> Mount | None:
    """The mount that holds a path, which is absolute and without links.

    `number` is ``major:minor`` that stat gives for the path, if known. It decides between several mounts on top of each
    other; btrfs and overlay have their own numbers, so a missing match proves nothing.
    """
    holding = [mount for mount in mounts if f"{path}/".startswith(mount.point.rstrip("/") + "/")]
    matching = [mount for mount in holding if mount.number == number]
    # The longest mount point wins; of equal ones the last, which hides the others.
    return max(enumerate(matching or holding), key=lambda item: (len(item[1].point), item[0]), default=(0, None))[1]
