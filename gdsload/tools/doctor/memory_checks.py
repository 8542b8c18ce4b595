"""Checks of memory and of the limits that a loader can meet."""

from __future__ import annotations

import re
from typing import Any

from gdsload.system.ram import cgroup_limit, meminfo, memory_room
from gdsload.system.units import counted, format_bytes
from gdsload.tools.doctor.context import Context
from gdsload.tools.doctor.finding import Finding, clip, info, ok, unknown, warning

__all__ = ["CHECKS", "page_cache_room"]

_LIMIT_LINE = r"^{name}\s+(\S+)\s+(\S+)"
_FILES_BESIDES = 256
"""Open files that Python, torch, CUDA and libraries need besides shards."""
_MAPS_BESIDES = 8192
_SMALL_SHM_BYTES = 2**30


def _limit(context: Context, name: str) -> int | None:
    """A soft limit from /proc/self/limits; -1 for unlimited, None if it cannot be read."""
    text = context.system.tree.text("/proc/self/limits") or ""
    match = re.search(_LIMIT_LINE.format(name=re.escape(name)), text, re.MULTILINE)
    if match is None:
        return None
    if match[1] == "unlimited":
        return -1
    return int(match[1]) if re.fullmatch(r"\d{1,20}", match[1], re.ASCII) else None


def page_cache_room(context: Context) -> int | None:
    """Bytes that pages of files may take: the control group's limit or the available memory, whichever is smaller."""
    return memory_room(context.system.tree)


def page_cache(context: Context) -> Finding:
    """The room in the page cache, and whether the data fit into it."""
    room, size = page_cache_room(context), context.place.nbytes
    limit = cgroup_limit(context.system.tree)
    evidence: dict[str, Any] = {"room_bytes": room, "data_bytes": size, "cgroup_bytes": limit, "fits": None}
    if room is None:
        return unknown("how much memory there is cannot be read", **evidence)
    limited = " (the control group's limit)" if room == limit else ""
    if not size:
        return info(f"{format_bytes(room)} of memory are there for the page cache{limited}", **evidence)
    if context.place.in_memory:
        return ok(f"{format_bytes(size)} of data are in memory already", **evidence | {"fits": True})
    evidence["fits"] = size <= room
    both = f"{format_bytes(size)} of data, {format_bytes(room)} of memory{limited}"
    if size <= room:
        return ok(f"{both}: they fit into the page cache", **evidence)
    if limit is not None and room == limit:
        remedy = "Raise the container's memory limit, if the host has more: pages of files count towards it."
        return info(f"{both}: they do not fit, so epochs read the drive", remedy, **evidence)
    return info(f"{both}: they do not fit, so epochs read the drive", **evidence)


def memlock(context: Context) -> Finding:
    """The limit on locked memory. CUDA pins its own memory without it; RDMA does not."""
    value = _limit(context, "Max locked memory")
    if value is None:
        return unknown("the limit on locked memory cannot be read", bytes=None)
    if value == -1:
        return ok("locked memory is unlimited", bytes=None)
    text = f"at most {format_bytes(value)} may be locked"
    remedy = "For cuFile over RDMA: ulimit -l unlimited, or docker run --ulimit memlock=-1."
    return info(f"{text}; CUDA's pinned memory is not concerned", remedy, bytes=value)


def shared_memory(context: Context) -> Finding:
    """Shared memory: gdsload does not use it, but torch's worker processes do."""
    folder = "/dev/shm"  # noqa: S108 -- looked at, not used
    try:
        total, free = context.system.calls.space(context.system.tree.at(folder))
    except (OSError, ValueError):
        return info(f"there is no {folder}", bytes=None, free=None)
    message = f"{folder} has {format_bytes(total)}, {format_bytes(free)} free"
    if total < _SMALL_SHM_BYTES:
        message += "; gdsload does not need it, torch's worker processes do"
        return info(message, "docker run --shm-size=8g, or --ipc=host.", bytes=total, free=free)
    return ok(message, bytes=total, free=free)


def huge_pages(context: Context) -> Finding:
    """Transparent huge pages, which make large pinned buffers cheaper to register."""
    text = context.system.tree.text("/sys/kernel/mm/transparent_hugepage/enabled", 256) or ""
    match = re.search(r"\[(\w+)\]", text)
    reserved = meminfo(context.system.tree, "HugePages_Total")
    evidence: dict[str, Any] = {"mode": match[1] if match else None, "reserved": reserved}
    if match is None:
        return info("the kernel has no transparent huge pages, or does not show them", **evidence)
    if match[1] == "never":
        remedy = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        return info("transparent huge pages are switched off: registering buffers takes longer", remedy, **evidence)
    return ok(f"transparent huge pages: {match[1]}", **evidence)


def open_files(context: Context) -> Finding:
    """The limit on open files against the number of shards."""
    value, shards = _limit(context, "Max open files"), context.place.shards
    evidence: dict[str, Any] = {"limit": value, "shards": shards}
    if value is None:
        return unknown("the limit on open files cannot be read", **evidence)
    if value == -1 or value >= shards + _FILES_BESIDES:
        return ok(
            f"{'any number of' if value == -1 else value} files may be open, {counted(shards, 'shard')}", **evidence
        )
    remedy = "ulimit -n 65536, or fewer and larger shards: the least recently used are closed and opened again."
    return info(f"only {value} files may be open, and there are {shards} shards", remedy, **evidence)


def mappings(context: Context) -> Finding:
    """The limit on mappings against the number of shards, each of which is mapped."""
    value, shards = context.system.tree.number("/proc/sys/vm/max_map_count"), context.place.shards
    evidence: dict[str, Any] = {"limit": value, "shards": shards}
    if value is None:
        return unknown("vm.max_map_count cannot be read", **evidence)
    if value >= shards + _MAPS_BESIDES:
        return ok(f"{value} mappings may be made, {counted(shards, 'shard')}", **evidence)
    remedy = f"sudo sysctl vm.max_map_count={2 * shards + 65536}, or larger shards."
    return warning(f"only {clip(value)} mappings may be made, and there are {shards} shards", remedy, **evidence)


CHECKS = (
    ("memory.page-cache", page_cache),
    ("memory.memlock", memlock),
    ("memory.shm", shared_memory),
    ("memory.huge-pages", huge_pages),
    ("memory.open-files", open_files),
    ("memory.mappings", mappings),
)
