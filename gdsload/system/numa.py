"""The NUMA node of a GPU: threads that read for it run there, and pinned memory is there.

Bytes that cross between nodes twice, from the drive and to the GPU, share the link of the sockets with all else.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import torch

from gdsload.system.probe.tree import Tree

_NODES = "/sys/devices/system/node"


def node_of(device: torch.device, tree: Tree | None = None) -> int:
    """The NUMA node of a GPU; -1 if there is only one node, or it is not known."""
    tree = tree or Tree()
    if len([name for name in tree.names(_NODES) if name.removeprefix("node").isdigit()]) < 2:
        return -1
    try:
        found: Any = torch.cuda.get_device_properties(device)
        place = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
        node = tree.number(f"/sys/bus/pci/devices/{place}/numa_node")
    except (AttributeError, ValueError, RuntimeError, AssertionError):  # a torch that does not know it, or no GPU
        return -1
    return -1 if node is None else max(node, -1)


def processors_near(device: torch.device, tree: Tree | None = None) -> set[int] | None:
    """The processors on which threads that serve a GPU should run: those of its node that this thread may run on.

    None if its node is not known, there is only one, or this thread may run on none of them: then threads run where
    they are.
    """
    node = node_of(device, tree)
    if node < 0:
        return None
    found: set[int] = set()
    try:
        for part in filter(None, ((tree or Tree()).text(f"{_NODES}/node{node}/cpulist") or "").split(",")):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    except ValueError:
        return None
    return found & os.sched_getaffinity(0) or None


def stay_on(processors: Collection[int] | None) -> None:
    """Have this thread, and no other, run on these processors from now on; None: where it may run now."""
    if processors is not None:
        with suppress(OSError):  # they were taken from the process meanwhile
            os.sched_setaffinity(0, processors)
