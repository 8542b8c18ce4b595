"""Checks of the places of drives and GPUs: mounts and NUMA nodes.

On a DGX-2, NVIDIA measured 6.52 GiB/s from a drive near the GPU and 3.89 from one far from it: the right pair is worth
more than any tuning (GPUDirect Storage benchmarking guide). `gdscheck -p` shows IOMMU and BAR1, `nvidia-smi topo -m`
and `lspci -vv` the switches between them.
"""

from __future__ import annotations

from typing import Any

from gdsload.tools.doctor.context import Context
from gdsload.tools.doctor.finding import Finding, clip, info, ok, warning

__all__ = ["CHECKS"]


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


CHECKS = (("topology.drives", drives),)
