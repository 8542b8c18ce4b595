"""The mounts on which the shards of a dataset are, and the block devices below each with their places on the bus.

A file system's device is a partition, a drive, or a layer (device mapper, md RAID, loop); below layers are `slaves`.
The layout of sysfs is that of Linux' Documentation/ABI/stable/sysfs-block.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache

from gdsload.shards.catalog import SHARD_SUFFIX
from gdsload.system.probe.mounts import IN_MEMORY, Mount, find_mount, read_mounts
from gdsload.system.probe.tree import Tree
from gdsload.tools.doctor.trials import TRIED_BYTES, FileTrial

PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NAME = re.compile(r"[A-Za-z0-9!_.:-]{1,64}")
_KINDS = (
    ("nvme", "nvme"), ("vd", "virtio"), ("xvd", "xen"), ("sd", "scsi"), ("md", "md"), ("dm-", "dm"), ("loop", "loop"),
    ("zram", "ram"), ("ram", "ram"), ("pmem", "pmem"), ("mmcblk", "mmc"), ("nbd", "network"), ("rbd", "network"),
    ("drbd", "network"),
)  # fmt: skip
_DETAILS = {"md": "md/level", "dm": "dm/uuid", "loop": "loop/backing_file"}
_NUMBER = re.compile(r"\d+:\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """A block device.

    Attributes:
        number: ``major:minor``.
        kind: ``nvme``, ``virtio``, ``xen``, ``scsi``, ``md``, ``dm``, ``loop``, ``ram``, ``pmem``, ``mmc``,
            ``network`` or ``other``; that of the drive for a partition.
        path: its folder in sysfs, without links.
        detail: the drive's model, the RAID level, what the device mapper does, or what a loop device reads.
        transport: how an NVMe drive is attached: ``pcie``, ``tcp``, ``rdma``, ``fc``; empty for others.
        pci: PCI address of the drive's controller, or empty.
    """

    name: str
    number: str
    kind: str
    path: str
    partition: bool
    detail: str
    transport: str
    pci: str


def find_block(tree: Tree, mount: Mount) -> BlockDevice | None:
    """The block device under a mount, or None where there is none (tmpfs, NFS, overlay) or none is visible."""
    if not mount.number.startswith("0:"):
        return _block(tree, f"/sys/dev/block/{mount.number}")
    if mount.source.startswith("/dev/"):  # btrfs has other numbers; its source is one of its devices
        name = mount.source.rpartition("/")[2]
        real = tree.resolve(mount.source)
        return _named(tree, name) or _named(tree, real.rpartition("/")[2] if real else "")
    return None


def _named(tree: Tree, name: str) -> BlockDevice | None:
    return _block(tree, f"/sys/class/block/{name}") if _NAME.fullmatch(name) else None


def _block(tree: Tree, link: str) -> BlockDevice | None:
    path = tree.resolve(link)
    if path is None or not path.startswith("/sys/"):
        return None
    name = path.rpartition("/")[2]
    kind = next((kind for prefix, kind in _KINDS if name.startswith(prefix)), "other")
    partition = tree.exists(f"{path}/partition")
    drive = path.rpartition("/")[0] if partition else path
    transport, controller = _controller(tree, drive) if kind == "nvme" else ("", drive)
    number = tree.text(f"{path}/dev", 64) or ""
    return BlockDevice(
        name=name,
        number=number if _NUMBER.fullmatch(number) else "",
        kind=kind,
        path=path,
        partition=partition,
        detail=tree.text(f"{drive}/{_DETAILS.get(kind, 'device/model')}", 1024) or "",
        transport=transport,
        pci=_pci_address(controller),
    )


def _controller(tree: Tree, drive: str) -> tuple[str, str]:
    """Transport and sysfs folder of an NVMe drive's controller.

    With NVMe multipath the drive belongs to a subsystem in /sys/devices/virtual, which links to its controllers.
    """
    parent = drive.rpartition("/")[0]
    candidates = [parent, f"{drive}/device"]
    candidates += [f"{parent}/{other}" for other in tree.names(parent) if re.fullmatch(r"nvme\d+", other)]
    for candidate in candidates:
        controller = tree.resolve(candidate)
        transport = tree.text(f"{controller}/transport", 64) if controller else None
        if controller and transport:
            return transport, controller
    return "pcie" if _pci_address(drive) else "", drive


def stack_of(tree: Tree, block: BlockDevice) -> list[BlockDevice]:
    """A device and all devices below it, from top to bottom; every device once."""
    found: dict[str, BlockDevice] = {}
    waiting = [block]
    while waiting:
        upper = waiting.pop(0)
        if upper.name not in found:
            found[upper.name] = upper
            drive = upper.path.rpartition("/")[0] if upper.partition else upper.path
            below = (_named(tree, name) for name in tree.names(f"{drive}/slaves"))
            waiting += [lower for lower in below if lower is not None]
    return list(found.values())


def _pci_address(path: str) -> str:
    """The PCI address of the device in a sysfs path, the last one in it; empty if there is none."""
    return next((part for part in reversed(path.split("/")) if PCI_ADDRESS.fullmatch(part)), "")


@dataclass(frozen=True, slots=True)
class Volume:
    """A mount, and the data on it.

    Attributes:
        folder: a folder of it that data are in, without links.
        mount: None if the mount table does not say.
        stack: block devices from the file system down to the drives.
        shards: number of safetensors files on it, and `nbytes` the bytes in them.
        file: one of them that is large enough for a trial read, or empty.
    """

    folder: str
    mount: Mount | None = None
    stack: tuple[BlockDevice, ...] = ()
    shards: int = 0
    nbytes: int = 0
    file: str = ""
    trial: FileTrial = field(default_factory=FileTrial)

    @property
    def point(self) -> str:
        """The mount point, or else the folder."""
        return self.mount.point if self.mount else self.folder

    @property
    def device(self) -> str:
        """The name of the mounted block device, or else the source in the mount table."""
        return self.stack[0].name if self.stack else self.mount.source if self.mount else ""

    @property
    def in_memory(self) -> bool:
        """True if its file system has its files in memory and nowhere else."""
        return self.mount is not None and self.mount.kind in IN_MEMORY

    @property
    def drives(self) -> tuple[BlockDevice, ...]:
        """The devices at the bottom."""
        return tuple(block for block in self.stack if block.kind not in ("md", "dm"))


def volumes_of(
    tree: Tree, number: Callable[[str], str | None], place: str, shards: Iterable[tuple[str, int]]
) -> tuple[Volume, ...]:
    """The mounts that shards are on, those with the most of them first; without shards the mount of the place.

    `shards` has the path of each, without links, and its bytes; `number` gives ``major:minor`` of the device of a path,
    or None.
    """
    folders: dict[str, dict[str, int]] = {}
    for path, nbytes in shards:
        folders.setdefault(os.path.dirname(path), {})[path] = nbytes
    mounts, found = read_mounts(tree), dict[Mount | str, Volume]()
    for folder, sizes in (folders or {place: {}}).items():
        mount = find_mount(mounts, folder, number(tree.at(folder)))
        known = found.get(mount or folder)
        if known is None:
            block = find_block(tree, mount) if mount else None
            known = Volume(folder, mount, tuple(stack_of(tree, block)) if block else ())
        found[mount or folder] = replace(
            known,
            shards=known.shards + len(sizes),
            nbytes=known.nbytes + sum(sizes.values()),
            file=known.file or min((path for path, nbytes in sizes.items() if nbytes >= TRIED_BYTES), default=""),
        )
    return tuple(sorted(found.values(), key=lambda volume: -volume.shards))


def shard_files(tree: Tree, real: str) -> Iterator[tuple[str, int] | None]:
    """The path and the bytes of each safetensors file at a path without links; None for a link that leads nowhere."""
    path, resolved = tree.at(real), cache(tree.resolve)
    with suppress(OSError):
        if os.path.isfile(path):
            yield real, os.path.getsize(path)
            return
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.endswith(SHARD_SUFFIX) and (entry.is_symlink() or entry.is_file()):
                    link = os.readlink(entry.path) if entry.is_symlink() else entry.name
                    named, name = os.path.split(os.path.join(real, link))
                    folder, found = resolved(named), None
                    with suppress(OSError):  # a link that cannot be looked at leads nowhere
                        if folder and entry.is_file():
                            found = os.path.join(folder, name), entry.stat().st_size
                    yield found
