"""Checks of the path of the data: file system, drives, extents."""

from __future__ import annotations

import os
from typing import Any

from gdsload.system.probe.mounts import Mount
from gdsload.system.units import format_bytes
from gdsload.tools.doctor.block import Volume
from gdsload.tools.doctor.context import Context, on_each, trouble
from gdsload.tools.doctor.finding import REBOOT, Finding, Fix, clip, error, info, ok, quoted, unknown, warning

_SUPPORTED = ("lustre", "wekafs", "gpfs", "beegfs", "panfs", "scatefs", "virtiofs")
"""Besides ext4, XFS and NFS over RDMA; from the GPUDirect Storage documentation."""
_LAYERED = ("overlay", "aufs", "fuse.fuse-overlayfs")


def path(context: Context) -> Finding:
    """The path itself, and its shards."""
    place = context.place
    evidence = {"shards": place.shards, "bytes": place.nbytes, "lost": place.lost}
    name = clip(place.path)
    if place.exists is None:
        fix = Fix("Check whether its file system hangs", "root", "", ("sudo dmesg | tail -50",))
        return error(f"{name} did not answer in time", fix, **evidence)
    if place.lost:
        fix = Fix("Mount their drives", "root", "", (f"gdsload verify {quoted(place.path)}  # names them",))
        return error(f"{name}: the links of {place.lost} shards are broken", fix, **evidence)
    if not place.shards:
        return info(f"{name} has no safetensors files", **evidence)
    over = f" on {len(place.volumes)} mounts" if len(place.volumes) > 1 else ""
    files = f"{place.shards} safetensors file{'s' * (place.shards != 1)}"
    return ok(f"{name}: {files}, {format_bytes(place.nbytes)}{over}", **evidence)


def filesystem(context: Context, volume: Volume) -> Finding:
    """The file system, and whether cuFile can read it by DMA."""
    mount, in_memory = volume.mount, volume.in_memory
    if mount is None:
        return unknown("the file system is not in the mount table")
    evidence: dict[str, Any] = {"options": list(mount.options), "in_memory": in_memory}
    name = f"{clip(mount.kind, 30)} on {clip(mount.point)}"
    given = ", and give the container that folder as a volume" if context.container else ""
    local = Fix(f"Put the data on a local ext4 (with data=ordered) or XFS{given}")
    if mount.kind == "ext4":
        return _ext4(context, name, mount)
    if mount.kind == "xfs":
        return ok(f"{name}: cuFile supports it", **evidence)
    if mount.kind in _LAYERED:
        return trouble(context, f"{name}: the container's own layer, whose files cuFile refuses", local, **evidence)
    if in_memory:
        message = f"{name}: the data are in memory already, so the mapped backend needs no copy by the CPU"
        return info(message, **evidence)
    if mount.kind in ("nfs", "nfs4"):
        if any(option in ("proto=rdma", "rdma") for option in mount.options):
            return info(f"{name} over RDMA: cuFile supports it with nvidia-fs and the vendor's drivers", **evidence)
        fix = Fix("Mount it with proto=rdma, or copy the data to a local drive", "root")
        return trouble(context, f"{name}: NFS without RDMA, so no DMA", fix, **evidence)
    if mount.kind in _SUPPORTED:
        return info(f"{name}: cuFile supports it with nvidia-fs and the vendor's client", **evidence)
    return trouble(context, f"{name}: cuFile cannot read this file system by DMA", local, **evidence)


def _ext4(context: Context, name: str, mount: Mount) -> Finding:
    """Ext4 in ordered mode, by the mount table.

    The table leaves the mode out where it is the default, and cuFile looks only there. By Linux' fs/ext4/super.c it is
    shown if it was given when the file system was mounted; a remount changes nothing.
    """
    mode = next((option for option in mount.options if option.startswith("data=")), "")
    evidence = {"options": list(mount.options)}
    if mode == "data=ordered":
        return ok(f"{name}, data=ordered: cuFile supports it", **evidence)
    if mode:
        fix = Fix("Mount it with data=ordered", "root", "unmounting it")
        return trouble(context, f"{name}, {clip(mode)}: cuFile requires data=ordered", fix, **evidence)
    point, message = mount.point, f"{name}: data=ordered is not in the mount table, so cuFile refuses DMA"
    source, where, price = quoted(mount.source), quoted(point), "unmounting it, but no reboot"
    mounted = f"mount -o data=ordered {source}"
    lines: tuple[str, ...] = (f"sudo umount {where}", f"sudo {mounted} {where}", "# permanently: /etc/fstab")
    does = f"Mount {clip(point)} with data=ordered"
    if context.container or mount.root != "/":
        does = f"Mount {source} with data=ordered{', on the host' * bool(context.container)}"
        lines = (f"# where it is mounted: umount, then {mounted} (permanently: /etc/fstab)",)
    elif point == "/":
        grub = "sudo update-grub || sudo grub2-mkconfig -o /boot/grub2/grub.cfg"
        lines, price = ("# in /etc/default/grub, GRUB_CMDLINE_LINUX: rootflags=data=ordered", grub, REBOOT), "a reboot"
    fix = Fix(does, "root", price, lines)
    return trouble(context, message, fix, **evidence)


def direct_io(_context: Context, volume: Volume) -> Finding:
    """Direct I/O: reads that bypass the page cache."""
    trial = volume.trial
    if trial.direct is None:
        return unknown("direct I/O was not tried: there is no file here, and none can be created")
    if not trial.direct:
        fix = "Use ext4 or XFS with blocks of 4096 bytes, since cold reads through the page cache are slower"
        return warning(f"direct I/O does not work here ({clip(trial.direct_error)})", fix)
    return ok("direct I/O works")


def drives(context: Context, volume: Volume) -> Finding:
    """The drives, and the layers between them and the file system: RAID, device mapper, loop devices."""
    stack = volume.stack
    names = [f"{block.name} ({block.kind}{' ' * bool(block.detail)}{clip(block.detail, 40)})" for block in stack]
    said = ("name", "kind", "detail", "transport", "pci")
    evidence: dict[str, Any] = {"stack": [{name: getattr(block, name) for name in said} for block in stack]}
    if not stack:
        return info("no drive is visible below the file system", **evidence)
    message = clip(" over ".join(names), 400)
    between = [block for block in stack if block.kind in ("md", "dm", "loop")]
    if any((block.kind, block.detail) != ("md", "raid0") for block in between):
        fix = Fix("Put the data on a plain NVMe drive, or on md raid0 with nvidia-fs")
        return trouble(context, f"{message}: cuFile may not read through these layers", fix, **evidence)
    if any(block.kind != "nvme" for block in volume.drives):
        return info(f"{message}: not NVMe, so DMA from the drive to the GPU is not possible", **evidence)
    return ok(f"{message}, which nvidia-fs reads by DMA" if between else message, **evidence)


def link(context: Context) -> Finding:
    """The PCIe links of the drives: one with fewer lanes than possible is slower."""
    tree, known, narrow = context.system.tree, [], []
    for block in context.place.drives:
        folder = f"/sys/bus/pci/devices/{block.pci}"
        names = ("current_link_speed", "current_link_width", "max_link_width")
        speed, width, most = (clip(tree.text(f"{folder}/{name}", 64) or "", 20) if block.pci else "" for name in names)
        if speed and width:
            known.append(f"{block.name}: {speed} x{width}")
        if width.isdecimal() and most.isdecimal() and int(width) < int(most):
            narrow.append(f"{block.name} has {width} of {most} lanes")
    if narrow:
        return warning(f"{', '.join(narrow)}, so it reads slower", "Check the slot of the drive, and reseat it")
    return ok("; ".join(known)) if known else info("the PCIe links of the drives are not visible")


def extents(context: Context, volume: Volume) -> Finding:
    """Holes and unwritten extents in one file: cuFile reads files that have them through the CPU."""
    trial = volume.trial
    if trial.hole is None:
        return ok("a file here shows no hole and no unwritten extent")
    files = f"{quoted(os.path.dirname(trial.file))}/*.safetensors"
    line = f'for file in {files}; do cp --sparse=never "$file" "$file.new" && mv "$file.new" "$file"; done'
    fix = Fix("Rewrite the files without holes", commands=(line,))
    message = f"{clip(trial.file)} has a hole or unwritten extent at byte {trial.hole}: cuFile reads it through the CPU"
    return trouble(context, message, fix)


CHECKS = (
    ("storage.path", path),
    ("storage.filesystem", on_each(filesystem)),
    ("storage.drives", on_each(drives)),
    ("storage.link", link),
    ("storage.extents", on_each(extents)),
    ("storage.direct-io", on_each(direct_io)),
)
