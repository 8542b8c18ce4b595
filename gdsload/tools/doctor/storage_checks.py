"""Checks of the place where the data are."""

from __future__ import annotations

from typing import Any

from gdsload.system.units import format_bytes
from gdsload.tools.doctor.context import Context, on_each
from gdsload.tools.doctor.finding import Finding, clip, error, info, ok, unknown, warning

__all__ = ["CHECKS"]

_NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "afs",
    "glusterfs",
    "ceph",
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.gcsfuse",
)
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
    if mount.kind in _NETWORK:
        return _trouble(context, f"{name}: a network file system that cuFile does not read by DMA", _LOCAL, **evidence)
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


def attributes(context: Context) -> Finding:
    """Encryption, compression and other attributes with which cuFile refuses files."""
    found = list(context.file.attributes)
    options = context.place.mount.options if context.place.mount else ()
    found += [clip(option, 40) for option in options if option.startswith(("compress", "test_dummy_encryption"))]
    encrypted = [
        block.name for block in context.place.stack if block.kind == "dm" and block.detail.startswith("CRYPT-")
    ]
    found += [f"{name} is encrypted" for name in encrypted]
    if found:
        remedy = "Keep the data unencrypted, uncompressed and without chattr's +i and +a."
        return _trouble(context, f"cuFile cannot read this by DMA: {', '.join(found)}", remedy, attributes=found)
    return ok("not encrypted, compressed, immutable or append-only", attributes=[])


def direct_io(context: Context) -> Finding:
    """Direct I/O: reads that bypass the page cache."""
    trial = context.file
    evidence: dict[str, Any] = {
        "works": trial.direct, "error": trial.direct_error, "memory_align": trial.memory_align,
        "offset_align": trial.offset_align, "file": trial.file,
    }  # fmt: skip
    if trial.direct is None:
        return unknown("direct I/O was not tried: there is no file here, and none can be made", **evidence)
    if not trial.direct:
        remedy = "Reads then go through the page cache, which is slower when cold; local ext4 and XFS have it."
        return warning(f"direct I/O does not work here ({clip(trial.direct_error)})", remedy, **evidence)
    if trial.offset_align and trial.offset_align > 4096:
        remedy = "Shards are aligned to 4096 bytes: make the file system with 4096-byte blocks."
        return warning(f"direct I/O wants offsets aligned to {trial.offset_align} bytes", remedy, **evidence)
    said = f", aligned to {trial.offset_align} bytes" if trial.offset_align else ""
    return ok(f"direct I/O works{said}", **evidence)


def nowait(context: Context) -> Finding:
    """Reads that do not wait for the drive, which show the residency of other users' files."""
    trial = context.file
    evidence: dict[str, Any] = {"works": trial.nowait, "error": trial.nowait_error}
    if trial.nowait:
        return ok("reads that do not wait (RWF_NOWAIT) work", **evidence)
    if context.place.in_memory:
        return ok("all files are in memory: nothing has to be asked", **evidence)
    if trial.nowait is None:
        return unknown(
            f"reads that do not wait were not tried{': ' * bool(trial.nowait_error)}{trial.nowait_error}",
            **evidence,
        )
    message = f"reads that do not wait do not work ({clip(trial.nowait_error)}): residency stays unknown"
    return info(message, **evidence)


def layers(context: Context) -> Finding:
    """RAID and device mapper between file system and drives."""
    stack = context.place.stack
    names = [f"{block.name} ({block.kind}{' ' * bool(block.detail)}{clip(block.detail, 40)})" for block in stack]
    evidence: dict[str, Any] = {
        "stack": [{"name": block.name, "kind": block.kind, "detail": clip(block.detail)} for block in stack]
    }
    if not stack:
        return info("there is no block device below the file system that can be seen here", **evidence)
    between = [block for block in stack if block.kind in ("md", "dm", "loop")]
    if not between:
        return ok("no RAID and no device mapper", **evidence)
    message = f"layers: {' over '.join(names)}"
    plain = all(block.kind == "md" and block.detail == "raid0" for block in between)
    if plain and context.nvfs:
        return ok(f"{message}; nvidia-fs reads md raid0 by DMA", **evidence)
    if any(block.kind == "loop" for block in between):
        return _trouble(context, f"{message}: a loop device's reads go through the CPU", _LOCAL, **evidence)
    if plain:
        remedy = "Mount the drives one by one, or load nvidia-fs."
        return _trouble(context, f"{message}: P2PDMA cannot read RAID", remedy, **evidence)
    if any(block.kind == "md" for block in between):
        remedy = "Of RAID, cuFile reads only raid0 by DMA, and only through nvidia-fs."
        return _trouble(context, message, remedy, **evidence)
    return info(f"{message}: cuFile may refuse to read through the device mapper", **evidence)


def drive(context: Context) -> Finding:
    """The drive itself."""
    drives = context.place.drives
    evidence: dict[str, Any] = {
        "drives": [
            {
                "name": block.name,
                "kind": block.kind,
                "model": clip(block.detail),
                "transport": block.transport,
                "pci": block.pci,
            }
            for block in drives
        ]
    }
    if not drives:
        return info("no drive can be seen below the file system", **evidence)
    names = ", ".join(
        f"{block.name} ({block.kind}{' ' * bool(block.detail)}{clip(block.detail, 40)})" for block in drives
    )
    if all(block.kind == "nvme" for block in drives):
        return ok(f"{clip(names, 200)}", **evidence)
    what = "a virtual machine's disk" if all(block.kind in ("virtio", "xen") for block in drives) else "not NVMe"
    return info(f"{clip(names, 200)}: {what}, so DMA from the drive to the GPU is not to be had", **evidence)


CHECKS = (
    ("storage.path", path),
    ("storage.filesystem", on_each(filesystem)),
    ("storage.attributes", on_each(attributes)),
    ("storage.layers", on_each(layers)),
    ("storage.drive", drive),
    ("storage.direct-io", on_each(direct_io)),
    ("storage.nowait", on_each(nowait)),
)
