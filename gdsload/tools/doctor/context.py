"""What all checks are given: the machine, the place where the data lie, and the results of the trials."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from gdsload.system.probe import CufileProbe
from gdsload.system.probe.library import Config, read_config
from gdsload.system.probe.mounts import IN_MEMORY, Mount, find_mount, read_mounts
from gdsload.tools.doctor.block import BlockDevice, find_block, stack_of
from gdsload.tools.doctor.file_trial import FileTrial
from gdsload.tools.doctor.gpu_trial import GpuTrial
from gdsload.tools.doctor.system import System, TorchBuild

__all__ = ["Context", "DataPlace", "locate"]

_MOST_FILES = 200_000
_NVIDIA = "0x10de"
_MODEL = re.compile(r"^Model:\s*(.+)$", re.MULTILINE)
_BUS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True)
class DataPlace:
    """Where the data lie.

    Attributes:
        path: the path asked about, absolute.
        real: the same without links; the nearest folder that exists if it does not.
        exists: whether it does; None if the file system did not answer.
        mount: the mount it is on.
        stack: block devices from the file system down to the drives.
        shards: safetensors files in the folder, or 1 for a file.
        nbytes: bytes in them.
    """

    path: str
    real: str
    exists: bool | None
    mount: Mount | None = None
    stack: tuple[BlockDevice, ...] = ()
    shards: int = 0
    nbytes: int = 0

    @property
    def in_memory(self) -> bool:
        """Whether its file system has its files in memory and nowhere else."""
        return self.mount is not None and self.mount.kind in IN_MEMORY

    @property
    def drives(self) -> tuple[BlockDevice, ...]:
        """The devices at the bottom."""
        return tuple(block for block in self.stack if block.kind not in ("md", "dm"))


def locate(system: System, path: str) -> DataPlace:
    """Find out where a path lies; may wait as long as its file system does."""
    tree = system.tree
    whole = os.path.join(os.getcwd(), path)
    real, exists = tree.resolve(whole), True
    if real is None:
        exists, real = False, whole
        while real != "/" and tree.resolve(real) is None:
            real = os.path.dirname(real)
        real = tree.resolve(real) or real
    try:
        number = system.calls.number(tree.at(real))
    except (OSError, ValueError):
        number = None
    mount = find_mount(read_mounts(tree), real, number)
    block = find_block(tree, mount) if mount else None
    stack = tuple(stack_of(tree, block)) if block else ()
    shards, nbytes = _count(tree.at(real)) if exists else (0, 0)
    return DataPlace(whole, real, exists, mount, stack, shards, nbytes)


def _count(path: str) -> tuple[int, int]:
    """Number and bytes of the safetensors files at a path."""
    count = nbytes = 0
    try:
        if os.path.isfile(path):
            return 1, os.path.getsize(path)
        with os.scandir(path) as entries:
            for _, entry in zip(range(_MOST_FILES), entries, strict=False):
                if entry.name.endswith(".safetensors") and entry.is_file():
                    count, nbytes = count + 1, nbytes + entry.stat().st_size
    except OSError:
        pass
    return count, nbytes


@dataclass(frozen=True, slots=True)
class Context:
    """What a check may look at.

    Attributes:
        system: the machine.
        place: where the data lie.
        torch: which torch this is.
        gpu: what torch says of the device.
        file: what was tried on a file at the path.
        probe: what cuFile did; None if it was not to be asked.
        device: the device as asked for, or empty.
    """

    system: System
    place: DataPlace
    torch: TorchBuild
    gpu: GpuTrial
    file: FileTrial
    probe: CufileProbe | None
    device: str

    @property
    def config(self) -> Config:
        """What cuFile's configuration says."""
        return read_config(self.system.tree, self.system.environ)

    @property
    def wants_host(self) -> bool:
        """Whether the CPU was asked for."""
        return self.device == "cpu"

    @property
    def has_gpu(self) -> bool:
        """Whether there is an NVIDIA GPU here, whatever works of it; if not, what only concerns cuFile is no fault."""
        return not self.wants_host and (self.gpu.kind == "cuda" or bool(self.gpu_address()) or bool(self.gpu_name()))

    def gpu_name(self) -> str:
        """The GPU's name: torch's, else the driver's."""
        if self.gpu.name:
            return self.gpu.name
        tree, folder = self.system.tree, "/proc/driver/nvidia/gpus"
        for name in tree.names(folder):
            if match := _MODEL.search(tree.text(f"{folder}/{name}/information") or ""):
                return match[1].strip()
        return ""

    def gpu_address(self) -> str:
        """The GPU's PCI address: torch's, else that of the first GPU that the driver or the bus knows; may be empty."""
        tree = self.system.tree
        if _BUS.fullmatch(self.gpu.address):
            return self.gpu.address
        known = [name for name in tree.names("/proc/driver/nvidia/gpus") if _BUS.fullmatch(name)]
        return next(iter(known or self._gpus_on_bus()), "")

    def _gpus_on_bus(self) -> list[str]:
        tree, folder = self.system.tree, "/sys/bus/pci/devices"
        return [
            name
            for name in tree.names(folder)
            if _BUS.fullmatch(name)
            and tree.text(f"{folder}/{name}/vendor", 16) == _NVIDIA
            and (tree.text(f"{folder}/{name}/class", 16) or "").startswith("0x03")
        ]

    @property
    def nvfs(self) -> bool:
        """Whether nvidia-fs is loaded."""
        return self.system.tree.exists("/proc/driver/nvidia-fs/devcount") or self.system.tree.exists(
            "/proc/driver/nvidia-fs/version"
        )
