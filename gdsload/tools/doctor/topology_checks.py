"""Checks of the connection between drive and GPU.

On a DGX-2, NVIDIA measured 6.52 GiB/s from a drive near the GPU and 3.89 from one far from it: the right pair is worth
more than any tuning (GPUDirect Storage benchmarking guide). `gdscheck -p` shows IOMMU and BAR1, `lspci -vv` links and
ACS.
"""

from __future__ import annotations

import re
from typing import Any

from gdsload.tools.doctor.block import pci_addresses
from gdsload.tools.doctor.context import Context
from gdsload.tools.doctor.finding import Finding, clip, info, ok, unknown, warning

__all__ = ["CHECKS"]

_DEVICES = "/sys/bus/pci/devices"


def _drives(context: Context) -> list[str]:
    return list(dict.fromkeys(block.pci for block in context.place.drives if block.pci))


def _node(context: Context, address: str) -> int | None:
    node = context.system.tree.number(f"{_DEVICES}/{address}/numa_node")
    return node if node is not None and node >= 0 else None  # -1: the firmware does not say


def _distance(context: Context, gpu: str, drive: str) -> str:
    """The distance of two devices, from their common part in sysfs: host bridge, root port, switch ports, device."""
    tree = context.system.tree
    paths = [tree.resolve(f"{_DEVICES}/{address}") for address in (gpu, drive)]
    if paths[0] is None or paths[1] is None:
        return "unknown"
    bridges = [re.search(r"/pci[0-9a-f]{4,8}:[0-9a-f]{2}/", path or "") for path in paths]
    if bridges[0] and bridges[1] and bridges[0][0] == bridges[1][0]:
        common = 0
        for one, other in zip(pci_addresses(paths[0]), pci_addresses(paths[1]), strict=False):
            if one != other:
                break
            common += 1
        return "same switch" if common > 1 else "same root port" if common else "same root complex"
    nodes = _node(context, gpu), _node(context, drive)
    if None in nodes:
        return "another root complex"
    return "same NUMA node" if nodes[0] == nodes[1] else "another NUMA node"


def distance(context: Context) -> Finding:
    """The distance of drive and GPU on the PCIe bus."""
    gpu, drives = context.gpu_address(), _drives(context)
    found = {drive: _distance(context, gpu, drive) for drive in drives} if gpu else {}
    evidence: dict[str, Any] = {"gpu": gpu, "drives": found}
    if not found:
        missing = "GPU" if not gpu else "drive with a place on the PCI bus"
        return info(f"no {missing}, so there is no distance", **evidence)
    message = ", ".join(f"drive {drive} and GPU {gpu}: {what}" for drive, what in found.items())
    if "another NUMA node" in found.values():
        remedy = "Use a GPU on the drive's NUMA node (nvidia-smi topo -m), or put the data on a drive near this GPU."
        return warning(message, remedy, **evidence)
    if set(found.values()) <= {"same switch", "same root port"}:
        return ok(message, **evidence)
    if "unknown" in found.values():
        return unknown(message, **evidence)
    return info(message, **evidence)


def drives(context: Context) -> Finding:
    """The drives of each mount, and the distance of each from each GPU."""
    gpus, listed = context.gpu_addresses(), []
    for volume in context.place.volumes:
        addresses = list(dict.fromkeys(block.pci for block in volume.drives if block.pci))
        listed.append({
            "mount": volume.point, "device": volume.device, "shards": volume.shards, "bytes": volume.nbytes,
            "drives": [
                {
                    "pci": address,
                    "node": _node(context, address),
                    "gpus": {gpu: _distance(context, gpu, address) for gpu in gpus},
                }
                for address in addresses
            ],
        })  # fmt: skip
    evidence: dict[str, Any] = {"gpus": gpus, "mounts": listed}
    if len(listed) < 2:
        return ok("all on one mount", **evidence)
    said = [f"{clip(one['mount'])} {one['shards']} shards on {clip(one['device'])}" for one in listed]
    return info(f"{len(listed)} mounts: {', '.join(said)}", **evidence)


CHECKS = (("topology.drives", drives), ("topology.distance", distance))
