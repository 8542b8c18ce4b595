"""Checks of the kind of machine."""

from __future__ import annotations

from gdsload.tools.doctor.context import Context
from gdsload.tools.doctor.finding import Finding, clip, info, ok, warning

__all__ = ["CHECKS"]

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


CHECKS = (("machine.container", container), ("machine.wsl", wsl))
