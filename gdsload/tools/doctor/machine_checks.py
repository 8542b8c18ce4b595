"""Checks of the machine: its kind, the memory that the page cache can have, and the NUMA nodes of drives and GPUs.

On a DGX-2, NVIDIA measured 6.52 GiB/s from a drive near the GPU and 3.89 from one far from it: the right pair is worth
more than any tuning (GPUDirect Storage benchmarking guide). `gdscheck -p` shows IOMMU and BAR1, `nvidia-smi topo -m`
and `lspci -vv` the switches between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gdsload.system.probe.tree import Tree
from gdsload.system.ram import control_groups, meminfo, memory_room
from gdsload.system.units import format_bytes
from gdsload.tools.doctor.block import Volume
from gdsload.tools.doctor.context import Context, on_each, trouble
from gdsload.tools.doctor.finding import Finding, Fix, info, ok, unknown, warning

_FEW = 4
"""Processors below which a time limit slows the threads that read."""


def wsl(context: Context) -> Finding:
    """The Windows Subsystem for Linux, where there is no DMA from drives."""
    tree = context.system.tree
    release = tree.text("/proc/sys/kernel/osrelease", 256) or ""
    if "microsoft" not in release.lower() and not tree.exists("/dev/dxg"):
        return ok("not WSL")
    fix = Fix("Run on Linux itself; in WSL keep the data in its own file system, not under /mnt")
    return warning("this is WSL, where cuFile cannot use DMA", fix)


def processors(context: Context) -> Finding:
    """The processors that this process may use: its affinity, and the time limit of its control groups."""
    tree = context.system.tree
    status = tree.text("/proc/self/status") or ""
    mask = re.search(r"^Cpus_allowed:\s*([\da-f,]{1,4096})$", status, re.MULTILINE | re.ASCII)
    allowed = int(mask[1].replace(",", "") or "0", 16).bit_count() if mask else None
    quota = min(_quotas(tree), default=None)
    usable = min((count for count in (allowed, quota) if count), default=None)
    if usable is None:
        return unknown("the number of CPU cores for this process cannot be read")
    if quota is not None and quota == usable:
        message = f"the control group limits this process to {quota:g} CPU cores (cpu.max)"
        line = "# docker run --cpus 8 ...   or Kubernetes: resources: {limits: {cpu: 8}}"
        fix = Fix("Give the container 8 CPU cores per GPU", "container", "a container restart", (line,))
        return (warning if context.has_gpu and quota < _FEW else info)(message, fix)
    return ok(f"{usable:g} CPU cores")


def _quotas(tree: Tree) -> Iterator[float]:
    """The processors that each control group of this process has time for, v2 or v1."""
    for group, is_v2 in control_groups(tree, "cpu"):
        names = ("cpu.max",) if is_v2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = " ".join(tree.text(f"{group}/{name}", 64) or "" for name in names).split()
        if len(words) == 2 and all(word.isascii() and word.isdecimal() for word in words) and int(words[1]):
            yield int(words[0]) / int(words[1])


def page_cache(context: Context) -> Finding:
    """The room in the page cache, and whether the data fit into it."""
    room, size = memory_room(context.system.tree), context.place.nbytes
    evidence: dict[str, Any] = {"room_bytes": room, "data_bytes": size, "fits": None}
    if room is None:
        return unknown("the size of the memory cannot be read", **evidence)
    limited = " (the control group has no more)" if room != meminfo(context.system.tree, "MemAvailable") else ""
    if not size:
        return info(f"{format_bytes(room)} of memory are available to the page cache{limited}", **evidence)
    if context.place.in_memory:
        return ok(f"{format_bytes(size)} of data are in memory already", **evidence | {"fits": True})
    evidence["fits"] = size <= room
    both = f"{format_bytes(size)} of data, {format_bytes(room)} of memory{limited}"
    if size <= room:
        return ok(f"{both}: they fit into the page cache", **evidence)
    remedy = "Raise the container's memory limit if the host has more, since the page cache counts towards it"
    return info(f"{both}: they do not fit, so every epoch reads the drive", remedy if limited else "", **evidence)


def _node(context: Context, address: str) -> int | None:
    node = context.system.tree.number(f"/sys/bus/pci/devices/{address}/numa_node")
    return node if node is not None and node >= 0 else None  # -1: the firmware does not say


def _root(context: Context, address: str) -> str:
    """The root complex that a device is below, such as ``pci0000:00``; empty if it is not known."""
    path = context.system.tree.resolve(f"/sys/bus/pci/devices/{address}") if address else None
    return next((part for part in (path or "").split("/") if part.startswith("pci")), "")


def drives(context: Context, volume: Volume) -> Finding:
    """The NUMA nodes and root complexes of the GPU and of the drives of a mount."""
    gpus = {address: _node(context, address) for address in context.gpu_addresses()}
    nodes = {block.pci: _node(context, block.pci) for block in volume.drives if block.pci}
    evidence: dict[str, Any] = {"gpus": gpus, "drives": nodes, "device": volume.device, "shards": volume.shards}
    gpu, home = next(iter(gpus.items()), ("", None))
    near = Fix("Use a GPU near the drive (nvidia-smi topo -m), or put the data on a drive near this GPU")
    far = [f"drive {address} on {node}" for address, node in nodes.items() if None not in (node, home) and node != home]
    if far:
        return warning(f"GPU {gpu} is on NUMA node {home}, but {', '.join(far)}", near, **evidence)
    roots = {address: _root(context, address) for address in (gpu, *nodes)}
    other = [address for address in nodes if roots[gpu] and roots[address] not in ("", roots[gpu])]
    if other and not context.probe.proven:
        message = f"GPU {gpu} and drive {', '.join(other)} have different root complexes: cuFile may refuse DMA"
        return trouble(context, message, near, **evidence)
    if home is None or None in (nodes.values() or [None]):
        return info("the NUMA nodes of drive and GPU are not known", **evidence)
    return ok(f"drive and GPU are on NUMA node {home}", **evidence)


CHECKS = (
    ("machine.wsl", wsl),
    ("machine.processors", processors),
    ("memory.page-cache", page_cache),
    ("topology.drives", on_each(drives)),
)
