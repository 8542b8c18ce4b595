"""How much memory the machine has, and how much of it this process may use."""

from __future__ import annotations

import re

from gdsload.system.probe.tree import Tree

__all__ = ["cgroup_limit", "meminfo", "memory_room"]

_UNLIMITED = 2**62  # cgroup v1 writes the largest multiple of a page for "no limit"


def meminfo(tree: Tree, name: str) -> int | None:
    """A figure of /proc/meminfo in bytes, or None."""
    text = tree.text("/proc/meminfo") or ""
    match = re.search(rf"^{name}:\s+(\d{{1,16}})( kB)?", text, re.MULTILINE | re.ASCII)
    return None if match is None else int(match[1]) * (1024 if match[2] else 1)


def cgroup_limit(tree: Tree) -> int | None:
    """The smallest memory limit of this process's control groups, v2 or v1, in bytes; None if there is none."""
    limits = []
    for line in (tree.text("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base, file = "/sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # The path may be the host's while only the container's part is mounted: then the root of that has the limit.
        parts = [part for part in path.split("/") if part not in ("", ".", "..")][:32]
        for depth in range(len(parts), -1, -1):
            value = tree.number("/".join([base, *parts[:depth], file]))
            if value is not None and 0 < value < _UNLIMITED:
                limits.append(value)
    return min(limits, default=None)


def memory_room(tree: Tree) -> int | None:
    """Bytes that may still be taken: the control group's limit or the available memory, whichever is smaller."""
    sizes = (meminfo(tree, "MemAvailable"), cgroup_limit(tree))
    return min((size for size in sizes if size is not None), default=None)
