"""Checks of the machine: its kind, the memory that the page cache can have, and the NUMA nodes of drives and GPUs.

On a DGX-2, NVIDIA measured 6.52 GiB/s from a drive near the GPU and 3.89 from one far from it: the right pair is worth
more than any tuning (GPUDirect Storage benchmarking guide). `gdscheck -p` shows IOMMU and BAR1, `nvidia-smi topo -m`
and `lspci -vv` the switches between them.
"""

from __future__ import annotations

from typing import Any

from gdsload.system.ram import cgroup_limit, memory_room
from gdsload.system.units import format_bytes
from gdsload.tools.doctor.context import Context
from gdsload.tools.doctor.finding import Finding, clip, info, ok, unknown, warning

_WORDS = ("docker", "kubepods", "containerd", "libpod", "lxc", "garden")
_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER")


def container(context: Context) -> Finding:
    """Signs of a container."""
    tree, environ = context.system.tree, context.system.environ
    groups = tree.text("/proc/1/cgroup") or ""
    signs = [path for path in ("/.dockerenv", "/run/.containerenv") if tree.exists(path)]
    signs += [f"/proc/1/cgroup says {word}" for word in _WORDS if word in groups]
    signs += [f"{name} is set" for name in _VARIABLES if environ.get(name)]
    if "gVisor" in (tree.text("/proc/version") or ""):
        signs.append("the kernel is gVisor")
    if not signs:
        return ok("no sign of a container", signs=[])
    message = f"this is a container ({', '.join(signs)}): what it does not show may still be there"
    return info(message, signs=signs)


def wsl(context: Context) -> Finding:
    """The Windows Subsystem for Linux, where there is no DMA from drives."""
    tree = context.system.tree
    release = tree.text("/proc/sys/kernel/osrelease", 256) or ""
    if "microsoft" not in release.lower() and not tree.exists("/dev/dxg"):
        return ok("not WSL", release=clip(release))
    remedy = "Run on Linux itself for DMA; keep the data inside WSL's own file system, not under /mnt."
    return warning("this is WSL: cuFile cannot work by DMA", remedy, release=clip(release))


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


def _node(context: Context, address: str) -> int | None:
    node = context.system.tree.number(f"/sys/bus/pci/devices/{address}/numa_node")
    return node if node is not None and node >= 0 else None  # -1: the firmware does not say


def drives(context: Context) -> Finding:
    """The drives of each mount, and the NUMA nodes of drives and GPUs."""
    gpus = {address: _node(context, address) for address in context.gpu_addresses()}
    mounts: list[dict[str, Any]] = [
        {
            "mount": volume.point, "device": volume.device, "shards": volume.shards, "bytes": volume.nbytes,
            "drives": {block.pci: _node(context, block.pci) for block in volume.drives if block.pci},
        }
        for volume in context.place.volumes
    ]  # fmt: skip
    evidence: dict[str, Any] = {"gpus": gpus, "mounts": mounts}
    gpu, home = next(iter(gpus.items()), ("", None))
    nodes = {address: node for mount in mounts for address, node in mount["drives"].items()}
    far = [f"drive {address} on {node}" for address, node in nodes.items() if None not in (node, home) and node != home]
    if far:
        remedy = "Use a GPU on the drive's NUMA node (nvidia-smi topo -m), or put the data on a drive near this GPU."
        return warning(f"GPU {gpu} is on NUMA node {home}, but {', '.join(far)}", remedy, **evidence)
    if len(mounts) > 1:
        listed = [f"{clip(one['mount'])} {one['shards']} shards on {clip(one['device'])}" for one in mounts]
        return info(f"{len(mounts)} mounts: {', '.join(listed)}", **evidence)
    if home is None or None in (nodes.values() or [None]):
        return info("the NUMA nodes of drive and GPU are not known", **evidence)
    return ok(f"drive and GPU are on NUMA node {home}", **evidence)


CHECKS = (
    ("machine.container", container),
    ("machine.wsl", wsl),
    ("memory.page-cache", page_cache),
    ("topology.drives", drives),
)
