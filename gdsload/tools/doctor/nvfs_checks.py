"""The requirements of DMA through the kernel module nvidia-fs, one check each.

From NVIDIA's GPUDirect Storage troubleshooting guide, release notes, and the source of nvidia-fs.
"""

from __future__ import annotations

import re
from typing import Any

from gdsload.system.probe.known_bugs import driver_version, nvfs_version
from gdsload.tools.doctor.context import Context, condition
from gdsload.tools.doctor.finding import INITRAMFS, REBOOT, Finding, Fix, clip, info, warning
from gdsload.tools.doctor.p2p_checks import OPEN_DRIVER, SYMBOLS_LIMIT_BYTES

_HOOKS = re.compile(rb"\bnvme\w*_register_nvfs_dma_ops\b")
_FOLDER = "/proc/driver/nvidia-fs"
_PATCHED = Fix(
    "Install the nvme driver of DOCA-OFED 26.04 or later, which registers with nvidia-fs", "root", "a reboot",
    ("sudo apt install doca-ofed mlnx-nvme-dkms  # from NVIDIA's DOCA repository", INITRAMFS, REBOOT),
)  # fmt: skip
_NODES = {
    "docker": "# docker run -e NVIDIA_GDS=enabled ...   or: --device /dev/nvidia-fs0, and its siblings",
    "apptainer": "# apptainer run --nv --bind /dev/nvidia-fs0 ...",
    "kubernetes": "# env: [{name: NVIDIA_GDS, value: enabled}]",
}


def driver(context: Context) -> Finding:
    """The open NVIDIA kernel driver, which nvidia-fs needs from 2.17.5 on."""
    version, is_open = driver_version(context.system.tree)
    if not version:
        return condition(context, None, "the NVIDIA driver's version is not known")
    kind = "open" if is_open else "proprietary"
    return condition(context, is_open, f"the NVIDIA driver {version} has the {kind} kernel module", OPEN_DRIVER)


def module(context: Context) -> Finding:
    """The kernel module, and its device nodes in a container."""
    tree = context.system.tree
    version, nodes = clip(nvfs_version(tree)), tree.exists("/dev/nvidia-fs0")
    evidence: dict[str, Any] = {
        "loaded": context.nvfs, "version": version, "devices": tree.number(f"{_FOLDER}/devcount"), "nodes": nodes
    }  # fmt: skip
    if context.nvfs and nodes:
        return condition(context, True, f"nvidia-fs {version} is loaded", **evidence)
    if context.nvfs:
        line = _NODES[context.container or "docker"]
        fix = Fix("Start the container with NVIDIA_GDS=enabled", "container", "a container restart", (line,))
        message = f"nvidia-fs {version} is loaded, but there is no /dev/nvidia-fs0 here"
        return condition(context, False, message, fix, **evidence)
    install = "sudo apt install nvidia-fs || sudo dnf install nvidia-fs  # from NVIDIA's CUDA repository"
    built = bool(tree.names("/var/lib/dkms/nvidia-fs"))
    does = "Load nvidia-fs" if built else "Install and load nvidia-fs 2.26.6 or later"
    lines = ("sudo modprobe nvidia-fs",) if built else (install, "sudo modprobe nvidia-fs")
    return condition(context, False, "nvidia-fs is not loaded", Fix(does, "root", "", lines), **evidence)


def nvme(context: Context) -> Finding:
    """The nvme driver's hooks for nvidia-fs, which Linux' own nvme driver does not have."""
    if not any(block.kind == "nvme" for block in context.place.drives):
        return condition(context, True, "the data are not on NVMe, so its driver does not matter", patched=None)
    tree = context.system.tree
    modules = tree.text(f"{_FOLDER}/modules")
    registered = {line.partition(":")[0].strip() for line in (modules or "").splitlines()}
    symbols = tree.data("/proc/kallsyms", SYMBOLS_LIMIT_BYTES)
    patched = bool(_HOOKS.search(symbols)) if symbols else None
    evidence: dict[str, Any] = {"registered": sorted(map(clip, registered)), "patched": patched}
    if "nvme" in registered:
        return condition(context, True, "the nvme driver is registered with nvidia-fs", **evidence)
    if modules is not None and patched:
        message = "the nvme driver has hooks for nvidia-fs, but is not registered with it (DOCA 26.01 misnames them)"
        return condition(context, False, message, _PATCHED, **evidence)
    if modules is not None or patched is False:
        message = "the nvme driver is the kernel's own, without hooks for nvidia-fs"
        return condition(context, False, message, _PATCHED, **evidence)
    if patched:
        return condition(context, True, "the nvme driver has hooks for nvidia-fs", **evidence)
    return condition(context, None, "the nvme driver's hooks for nvidia-fs cannot be checked", **evidence)


def bugs(context: Context) -> Finding:
    """Known bugs of this nvidia-fs with this driver, recognised by their versions."""
    bug = context.bug
    if not context.nvfs:
        return info("nvidia-fs is not loaded", hangs=False)
    if bug is None:
        hidden = "; DKMS's log is not visible in a container" if context.container else ""
        return condition(context, True, f"no known bug of nvidia-fs with this driver{hidden}", hangs=False)
    fix = Fix(bug.remedy, "root", "a reboot if nvidia-fs is in use" if bug.hangs else "", bug.commands)
    if not bug.hangs:
        return condition(context, False, bug.what, fix, hangs=False)
    return warning(bug.what, fix, hangs=True, fulfilled=False)  # even if earlier reads used DMA


CHECKS = (
    ("cufile.nvfs-driver", driver),
    ("cufile.nvfs-nvme", nvme),
    ("cufile.nvidia-fs", module),
    ("cufile.nvfs-bugs", bugs),
)
