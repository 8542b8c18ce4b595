"""A check of the memory that the page cache can have."""

from __future__ import annotations

from typing import Any

from gdsload.system.ram import cgroup_limit, memory_room
from gdsload.system.units import format_bytes
from gdsload.tools.doctor.context import Context
from gdsload.tools.doctor.finding import Finding, info, ok, unknown

__all__ = ["CHECKS"]


def page_cache(context: Context) -> Finding:
    """The room in the page cache, and whether the data fit into it."""
    room, size = memory_room(context.system.tree), context.place.nbytes
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
    remedy = "Raise the container's memory limit, if the host has more: pages of files count towards it."
    return info(f"{both}: they do not fit, so epochs read the drive", remedy if limited else "", **evidence)


CHECKS = (("memory.page-cache", page_cache),)
