"""The memory of the machine, and the part of it that this process may use."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gdsload.system.probe.tree import Tree

_UNLIMITED = 2**62  # cgroup v1 writes the largest multiple of a page for "no limit"


def meminfo(tree: Tree, name: str) -> int | None:
    """A figure of /proc/meminfo in bytes, or None."""
    text = tree.text("/proc/meminfo") or ""
    match = re.search(rf"^{name}:\s+(\d{{1,16}})( kB)?", text, re.MULTILINE | re.ASCII)
    return None if match is None else int(match[1]) * (1024 if match[2] else 1)


def control_groups(tree: Tree, controller: str) -> Iterator[tuple[str, bool]]:
    """The folders of this process's control groups that have a controller, the inmost first, and whether each is v2."""
    for line in (tree.text("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_v2 = number == "0" and not controllers
        if not is_v2 and controller not in controllers.split(","):
            continue
        # The path may be the host's while only the container's part is mounted: then the root of that has the limit.
        parts = [part for part in path.split("/") if part not in ("", ".", "..")][:32]
        for depth in range(len(parts), -1, -1):
            yield "/".join(["/sys/fs/cgroup" if is_v2 else f"/sys/fs/cgroup/{controller}", *parts[:depth]]), is_v2


def _left(tree: Tree) -> Iterator[int]:
    """The bytes that are left of each memory limit of this process's control groups, v2 or v1.

    What a group has read of files counts as left: the kernel takes it back where memory is wanted.
    """
    for group, is_v2 in control_groups(tree, "memory"):
        names = ("memory.max", "memory.current") if is_v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (tree.number(f"{group}/{name}") for name in names)
        if limit is None or not 0 < limit < _UNLIMITED:
            continue
        stat, prefix = tree.text(f"{group}/memory.stat") or "", "" if is_v2 else "total_"
        files = re.findall(rf"^{prefix}(?:in)?active_file (\d{{1,18}})$", stat, re.MULTILINE | re.ASCII)
        yield limit - max((used or 0) - sum(map(int, files)), 0)


def memory_room(tree: Tree) -> int | None:
    """Bytes that may still be taken: of the control group's limit, or of the available memory, whichever is less."""
    sizes = (meminfo(tree, "MemAvailable"), *_left(tree))
    return min((max(size, 0) for size in sizes if size is not None), default=None)
