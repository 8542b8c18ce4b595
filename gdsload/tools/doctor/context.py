"""The context of all checks: the machine, the location of the data, and the results of the trials."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gdsload.system.probe import CufileProbe
from gdsload.system.probe.known_bugs import KnownBug, known_bug
from gdsload.system.probe.library import Config, read_config, wants_p2p
from gdsload.tools.doctor.block import PCI_ADDRESS, BlockDevice, Volume, shard_files, volumes_of
from gdsload.tools.doctor.finding import WORST_FIRST, Finding, Fix, info, ok, unknown, warning
from gdsload.tools.doctor.system import System, TorchBuild
from gdsload.tools.doctor.trials import GpuTrial

_NVIDIA = "0x10de"
_MODEL = re.compile(r"^Model:\s*(.+)$", re.MULTILINE)
_WORDS = ("docker", "kubepods", "containerd", "libpod", "lxc", "garden")
_FILES = ("/.dockerenv", "/run/.containerenv")
_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER")


@dataclass(frozen=True, slots=True)
class DataPlace:
    """The location of the data: a path, and the mounts of its shards.

    Attributes:
        path: absolute, as the user named it.
        exists: whether it does; None if the file system did not answer.
        volumes: the mounts that the shards are on; of a place without shards its own.
        lost: links to shards that lead nowhere.
    """

    path: str
    exists: bool | None
    volumes: tuple[Volume, ...] = ()
    lost: int = 0

    @property
    def shards(self) -> int:
        """Safetensors files in the folder, or 1 for a file."""
        return sum(volume.shards for volume in self.volumes)

    @property
    def nbytes(self) -> int:
        """Bytes of these files."""
        return sum(volume.nbytes for volume in self.volumes)

    @property
    def in_memory(self) -> bool:
        """True if its file systems keep their files only in memory."""
        return bool(self.volumes) and all(volume.in_memory for volume in self.volumes)

    @property
    def drives(self) -> tuple[BlockDevice, ...]:
        """The devices at the bottom."""
        return tuple({block.name: block for volume in self.volumes for block in volume.drives}.values())


def locate(system: System, path: str) -> DataPlace:
    """Find the mounts of a path. May block as long as its file system does."""
    tree = system.tree
    whole = str(Path(path).absolute())
    real = tree.resolve(whole)
    if real is None:
        return DataPlace(whole, exists=False)
    files = list(shard_files(tree, real))
    there = [file for file in files if file is not None]
    return DataPlace(whole, True, volumes_of(tree, system.calls.number, real, there), len(files) - len(there))


@dataclass(frozen=True, slots=True)
class Context:
    """The facts that checks use. `device` is the one that the user named, if any; `probe` is cuFile's worst result."""

    system: System
    place: DataPlace
    torch: TorchBuild
    device: str
    gpu: GpuTrial
    probe: CufileProbe

    @property
    def config(self) -> Config:
        """The configuration of cuFile."""
        return read_config(self.system.tree, self.system.environ)

    @property
    def wants_p2p(self) -> bool:
        """True if P2PDMA is turned on."""
        return wants_p2p(self.config, self.system.environ)

    @property
    def bug(self) -> KnownBug | None:
        """A known bug of nvidia-fs that this machine has."""
        return known_bug(self.system.tree)

    @property
    def wants_host(self) -> bool:
        """True if the user chose the CPU."""
        return self.device == "cpu"

    @property
    def has_gpu(self) -> bool:
        """True if there is an NVIDIA GPU, usable or not; without one, problems of cuFile do not matter."""
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
        return next(iter(self.gpu_addresses()), "")

    def gpu_addresses(self) -> list[str]:
        """The PCI addresses of all GPUs that the driver or else the bus knows, that of torch's first."""
        known = [name for name in self.system.tree.names("/proc/driver/nvidia/gpus") if PCI_ADDRESS.fullmatch(name)]
        asked = [self.gpu.address] if PCI_ADDRESS.fullmatch(self.gpu.address) else []
        return list(dict.fromkeys([*asked, *(known or self._gpus_on_bus())]))

    def _gpus_on_bus(self) -> list[str]:
        tree, folder = self.system.tree, "/sys/bus/pci/devices"
        return [
            name
            for name in tree.names(folder)
            if PCI_ADDRESS.fullmatch(name)
            and tree.text(f"{folder}/{name}/vendor", 16) == _NVIDIA
            and (tree.text(f"{folder}/{name}/class", 16) or "").startswith("0x03")
        ]

    @property
    def nvfs(self) -> bool:
        """True if nvidia-fs is loaded."""
        return any(self.system.tree.exists(f"/proc/driver/nvidia-fs/{name}") for name in ("devcount", "version"))

    @property
    def container(self) -> bool:
        """True if there are signs of a container."""
        tree, environ = self.system.tree, self.system.environ
        groups, kernel = tree.text("/proc/1/cgroup") or "", tree.text("/proc/version") or ""
        signs = [any(map(environ.get, _VARIABLES)), any(map(tree.exists, _FILES)), "gVisor" in kernel]
        return any(signs) or any(word in groups for word in _WORDS)


def trouble(context: Context, message: str, fix: Fix | str = "", **evidence: Any) -> Finding:
    """A warning if there is an NVIDIA GPU, otherwise only information."""
    return (warning if context.has_gpu else info)(message, fix, **evidence)


def condition(context: Context, holds: bool | None, message: str, fix: Fix | str = "") -> Finding:
    """A requirement of a way to DMA. `holds` is None if unknown. It is no warning without a GPU, or if DMA works."""
    if holds:
        return ok(message, fulfilled=True)
    if not context.has_gpu or context.probe.proven:
        return info(message, fix, fulfilled=holds)
    return (unknown if holds is None else warning)(message, fix, fulfilled=holds)


Check = Callable[[Context], Finding]


def on_each(check: Callable[[Context, Volume], Finding]) -> Check:
    """Run a check for each mount, and join the findings: the worst severity with its remedy and evidence."""

    def check_each(context: Context) -> Finding:
        found = {volume.point: check(context, volume) for volume in context.place.volumes}
        if not found:
            return unknown("the file system did not answer in time")
        worst = min(found.values(), key=lambda one: WORST_FIRST.index(one.severity))
        if len(found) == 1:
            return worst
        messages = list(dict.fromkeys(one.message for one in found.values()))
        if len(messages) > 1:
            messages = [one.message if at in one.message else f"{at}: {one.message}" for at, one in found.items()]
        evidence = {**worst.evidence, "volumes": {at: one.evidence for at, one in found.items()}}
        return replace(worst, message="; ".join(messages), evidence=evidence)

    return check_each
