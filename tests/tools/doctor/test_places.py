"""The place of the data: file systems, layers, drives, and the findings about each."""

from __future__ import annotations

import os
import time

import pytest

from gdsload.system.probe.mounts import find_mount, parse_mounts
from gdsload.tools.doctor import checkup as run
from gdsload.tools.doctor.trials import temporary_file, try_file
from tests.machines import ROOT_MOUNT, Hang, Made


def mounted(made: Made, line: str):
    made.mounts(ROOT_MOUNT, line)
    return made.findings()


def test_layers_that_form_a_circle_end(nvfs: Made):
    nvfs.block("dm-0", "253:0", "/sys/devices/virtual/block/dm-0")
    nvfs.link("/sys/devices/virtual/block/dm-0/slaves/dm-0", "/sys/devices/virtual/block/dm-0")
    found = mounted(nvfs, "40 27 253:0 / /data rw - xfs /dev/mapper/data rw")
    assert [layer["name"] for layer in found["storage.drives"].evidence["stack"]] == ["dm-0"]


def test_btrfs_is_found_by_its_source(nvfs: Made):
    found = mounted(nvfs, "40 27 0:33 /@data /data rw - btrfs /dev/nvme0n1p1 rw,compress=zstd:1,subvol=/@data")
    assert found["storage.drives"].evidence["stack"][0]["name"] == "nvme0n1p1"


def test_nvme_multipath_hides_the_controller_behind_a_subsystem(nvfs: Made):
    subsystem = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0"
    nvfs.block("nvme1n1", "259:9", f"{subsystem}/nvme1n1")
    nvfs.link(f"{subsystem}/nvme0", nvfs.folder("/sys/class/block/nvme0n1/device"))
    nvfs.link(f"{subsystem}/nvme1n1/device", subsystem)
    found = mounted(nvfs, "40 27 259:9 / /data rw - xfs /dev/nvme1n1 rw")
    drive = found["storage.drives"].evidence["stack"][0]
    assert (drive["transport"], drive["pci"]) == ("pcie", "0000:04:00.0")


def test_a_file_to_try_is_created_and_removed(tmp_path):
    with temporary_file(str(tmp_path)) as file:
        assert [os.path.join(tmp_path, name) for name in os.listdir(tmp_path)] == [file]
        assert os.path.getsize(file) == 2**20
    assert os.listdir(tmp_path) == []
    with temporary_file(str(tmp_path / "none")) as file:
        assert file == ""


def test_a_file_is_read_directly_or_the_step_that_failed_is_said(tmp_path):
    (tmp_path / "f").write_bytes(bytes(8192))
    trial = try_file(str(tmp_path / "f"))
    assert trial.direct or trial.direct_error
    assert try_file(str(tmp_path / "none")).direct_error == "open: No such file or directory"


@pytest.mark.parametrize("make", [os.ftruncate, lambda fd, size: os.posix_fallocate(fd, 0, size)], ids=["hole", "new"])
def test_a_hole_or_unwritten_extent_is_found(tmp_path, make):
    (tmp_path / "f").write_bytes(bytes(4096))
    assert try_file(str(tmp_path / "f")).hole is None
    with open(tmp_path / "f", "r+b") as file:
        make(file.fileno(), 2**20)
        os.fsync(file.fileno())
        if os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 2**20:
            pytest.skip("this file system does not report holes")
    assert try_file(str(tmp_path / "f")).hole == 4096


def test_a_file_system_that_hangs_is_reported_and_asked_once(nvfs: Made, hang: Hang, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run, "_FILES_S", 0.3)
    asked = []

    def number(path: str) -> str:
        asked.append(path)
        hang()
        return "0:0"

    nvfs.calls["number"] = number
    nvfs.calls["try_file"] = lambda file: pytest.fail("the file system was asked again")
    start = time.monotonic()
    found = nvfs.findings()
    assert time.monotonic() - start < 2
    assert len(asked) == 1
    assert "did not answer" in found["storage.path"].message
    assert found["gpu.device"].severity == "ok"


def test_a_check_that_hangs_costs_nothing_but_its_own_finding(nvfs: Made, hang: Hang, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run, "_FILES_S", 0.5)
    monkeypatch.setattr(run, "_IMPORTS_S", 0)
    nvfs.calls["import_error"] = lambda name: hang() if name == "cupy" else ""
    start = time.monotonic()
    report = nvfs.diagnose()
    assert time.monotonic() - start < 3
    assert [finding.check for finding in report.findings if finding.severity == "unknown"] == ["packages.cupy"]


def test_a_check_that_fails_is_a_finding(nvfs: Made):
    def broken(name: str) -> str:
        raise ZeroDivisionError("bang")

    nvfs.calls["import_error"] = broken
    finding = nvfs.findings()["packages.cupy"]
    assert finding.severity == "unknown"
    assert "bang" in finding.message


TABLE = parse_mounts(
    "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
    "2 1 8:2 / /data rw - xfs /dev/sdb rw\n"
    "3 1 8:3 / /data\\040two rw - xfs /dev/sdc rw\n"
    "4 2 8:4 /inner /data/x rw shared:1 master:2 - ext4 /dev/sdd rw\n"
    "5 1 8:5 / /data rw - ext4 /dev/sde rw\n"
    "garbage\n6 1 nonsense / /data rw - ext4 /dev/sdf rw\n7 1 8:9 / /data rw ext4\n"
)


@pytest.mark.parametrize(
    ("path", "number", "source"),
    [
        ("/", None, "/dev/sda1"),
        ("/database", None, "/dev/sda1"),
        ("/data", None, "/dev/sde"),
        ("/data", "8:2", "/dev/sdb"),
        ("/data/y", "99:99", "/dev/sde"),
        ("/data two/z", None, "/dev/sdc"),
        ("/data/x/y", None, "/dev/sdd"),
        ("/data/x/y", "8:5", "/dev/sde"),
    ],
)
def test_the_mount_that_holds_a_path(path: str, number: str | None, source: str):
    mount = find_mount(TABLE, path, number)
    assert mount is not None
    assert mount.source == source
