"""A dataset whose shards are on several drives: each is looked at, and none is taken for the folder's."""

from __future__ import annotations

import dataclasses

import pytest

from gdsload.tools.doctor.trials import FileTrial
from tests.machines import DATA_MOUNT, DRIVE, GPU, ROOT_MOUNT, WORKING_PROBE, Made

FAR = "0000:84:00.0"
FAR_GPU = "0000:83:00.0"
FAR_MOUNT = "41 27 259:9 / /far rw,relatime - xfs /dev/nvme1n1 rw"
FAR_PARENT = "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0"


@pytest.fixture
def two(nvfs: Made) -> Made:
    """Five shards: three on a drive beside the GPU, two on one on another node, where a second GPU is."""
    controller = f"{FAR_PARENT}/0000:82:01.0/{FAR}/nvme/nvme1"
    nvfs.pci(FAR, f"{FAR_PARENT}/0000:82:01.0/{FAR}", numa_node="1")
    nvfs.write(f"{controller}/transport", "pcie\n")
    nvfs.block("nvme1n1", "259:9", f"{controller}/nvme1n1")
    nvfs.pci(FAR_GPU, f"{FAR_PARENT}/0000:82:00.0/{FAR_GPU}", vendor="0x10de", numa_node="1")
    nvfs.write(f"/proc/driver/nvidia/gpus/{FAR_GPU}/information", "Model: NVIDIA H100\n")
    nvfs.mounts(ROOT_MOUNT, DATA_MOUNT, FAR_MOUNT)
    nvfs.write("/run/udev/data/b259:9", "E:ID_FS_USAGE=filesystem\n")
    nvfs.remove("/data/set/a.safetensors")
    nvfs.write("/home/set/index.json", "{}")
    for number in range(5):
        folder = f"/{'far' if number % 2 else 'data'}/set.gdsload-0123456789ab"
        nvfs.write(f"{folder}/shard-{number:05d}.safetensors", bytes(8192))
        nvfs.link(f"/home/set/shard-{number:05d}.safetensors", f"{folder}/shard-{number:05d}.safetensors")
    return nvfs


def of(made: Made):
    return made.findings("/home/set")


def test_each_drive_is_shown_with_its_numa_node(two: Made):
    found = of(two)
    finding = found["topology.drives"]
    gpus = {GPU: 0, FAR_GPU: 1}
    assert finding.evidence["volumes"] == {
        "/data": {"gpus": gpus, "drives": {DRIVE: 0}, "device": "nvme0n1p1", "shards": 3},
        "/far": {"gpus": gpus, "drives": {FAR: 1}, "device": "nvme1n1", "shards": 2},
    }
    assert finding.severity == "warning"
    assert f"/far: GPU {GPU} is on NUMA node 0, but drive {FAR} on 1" in finding.message
    assert found["storage.path"].message == "/home/set: 5 safetensors files, 40 KiB on 2 mounts"
    two.write(f"/sys/bus/pci/devices/{FAR}/numa_node", "0")
    assert of(two)["topology.drives"].message == "drive and GPU are on NUMA node 0"


@pytest.mark.parametrize(
    ("spoil", "check", "says"),
    [
        (
            lambda two: two.mounts(ROOT_MOUNT, DATA_MOUNT, FAR_MOUNT.replace("xfs", "zfs")),
            "storage.filesystem", "zfs on /far: cuFile cannot read this file system by DMA",
        ),
        (lambda two: two.remove("/run/udev/data/b259:9"), "cufile.udev", "/run/udev/data/b259:9 is missing"),
    ],
)  # fmt: skip
def test_a_fault_of_the_second_drive_is_found(two: Made, spoil, check: str, says: str):
    spoil(two)
    found = of(two)
    assert found[check].severity == "warning"
    assert says in found[check].message
    assert found["storage.filesystem"].evidence["volumes"].keys() == {"/data", "/far"}


def test_cufile_is_asked_with_a_file_of_each_mount_and_the_worst_answer_counts(two: Made):
    asked = []

    def probe(file, device, timeout_s):
        asked.append(file)
        by_cpu = dataclasses.replace(WORKING_PROBE, nvfs_reads=0, posix_reads=1)
        return by_cpu if "/far/" in file else WORKING_PROBE

    two.calls["probe"] = probe
    two.calls["try_file"] = lambda file: FileTrial(file, "/far/" not in file, "EINVAL")
    report = two.diagnose("/home/set")
    found = {finding.check: finding for finding in report.findings}
    assert {file.split("/")[-3] for file in asked} == {"data", "far"}
    assert (found["cufile.probe"].severity, report.verdict.backend) == ("warning", "mapped")
    assert found["storage.direct-io"].severity == "warning"
    assert "/far: direct I/O does not work here (EINVAL)" in found["storage.direct-io"].message


def test_shards_whose_drive_is_not_mounted(two: Made):
    (two.root / "far/set.gdsload-0123456789ab").rename(two.root / "away")
    finding = of(two)["storage.path"]
    assert (finding.severity, finding.evidence["lost"]) == ("error", 2)
    assert "links of 2 shards are broken" in finding.message
    assert "Mount their drives" in finding.remedy
