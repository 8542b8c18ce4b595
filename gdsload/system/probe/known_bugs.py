"""Known bugs of nvidia-fs, by its version and the driver's: some hang a machine at the first read.

A process that hangs in the kernel cannot be killed, so this check comes before the trial read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gdsload.system.probe.tree import Tree

_VERSION = re.compile(r"\b(\d{3,4}(?:\.\d+){1,2})\b")
_SOURCES = re.compile(rb"NVIDIA_SRC_DIR=\S*/nvidia-(?:srv-)?(\d{3,4})(\.[\d.]*\d)")
_NEW_TABLES = 580
"""The first driver with page tables of version 2, which crash an nvidia-fs that was built for an older driver."""
_DIED = 1 << 7
"""The bit of /proc/sys/kernel/tainted for an oops of the kernel (Documentation/admin-guide/tainted-kernels)."""


@dataclass(frozen=True, slots=True)
class KnownBug:
    """A bug that this machine has.

    Attributes:
        what: the effect and its cause.
        remedy: what to do, in the imperative.
        commands: shell commands for it, to run as root.
        hangs: whether a read may hang in the kernel.
    """

    what: str
    remedy: str
    commands: tuple[str, ...]
    hangs: bool


def driver_version(tree: Tree) -> tuple[str, bool]:
    """The version of the NVIDIA kernel driver (empty if there is none), and whether it is the open one.

    From the first line of /proc/driver/nvidia/version: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570".
    """
    text = (tree.text("/proc/driver/nvidia/version") or "").partition("\n")[0]
    match = _VERSION.search(text)
    return (match[1] if match else ""), "Open Kernel Module" in text


def nvfs_version(tree: Tree) -> str:
    """The version of the loaded nvidia-fs, as exact as the kernel or DKMS gives it; empty if it is not loaded."""
    loaded = (tree.text("/proc/driver/nvidia-fs/version", 256) or "").rpartition(":")[2].strip()
    exact = (tree.text("/sys/module/nvidia_fs/version", 256) or "").strip()
    built = tree.names("/var/lib/dkms/nvidia-fs") if loaded else []
    found = [name for name in (exact, *built) if re.fullmatch(rf"{re.escape(loaded)}\.[\d.]*\d", name, re.ASCII)]
    return found[0] if found and (found[0] == exact or len(found) == 1) else loaded


def known_bug(tree: Tree) -> KnownBug | None:
    """The worst known bug of nvidia-fs that this machine has; None if nvidia-fs is not loaded, or has none."""
    version, driver = nvfs_version(tree), driver_version(tree)[0]
    major = int(driver.partition(".")[0]) if driver else 0
    if not version:
        return None
    if major >= _NEW_TABLES and (tree.number("/proc/sys/kernel/tainted") or 0) & _DIED:
        return KnownBug(
            "the kernel had an oops since boot; if nvidia-fs caused it, the next read hangs",
            "Look for nvidia-fs in the kernel's log, and reboot",
            ("sudo dmesg | grep -B2 -A8 'kernel BUG'", "sudo reboot"),
            hangs=True,
        )
    built = _built_for(tree, version)
    if built and int(built.partition(".")[0]) < _NEW_TABLES <= major:
        # NVIDIA/gds-nvidia-fs#66: "Incompatible page table version 0x00020000", then "kernel BUG".
        again = f"nvidia-fs/{version} -k $(uname -r) --force"
        source = f"sudo NVIDIA_SRC_DIR=/usr/src/nvidia-{driver}/nvidia"
        return KnownBug(
            f"nvidia-fs {version} was built for driver {built}, and {driver} is loaded: the first read hangs in the "
            "kernel (kernel BUG, page table version 0x00020000)",
            "Rebuild nvidia-fs for the loaded driver",
            (
                f"{source} dkms build {again}",
                f"{source} dkms install {again}",
                "sudo modprobe -r nvidia_fs && sudo modprobe nvidia_fs",
            ),
            hangs=True,
        )
    if version == "2.25.6":  # NVIDIA's release notes, known issues; gds-nvidia-fs#60
        update = "sudo apt install --only-upgrade nvidia-fs-dkms || sudo dnf upgrade nvidia-fs-dkms"
        why = "nvidia-fs 2.25.6 fails to map memory, so cuFile's reads fail (NVIDIA's known issues)"
        return KnownBug(why, "Install nvidia-fs 2.25.7 or later", (update,), hangs=False)
    return None


def _built_for(tree: Tree, version: str) -> str:
    """The version of the driver that DKMS built this nvidia-fs for, from its log; empty if the log is unreadable."""
    release = tree.text("/proc/sys/kernel/osrelease", 256) or ""
    folder = f"/var/lib/dkms/nvidia-fs/{version}/{release}"
    if not release or "/" in release or "/" in version:
        return ""
    for name in tree.names(folder)[:4]:
        if found := _SOURCES.search(tree.data(f"{folder}/{name}/log/make.log", 2**20) or b""):
            return (found[1] + found[2]).decode()
    return ""
