"""Made-up machines: trees of /proc, /sys, /run and /etc, and answers of the calls that reach beyond files."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsload.system.probe import CufileProbe
from gdsload.system.probe.tree import Tree
from gdsload.tools.doctor import Calls, System, diagnose
from gdsload.tools.doctor.system import TorchBuild
from gdsload.tools.doctor.trials import FileTrial, GpuTrial

GPU = "0000:03:00.0"
DRIVE = "0000:04:00.0"
OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version:\n"
CLOSED_DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
DWORDS = 'RegistryDwords: "RMForceStaticBar1=1;RmForceDisableIomapWC=1;"\nRegistryDwordsPerDevice: ""\n'
ROOT_MOUNT = "27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw"
DATA_MOUNT = "40 27 259:1 / /data rw,relatime shared:9 - ext4 /dev/nvme0n1p1 rw,data=ordered"
WORKING_PROBE = CufileProbe(
    "ok", "a read was made and its bytes are right", "done", "/usr/lib/libcufile.so.0", "1.15.1",
    open_s=0.5, registered=True, read_bytes=1048576, gpu="NVIDIA H100", nvfs_reads=1, p2p_reads=0, posix_reads=0,
)  # fmt: skip

Hang = Callable[..., Any]


@pytest.fixture
def hang() -> Iterator[Hang]:
    """A call that returns nothing for as long as the test runs. The doctor's threads that wait for it end with the test."""
    over = threading.Event()

    def wait(*_asked: object) -> None:
        over.wait(60)

    yield wait
    over.set()
    for thread in threading.enumerate():
        if thread.name == "gdsload-doctor":
            thread.join(10)


class Made:
    """A made-up machine; `diagnose` examines it. Attributes may be changed before."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ: dict[str, str] = {}
        self.architecture = "x86_64"
        self.build = TorchBuild("2.13.0", "", "")
        self.gpu = GpuTrial()
        self.file = FileTrial("/data/set/a.safetensors", True)
        self.probe = CufileProbe("missing", "libcufile cannot be loaded")
        self.distributions: dict[str, str] = {}
        self.broken: dict[str, str] = {}
        self.missing: tuple[str, ...] = ()
        self.calls: dict[str, object] = {}

    def write(self, path: str, content: str | bytes = "") -> None:
        file = Path(f"{self.root}{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    def remove(self, path: str) -> None:
        os.unlink(f"{self.root}{path}")

    def link(self, path: str, target: str) -> None:
        """A relative link, as all in sysfs are."""
        file = Path(f"{self.root}{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(os.path.relpath(f"{self.root}{target}", file.parent))

    def mounts(self, *lines: str) -> None:
        self.write("/proc/self/mountinfo", "\n".join(lines) + "\n")

    def block(self, name: str, number: str, path: str) -> None:
        self.write(f"{path}/dev", number + "\n")
        self.link(f"/sys/class/block/{name}", path)
        self.link(f"/sys/dev/block/{number}", path)

    def layer(self, name: str, number: str, below: str) -> str:
        """A block device over another one; its folder."""
        path = f"/sys/devices/virtual/block/{name}"
        self.block(name, number, path)
        self.link(f"{path}/slaves/{below}", self.folder(f"/sys/class/block/{below}"))
        return path

    def folder(self, link: str) -> str:
        """The folder of this machine that a link leads to."""
        return "/" + os.path.relpath(os.path.realpath(f"{self.root}{link}"), self.root)

    def pci(self, address: str, path: str, **files: str) -> None:
        for name, text in files.items():
            self.write(f"{path}/{name}", text + "\n")
        self.link(f"/sys/bus/pci/devices/{address}", path)

    def shard(self, name: str = "a.safetensors", size: int = 8192) -> None:
        self.write(f"/data/set/{name}", bytes(size))

    def system(self) -> System:
        calls = Calls(
            torch_build=lambda: self.build,
            try_gpu=lambda file, device, timeout_s: self.gpu,
            probe=lambda file, device, timeout_s: self.probe,
            try_file=lambda file: self.file,
            distributions=lambda: self.distributions,
            import_error=lambda name: self.broken.get(name, ""),
            can_load=lambda name: name not in self.missing,
            number=lambda path: "0:0",
        )
        calls = dataclasses.replace(calls, **self.calls)
        return System(Tree(str(self.root)), self.environ, self.architecture, calls)

    def diagnose(self, path: str = "/data/set", device: str | None = None, *, probe: bool | None = None):
        return diagnose(path, device, system=self.system(), probe=probe, timeout_s=5)

    def findings(self, *arguments, **options):
        return {finding.check: finding for finding in self.diagnose(*arguments, **options).findings}


def make_host(made: Made) -> None:
    """The files that every Linux machine has."""
    made.write("/proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
    made.write("/proc/modules", "ext4 1000000 1 - Live 0x0\n")
    made.write("/proc/self/cgroup", "0::/\n")
    made.write("/proc/meminfo", "MemTotal:       131072000 kB\nMemAvailable:   125829120 kB\n")
    made.write("/proc/kallsyms", "0000 d p2pdma_pgmap_ops\n")
    made.write("/proc/self/status", f"Name:\tpython\nCpus_allowed:\t{','.join(['ffffffff'] * 4)}\n")
    made.mounts(ROOT_MOUNT, DATA_MOUNT)
    made.write("/run/udev/data/b259:1", "S:disk/by-id/x\nE:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\n")
    made.shard()


def make_drive(made: Made, parent: str = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0") -> None:
    device = f"{parent}/{DRIVE}"
    link = {"current_link_speed": "32.0 GT/s PCIe", "current_link_width": "4", "max_link_width": "4"}
    made.pci(DRIVE, device, numa_node="0", **link)
    controller = f"{device}/nvme/nvme0"
    made.write(f"{controller}/transport", "pcie\n")
    made.write(f"{controller}/model", "SAMSUNG MZQL23T8HCLS-00A07              \n")
    made.block("nvme0n1", "259:0", f"{controller}/nvme0n1")
    made.link(f"{controller}/nvme0n1/device", controller)
    for part in (1, 2):
        made.write(f"{controller}/nvme0n1/nvme0n1p{part}/partition", f"{part}\n")
        made.block(f"nvme0n1p{part}", f"259:{part}", f"{controller}/nvme0n1/nvme0n1p{part}")
    made.write("/sys/module/nvme_core/parameters/multipath", "N\n")


def make_gpu(
    made: Made, parent: str = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0", node: int = 0
) -> None:
    bars = "0x0000000092000000 0x0000000092ffffff 0x40200\n0x0000020000000000 0x0000021fffffffff 0x14220c"
    made.pci(GPU, f"{parent}/{GPU}", vendor="0x10de", numa_node=str(node), resource=bars)
    made.write(f"{parent}/{GPU}/class", "0x030200\n")
    made.write("/proc/driver/nvidia/version", OPEN_DRIVER)
    made.write("/proc/driver/nvidia/params", 'RegistryDwords: ""\n')
    made.write(
        f"/proc/driver/nvidia/gpus/{GPU}/information",
        f"Model: \t\t NVIDIA H100 80GB HBM3\nBus Location: \t {GPU}\n",
    )
    made.build = TorchBuild("2.13.0+cu130", "cuda", "13.0")
    made.gpu = GpuTrial(
        "cuda", "NVIDIA H100 80GB HBM3", GPU, 80 * 2**30, registered=True, mapped_rate=52e9, pinned_rate=55e9
    )
    made.distributions = {"cupy-cuda13x": "14.2.0", "cuda-bindings": "13.3.1"}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A folder for a machine, with nothing in it."""
    root = tmp_path / "root"
    root.mkdir()
    return Made(root)


@pytest.fixture
def laptop(made: Made) -> Made:
    """A machine with an NVMe drive and no GPU."""
    make_host(made)
    make_drive(made)
    return made


@pytest.fixture
def nvfs(laptop: Made) -> Made:
    """A machine with nvidia-fs, ext4 in ordered mode, and the drive beside the GPU."""
    make_gpu(laptop)
    laptop.write("/proc/driver/nvidia-fs/version", "version: 2.26\n")
    laptop.write("/proc/driver/nvidia-fs/devcount", "1\n")
    laptop.write("/proc/driver/nvidia-fs/modules", "nvme: 1.0\n")
    laptop.write("/dev/nvidia-fs0")
    laptop.probe = WORKING_PROBE
    return laptop


@pytest.fixture
def p2p(laptop: Made) -> Made:
    """A machine that fulfils all conditions of P2PDMA."""
    make_gpu(laptop)
    laptop.write("/proc/driver/nvidia/params", DWORDS)
    laptop.write("/etc/cufile.json", '{\n  // wanted\n  "properties": {"use_pci_p2pdma": true}\n}\n')
    laptop.probe = dataclasses.replace(WORKING_PROBE, nvfs_reads=0, p2p_reads=1)
    return laptop
