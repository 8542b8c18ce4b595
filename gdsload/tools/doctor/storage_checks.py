"""Checks of the place where the data are."""

from __future__ import annotations

from typing import Any

from gdsload.system.units import format_bytes
from gdsload.tools.doctor.context import Context, on_each
from gdsload.tools.doctor.finding import Finding, clip, error, info, ok, unknown, warning

_SUPPORTED = ("lustre", "wekafs", "gpfs", "beegfs", "panfs", "scatefs", "virtiofs")
"""Besides ext4, XFS and NFS over RDMA; from the GPUDirect Storage documentation."""
_LAYERED = ("overlay", "aufs", "fuse.fuse-overlayfs")
_LOCAL = "Put the data on a local ext4 (mounted with data=ordered) or XFS, and give containers that folder as a volume."


def _trouble(context: Context, message: str, remedy: str, **evidence: Any) -> Finding:
    return warning(message, remedy, **evidence) if context.has_gpu else info(message, **evidence)


def path(context: Context) -> Finding:
    """The path itself: whether it exists, and its shards."""
    place = context.place
    evidence: dict[str, Any] = {
        "path": place.path,
        "exists": place.exists,
        "shards": place.shards,
        "bytes": place.nbytes,
        "lost": place.lost,
    }
    if place.exists is None:
        return error(f"{clip(place.path)} did not answer in time", "Look whether its file system hangs.", **evidence)
    if not place.exists:
        remedy = "Name the folder that holds the data, or will."
        return error(f"there is no {clip(place.path)}; {clip(place.real)} was looked at instead", remedy, **evidence)
    if place.lost:
        message = f"{clip(place.path)}: links of {place.lost} shards lead to where there is nothing"
        return error(message, "Mount their drives; gdsload verify names them.", **evidence)
    if not place.shards:
        return info(f"{clip(place.path)} holds no safetensors files", **evidence)
    over = f" on {len(place.volumes)} mounts" if len(place.volumes) > 1 else ""
    files = f"{place.shards} safetensors file{'s' * (place.shards != 1)}"
    return ok(f"{clip(place.path)}: {files}, {format_bytes(place.nbytes)}{over}", **evidence)


def filesystem(context: Context) -> Finding:
    """The file system, and whether cuFile can read it by DMA."""
    mount = context.place.mount
    if mount is None:
        return unknown("the mount table does not say what the path is on", kind="", options=[])
    evidence: dict[str, Any] = {
        "kind": mount.kind, "point": mount.point, "root": mount.root, "source": mount.source,
        "options": list(mount.options), "bind": mount.root != "/",
    }  # fmt: skip
    name = f"{clip(mount.kind, 30)} on {clip(mount.point)}"
    if mount.kind == "ext4":
        return _ext4(context, name, evidence)
    if mount.kind == "xfs":
        return ok(f"{name}: cuFile supports it", **evidence)
    if mount.kind in _LAYERED:
        return _trouble(context, f"{name}: a container's own layer, where cuFile refuses files", _LOCAL, **evidence)
    if context.place.in_memory:
        message = f"{name}: the data are in memory already; cuFile would copy them by the CPU, `mapped` need not"
        return info(message, **evidence)
    if mount.kind in ("nfs", "nfs4"):
        if any(option in ("proto=rdma", "rdma") for option in mount.options):
            return info(f"{name} over RDMA: cuFile supports it with nvidia-fs and the vendor's drivers", **evidence)
        return _trouble(
            context,
            f"{name}: NFS without RDMA, so no DMA",
            "Mount it with proto=rdma, or copy it.",
            **evidence,
        )
    if mount.kind in _SUPPORTED:
        return info(f"{name}: cuFile supports it with nvidia-fs and the vendor's client", **evidence)
    return _trouble(context, f"{name}: none that cuFile reads by DMA", _LOCAL, **evidence)


def _ext4(context: Context, name: str, evidence: dict[str, Any]) -> Finding:
    """Ext4 in ordered mode, by the mount table.

    The table leaves the mode out where it is the default, and cuFile looks only there. By Linux' fs/ext4/super.c it is
    shown if it was given when the file system was mounted; a remount changes nothing.
    """
    mode = next((option for option in evidence["options"] if option.startswith("data=")), "")
    evidence["data"] = mode[5:]
    if mode == "data=ordered":
        return ok(f"{name}, data=ordered: cuFile supports it", **evidence)
    if mode:
        return _trouble(context, f"{name}, {clip(mode)}: cuFile wants data=ordered", "Mount it with it.", **evidence)
    where = "rootflags=data=ordered on the kernel's command line" if evidence["point"] == "/" else "/etc/fstab"
    remedy = (
        f"Unmount it and mount it again with -o data=ordered (for good: {where}). It is the default, but cuFile wants "
        "to see it in the mount table, and a remount does not show it."
    )
    return _trouble(
        context, f"{name}: data=ordered is not in the mount table, so cuFile refuses DMA", remedy, **evidence
    )


def direct_io(context: Context) -> Finding:
    """Direct I/O: reads that bypass the page cache."""
    trial = context.file
    evidence: dict[str, Any] = {"works": trial.direct, "error": trial.direct_error, "file": trial.file}
    if trial.direct is None:
        return unknown("direct I/O was not tried: there is no file here, and none can be made", **evidence)
    if not trial.direct:
        remedy = (
            "Reads then go through the page cache, slower when cold; ext4 and XFS with blocks of 4096 bytes have it."
        )
        return warning(f"direct I/O does not work here ({clip(trial.direct_error)})", remedy, **evidence)
    return ok("direct I/O works", **evidence)


def drives(context: Context) -> Finding:
    """The drives, and the layers between them and the file system: RAID, device mapper, loop devices."""
    stack = context.place.stack
    names = [f"{block.name} ({block.kind}{' ' * bool(block.detail)}{clip(block.detail, 40)})" for block in stack]
    said = ("name", "kind", "detail", "transport", "pci")
    evidence: dict[str, Any] = {"stack": [{name: getattr(block, name) for name in said} for block in stack]}
    if not stack:
        return info("no drive can be seen below the file system", **evidence)
    message = clip(" over ".join(names), 400)
    between = [block for block in stack if block.kind in ("md", "dm", "loop")]
    if any((block.kind, block.detail) != ("md", "raid0") for block in between):
        remedy = "cuFile reads by DMA from plain NVMe drives, and from md raid0 through nvidia-fs."
        return _trouble(context, f"{message}: layers that cuFile may not read through", remedy, **evidence)
    if any(block.kind != "nvme" for block in context.place.drives):
        return info(f"{message}: not NVMe, so DMA from the drive to the GPU is not to be had", **evidence)
    return ok(f"{message}, which nvidia-fs reads by DMA" if between else message, **evidence)


CHECKS = (
    ("storage.path", path),
    ("storage.filesystem", on_each(filesystem)),
    ("storage.drives", on_each(drives)),
    ("storage.direct-io", on_each(direct_io)),
)
