"""One change to a machine with nvidia-fs, and the finding that it leads to."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gdsload.system.probe import CufileProbe
from gdsload.tools.doctor.trials import FileTrial, GpuTrial
from tests.machines import DATA_MOUNT, ROOT_MOUNT, Made

Change = Callable[[Made], object]
DATA, GPU_BARS = "40 27 0:50 / /data rw - ", "/sys/bus/pci/devices/0000:03:00.0/resource"
SMALL_BAR = "0x0 0x0 0x0\n0x0000000080000000 0x000000008fffffff 0x14220c\n"
EXT4 = "40 27 259:1 / /data rw,relatime - ext4 /dev/nvme0n1p1 rw"
UDEV_RECORD = r'printf "E:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\n" > /run/udev/data/b259:1'
BY_CPU = {"nvfs_reads": 0, "posix_reads": 1}
HOOKS = "0000 d p2pdma_pgmap_ops\n0000 T nvme_v2_register_nvfs_dma_ops\t[nvme]\n"


def mount(line: str) -> Change:
    return lambda made: made.mounts(ROOT_MOUNT, line)


def gpu(**changes: object) -> Change:
    return lambda made: setattr(made, "gpu", dataclasses.replace(made.gpu, **changes))


def probe(status: str, reason: str = "", **known: object) -> Change:
    return lambda made: setattr(made, "probe", CufileProbe(status, reason, **known))


def without_udev(**environ: str) -> Change:
    return lambda made: (made.environ.update(environ), shutil.rmtree(made.root / "run/udev"))


def compat_mode(version: str) -> Change:
    """The variable that libcufile up to 1.16 reads."""

    def change(made: Made) -> None:
        made.environ["CUFILE_ALLOW_COMPAT_MODE"] = "false"
        made.probe = dataclasses.replace(made.probe, version=version)

    return change


def files(contents: dict[str, str] | None = None, *, without: Sequence[str] = (), environ: Any = None) -> Change:
    def change(made: Made) -> None:
        made.environ |= environ or {}
        for path in without:
            made.remove(path)
        for path, text in (contents or {}).items():
            made.write(path, text)

    return change


def both(*changes: Change) -> Change:
    return lambda made: [change(made) for change in changes]


def block(name: str, number: str, path: str, backing: str = "") -> Change:
    def change(made: Made) -> None:
        made.block(name, number, path)
        if backing:
            made.write(f"{path}/loop/backing_file", backing)
        made.mounts(ROOT_MOUNT, f"40 27 {number} / /data rw - xfs /dev/{name} rw")

    return change


def layer(name: str, number: str, below: str, detail: str, text: str) -> Change:
    def change(made: Made) -> None:
        made.write(f"{made.layer(name, number, below)}/{detail}", text)
        made.mounts(ROOT_MOUNT, f"40 27 {number} / /data rw - xfs /dev/{name} rw")

    return change


def build(**changes: str) -> Change:
    return lambda made: setattr(made, "build", dataclasses.replace(made.build, **changes))


def trial(found: FileTrial) -> Change:
    return lambda made: setattr(made, "file", found)


CASES: dict[str, list[tuple[Change, str, str]]] = {
    "machine.wsl": [
        (files({"/proc/sys/kernel/osrelease": "5.15-microsoft-WSL2"}), "warning", "this is WSL"),
        (files({"/dev/dxg": ""}), "warning", "this is WSL"),
    ],
    "machine.processors": [
        (files(), "ok", "128 CPU cores"),
        (files({"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/cpu.max": "200000 100000\n",
                  "/sys/fs/cgroup/cpu.max": "max 100000\n"}), "warning", "process to 2 CPU cores"),
        (files({"/proc/self/cgroup": "3:cpu,cpuacct:/a\n", "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "150000",
                  "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000"}), "warning", "process to 1.5 CPU cores"),
        (files(without=("/proc/self/status",)), "unknown", "cannot be read"),
    ],
    "memory.page-cache": [
        (files(), "ok", "8 KiB of data, 120 GiB of memory: they fit"),
        (files({"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/memory.max": "1000000"}), "ok",
         "976.6 KiB of memory (the control group has no more): they fit"),
        (both(files({"/sys/fs/cgroup/memory.max": "4096"}), mount(f"{DATA}tmpfs tmpfs rw")), "ok", "in memory already"),
        (files({"/sys/fs/cgroup/memory.max": "9000", "/sys/fs/cgroup/memory.current": "1000"}), "info",
         "so every epoch reads the drive Raise the container's memory limit"),
    ],
    "gpu.driver": [
        (files({"/proc/driver/nvidia/version": "NVRM"}), "info", "shows no version"),
        (lambda made: (shutil.rmtree(made.root / "proc/driver/nvidia"), setattr(made, "gpu", GpuTrial(error="no"))),
         "error", "Install the NVIDIA driver"),
        (both(lambda made: setattr(made, "gpu", GpuTrial(error="no")),
              files(without=["/proc/driver/nvidia/version"], environ={"container": "x"})), "error", "--gpus all"),
    ],
    "gpu.device": [
        (build(accelerator="", cuda=""), "error", "torch with CUDA"),
        (gpu(status="timeout", error="torch and CUDA gave no answer within 5 s"), "error", "grep -E 'NVRM|Xid'"),
        (lambda made: setattr(made, "gpu", GpuTrial(error="no")), "error", "torch cannot use a GPU: no"),
    ],
    "gpu.bar1": [
        (files(), "ok", "BAR1 has 128 GiB"),
        (files({GPU_BARS: SMALL_BAR}), "warning", "256 MiB, too little"),
        (files({GPU_BARS: ""}), "info", "not visible"),
        (both(gpu(bar1_bytes=2**37, bar1_free=2**36), files({GPU_BARS: SMALL_BAR})), "ok",
         "64 GiB free"),
        (gpu(bar1_bytes=2**37, bar1_free=2**20), "warning", "only 1 MiB of 128 GiB"),
    ],
    "gpu.slice": [
        (files(), "ok", "neither"),
        (gpu(name="NVIDIA A100-SXM4-40GB"), "ok", "neither"),
        (gpu(name="NVIDIA A100-40C"), "warning", "before Ada"),
        (gpu(name="NVIDIA L40S-48Q"), "info", "the open driver"),
        (gpu(name="NVIDIA H100 80GB HBM3 MIG 1g.10gb"), "info", "MIG slice"),
    ],
    "gpu.mapping": [
        (gpu(mapped_rate=0.25e9, pinned_rate=22e9, slow=True, coherent=True), "info",
         "at 0.25 GB/s and pinned memory at 22 GB/s, so bounce is used"),
    ],
    "cufile.probe": [
        (probe("timeout", "no answer within 5 s", stage="driver-open"), "warning", "no answer within 5 s"),
        (both(probe("timeout", "no answer", stage="driver-open"), files(without=("/proc/modules",))), "warning",
         "older libcufile"),
        (probe("crashed", "SIGSEGV while reading"), "warning", "SIGSEGV"),
        (probe("failed", "no handle", error="HANDLE_NOT_REGISTERED"), "warning", "no handle See the other warnings"),
        (probe("failed", "none", error="GPU_MEMORY_PINNING_FAILED"), "warning", "Free BAR1 memory"),
        (probe("missing", "no library"), "info", "no library"),
        (probe("ok", posix_reads=3, nvfs_reads=0, p2p_reads=0), "warning", "not by DMA"),
        (probe("ok"), "warning", "counters cannot be read"),
    ],
    "cufile.config": [
        (files({"/etc/cufile.json": "{broken"}), "warning", "not valid JSON"),
        (files({"/etc/cufile.json": '{"properties": {"force_compat_mode": true}}'}), "warning", "forced"),
        (files(environ={"CUFILE_FORCE_COMPAT_MODE": "true"}), "warning", "forced"),
        (files(environ={"CUFILE_ENV_PATH_JSON": "/none.json"}), "warning", "cannot be read"),
        (files({"/etc/cufile.json": '{"properties": {"allow_compat_mode": false}, "fs": {"weka": {}}}'}), "ok",
         '"allow_compat_mode": false'),
        (files({"/sys/class/block/nvme0n1/device/transport": "tcp\n"}), "ok", "defaults"),
        (files({"/sys/class/block/nvme0n1/device/transport": "tcp\n"}, environ={"CUFILE_USE_PCIP2PDMA": "true"}),
         "warning", "fail with I/O errors"),
    ],
    "cufile.variables": [
        (files(), "ok", "no environment variable"),
        (files(environ={"CUFILE_NVTX": "1"}), "ok", "CUFILE_NVTX=1"),
        (compat_mode("1.16.1"), "ok", "reads it"),
        (compat_mode("1.17.1"), "warning", "allow_compat_mode in /etc/cufile.json"),
        (compat_mode(""), "info", "not known"),
    ],
    "cufile.library": [
        (files(), "ok", "libcufile 1.15.1: /usr/lib/libcufile.so.0"),
        (probe("missing", "no library"), "warning", 'pip install "gdsload[cu13]"'),
        (probe("skipped", "why"), "info", "no trial read"),
    ],
    "cufile.system-libraries": [
        (lambda made: setattr(made, "missing", ("libudev.so.1",)), "warning", "cuFile needs libudev.so.1"),
        (both(lambda made: setattr(made, "missing", ("libmount.so.1",)), files(environ={"container": "x"})),
         "warning", "RUN apt-get install"),
    ],
    "cufile.nvidia-fs": [
        (files(without=("/dev/nvidia-fs0",)), "warning", "docker run -e NVIDIA_GDS=enabled"),
    ],
    "cufile.nvfs-nvme": [
        (files(), "ok", "is registered"),
        (files({"/proc/driver/nvidia-fs/modules": "wekafsio: 1\n"}), "warning", "mlnx-nvme-dkms"),
        (files({"/proc/kallsyms": HOOKS}, without=("/proc/driver/nvidia-fs/modules",)), "ok", "has hooks"),
        (files(without=("/proc/driver/nvidia-fs/modules",)), "warning", "kernel's own"),
        (files(without=("/proc/driver/nvidia-fs/modules", "/proc/kallsyms")), "unknown", "cannot be checked"),
    ],
    "cufile.udev": [
        (files(without=("/run/udev/data/b259:1",)), "warning",
         "udevadm trigger --action=change /dev/nvme0n1p1 || sudo sh -c 'mkdir -p /run/udev/data"),
        (without_udev(), "warning", UDEV_RECORD),
        (files(environ={"container": "x"}, without=("/run/udev/data/b259:1",)), "warning", "udevadm trigger"),
        (without_udev(APPTAINER_CONTAINER="x"), "warning", "docker run -v /run/udev:/run/udev:ro"),
        (files({"/run/udev/data/b259:1": "E:ID_FS_TYPE=ext4\n"}), "warning", "has no ID_FS_USAGE"),
    ],
    "storage.filesystem": [
        (mount(EXT4), "warning", "sudo mount -o data=ordered /dev/nvme0n1p1 /data"),
        (mount(EXT4.replace(" / ", " /export ")), "warning", "where it is mounted: umount, then mount -o data=ordered"),
        (mount(EXT4.replace("/data", "/")), "warning", "rootflags=data=ordered"),
        (both(mount(EXT4), files(environ={"container": "x"})), "warning", "with data=ordered, on the host"),
        (mount(DATA_MOUNT.replace("ordered", "journal")), "warning", "data=journal: cuFile requires data=ordered"),
        (mount("40 27 259:1 / /data rw - xfs /dev/nvme0n1p1 rw,attr2"), "ok", "supports"),
        (mount(f"{DATA}overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w"), "warning", "refuses"),
        (mount(f"{DATA}tmpfs tmpfs rw,size=1g"), "info", "in memory already"),
        (mount(f"{DATA}nfs4 host:/export rw,vers=4.2,proto=tcp"), "warning", "without RDMA"),
        (mount(f"{DATA}nfs host:/export rw,vers=3,proto=rdma"), "info", "over RDMA"),
        (mount(f"{DATA}lustre mgs@tcp:/fs rw"), "info", "vendor's client"),
        (mount(f"{DATA}9p share rw"), "warning", "cuFile cannot read"),
        (mount(f"{DATA}zfs tank/data rw"), "warning", "cuFile cannot read"),
        (files(without=("/proc/self/mountinfo",)), "unknown", "not in the mount table"),
    ],
    "storage.drives": [
        (layer("md0", "9:0", "nvme0n1", "md/level", "raid0\n"), "ok",
         "md0 (md raid0) over nvme0n1 (nvme SAMSUNG MZQL23T8HCLS-00A07), which nvidia-fs reads"),
        (layer("md0", "9:0", "nvme0n1", "md/level", "raid5\n"), "warning", "or on md raid0"),
        (layer("dm-0", "253:0", "nvme0n1p1", "dm/uuid", "CRYPT-LUKS2-abc-root\n"), "warning",
         "dm-0 (dm CRYPT-LUKS2-abc-root) over nvme0n1p1 (nvme"),
        (block("vda", "254:0", "/sys/devices/pci0000:00/0000:00:05.0/virtio2/block/vda"), "info",
         "vda (virtio): not NVMe"),
        (block("loop0", "7:0", "/sys/devices/virtual/block/loop0", "/images/data.img\n"), "warning",
         "loop0 (loop /images/data.img): cuFile"),
    ],
    "storage.link": [
        (files(), "ok", "nvme0n1p1: 32.0 GT/s PCIe x4"),
        (files({"/sys/bus/pci/devices/0000:04:00.0/current_link_width": "2\n"}), "warning", "has 2 of 4 lanes"),
        (block("vda", "254:0", "/sys/devices/pci0000:00/0000:00:05.0/virtio2/block/vda"), "info", "not visible"),
    ],
    "storage.extents": [
        (files(), "ok", "shows no hole"),
        (trial(FileTrial("/data/a b/x.safetensors", True, hole=4096)), "warning",
         "at byte 4096: cuFile reads it through the CPU"),
        (trial(FileTrial("/data/a b/x.safetensors", True, hole=0)), "warning",
         "without holes: for file in '/data/a b'/*.safetensors; do cp --sparse=never"),
    ],
    "storage.direct-io": [
        (trial(FileTrial("f", False, "open: Invalid argument")), "warning", "open: Invalid argument"),
        (trial(FileTrial()), "unknown", "not tried"),
    ],
}  # fmt: skip
NEED_CPU = ("cufile.nvidia-fs", "cufile.nvfs-nvme")


@pytest.mark.parametrize(
    ("check", "change", "severity", "says"), [(check, *case) for check, cases in CASES.items() for case in cases]
)
def test_the_finding(nvfs: Made, check: str, change: Change, severity: str, says: str):
    if check in NEED_CPU:  # where reads are made by DMA, an unfulfilled condition is only a fact
        nvfs.probe = dataclasses.replace(nvfs.probe, **BY_CPU)
    change(nvfs)
    finding = nvfs.findings()[check]
    assert (finding.severity, says in f"{finding.message} {finding.remedy}") == (severity, True), finding


@pytest.mark.parametrize(
    ("change", "backend", "why"),
    [
        (both(probe("missing"), files({"/sys/fs/cgroup/memory.max": "4096"})), "bounce", "do not fit"),
        (both(probe("missing"), gpu(slow=True, coherent=True)), "bounce", "too slowly"),
    ],
)
def test_the_verdict_on_a_change(nvfs: Made, change: Change, backend: str, why: str):
    change(nvfs)
    verdict = nvfs.diagnose().verdict
    assert (verdict.backend, why in verdict.why) == (backend, True)


def test_no_file_system_is_a_fault_without_a_gpu(laptop: Made):
    mount(f"{DATA}nfs4 host:/export rw")(laptop)
    assert laptop.findings()["storage.filesystem"].severity == "info"
