"""Known bugs before anything is tried, and checks of one fact each: variables, libraries, processors, BAR1, MIG, vGPU."""

from __future__ import annotations

import dataclasses

import pytest

from gdsload.system.probe import ask_cufile
from gdsload.system.probe import probe as asking
from gdsload.system.probe.known_bugs import known_bug
from tests.machines import OPEN_DRIVER, Made


def nvfs_of(made: Made, version: str, driver: str, built: str = "", tainted: int = 0) -> None:
    made.write("/proc/driver/nvidia-fs/version", f"version: {version.rpartition('.')[0]}\n")
    made.write("/proc/driver/nvidia/version", OPEN_DRIVER.replace("570.86.15", driver))
    made.write("/proc/sys/kernel/tainted", f"{tainted}\n")
    folder = f"/var/lib/dkms/nvidia-fs/{version}/6.8.0-45-generic/x86_64/log"
    made.write(f"{folder}/make.log", f"  NVIDIA_SRC_DIR=/usr/src/nvidia-{built}/nvidia\n" if built else "")


@pytest.mark.parametrize(
    ("versions", "hangs", "says"),
    [
        (("2.26.6", "595.91.07", "570.207"), True, "was built for driver 570.207"),
        (("2.28.4", "580.95.05", "575.57.08"), True, "was built for driver 575.57.08"),
        (("2.28.4", "580.95.05", "580.95.05"), None, ""),
        (("2.28.4", "595.91.07", "580.95.05"), None, ""),
        (("2.26.6", "570.207", "565.57.01"), None, ""),
        (("2.28.4", "580.95.05", ""), None, ""),
        (("2.28.4", "580.95.05", "580.95.05", 128), True, "oops"),
        (("2.28.4", "570.86.15", "", 128 | 4096), None, ""),
        (("2.28.4", "580.95.05", "", 4096), None, ""),
        (("2.25.6", "570.86.15", ""), False, "2.25.6"),
    ],
)
def test_known_bugs(nvfs: Made, versions, hangs: bool | None, says: str):
    nvfs_of(nvfs, *versions)
    bug = known_bug(nvfs.system().tree)
    assert (bug and bug.hangs) is hangs
    if bug is None:
        assert nvfs.findings()["cufile.nvfs-bugs"].severity == "ok"
        return
    assert says in bug.what
    nvfs.probe = dataclasses.replace(nvfs.probe, nvfs_reads=0, posix_reads=1)
    assert nvfs.findings()["cufile.nvfs-bugs"].severity == "warning"


def test_nothing_is_tried_where_a_read_hangs_unless_asked(nvfs: Made):
    asked = []
    nvfs.calls["probe"] = lambda *what: asked.append(what) or nvfs.probe
    nvfs_of(nvfs, "2.26.6", "595.91.07", "570.207")
    report = nvfs.diagnose()
    assert asked == []
    assert (report.verdict.backend, "570.207" in report.verdict.missing) == ("mapped", True)
    assert any("dkms build nvidia-fs/2.26.6" in line for step in report.ways[1].steps for line in step.fix.commands)
    assert nvfs.diagnose(probe=True).verdict.backend == "gds"
    assert len(asked) == 1


def test_loaders_try_nothing_either(nvfs: Made, monkeypatch: pytest.MonkeyPatch):
    nvfs_of(nvfs, "2.26.6", "595.91.07", "570.207")
    monkeypatch.setattr(asking, "Tree", lambda: nvfs.system().tree)
    found = ask_cufile("/data/x", command=lambda *_: pytest.fail("a process was started"))
    assert found.status == "skipped"
    assert "Rebuild nvidia-fs" in found.reason
    assert ask_cufile("/data/x", command=lambda *_: ["false"], despite_bugs=True).status == "garbage"


@pytest.mark.parametrize(
    ("version", "severity", "read"),
    [
        ("1.13.1", "ok", True),
        ("1.16.1", "ok", True),
        ("1.17.1", "warning", False),
        ("1.20.0", "warning", False),
        ("", "info", None),
    ],
)
def test_the_variable_that_older_versions_read(nvfs: Made, version: str, severity: str, read: bool | None):
    assert nvfs.findings()["cufile.variables"].message == "no environment variable of cuFile is set"
    nvfs.environ |= {"CUFILE_ALLOW_COMPAT_MODE": "false", "CUFILE_NVTX": "1"}
    nvfs.probe = dataclasses.replace(nvfs.probe, version=version)
    finding = nvfs.findings()["cufile.variables"]
    assert (finding.severity, finding.evidence["read"]) == (severity, read)
    assert finding.evidence["variables"] == {"CUFILE_ALLOW_COMPAT_MODE": "false", "CUFILE_NVTX": "1"}
    assert ("allow_compat_mode in /etc/cufile.json" in finding.remedy) == (read is False)


def test_nvme_over_fabrics_with_p2pdma_switched_on(nvfs: Made):
    nvfs.write("/sys/class/block/nvme0n1/device/transport", "tcp\n")
    assert nvfs.findings()["cufile.config"].severity == "ok"
    nvfs.environ["CUFILE_USE_PCIP2PDMA"] = "true"
    finding = nvfs.findings()["cufile.config"]
    assert (finding.severity, "fail with I/O errors" in finding.message) == ("warning", True)


def unpatched(made: Made) -> None:
    made.write("/proc/driver/nvidia-fs/modules", "wekafsio: 1\n")


def misnamed(made: Made) -> None:
    unpatched(made)
    made.write("/proc/kallsyms", "0000 d p2pdma_pgmap_ops\n0000 T nvme_v2_register_nvfs_dma_ops\t[nvme]\n")


def unseen(made: Made) -> None:
    made.remove("/proc/driver/nvidia-fs/modules")
    made.remove("/proc/kallsyms")


@pytest.mark.parametrize(
    ("change", "fulfilled", "says"),
    [(unpatched, False, "kernel's own"), (misnamed, False, "DOCA 26.01"), (unseen, None, "cannot be checked")],
)
def test_the_nvme_driver_without_hooks_for_nvidia_fs(nvfs: Made, change, fulfilled: bool | None, says: str):
    nvfs.probe = dataclasses.replace(nvfs.probe, nvfs_reads=0, posix_reads=1)
    assert nvfs.findings()["cufile.nvfs-nvme"].evidence["fulfilled"] is True
    change(nvfs)
    finding = nvfs.findings()["cufile.nvfs-nvme"]
    assert (finding.evidence["fulfilled"], says in finding.message) == (fulfilled, True)
    assert ("mlnx-nvme-dkms" in finding.remedy) == (fulfilled is False)


def quota(made: Made) -> None:
    made.write("/proc/self/cgroup", "0::/a/b\n")
    made.write("/sys/fs/cgroup/a/cpu.max", "200000 100000\n")
    made.write("/sys/fs/cgroup/cpu.max", "max 100000\n")


def old_quota(made: Made) -> None:
    made.write("/proc/self/cgroup", "3:cpu,cpuacct:/a\n")
    made.write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "150000\n")
    made.write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n")


@pytest.mark.parametrize(
    ("change", "severity", "says"),
    [
        (lambda made: None, "ok", "128 CPU cores"),
        (quota, "warning", "process to 2 CPU cores"),
        (old_quota, "warning", "process to 1.5 CPU cores"),
        (lambda made: made.remove("/proc/self/status"), "unknown", "cannot be read"),
    ],
)
def test_processors(nvfs: Made, change, severity: str, says: str):
    change(nvfs)
    finding = nvfs.findings()["machine.processors"]
    assert (finding.severity, says in finding.message) == (severity, True)


GPU_RESOURCE = "/sys/bus/pci/devices/0000:03:00.0/resource"
SMALL = "0x0 0x0 0x0\n0x0000000080000000 0x000000008fffffff 0x14220c\n"


@pytest.mark.parametrize(
    ("gpu", "bars", "severity", "says"),
    [
        ({}, None, "ok", "BAR1 has 128 GiB"),
        ({}, SMALL, "warning", "256 MiB, too little"),
        ({}, "", "info", "not visible"),
        ({"bar1_bytes": 2**37, "bar1_free": 2**36}, SMALL, "ok", "64 GiB free"),
        ({"bar1_bytes": 2**37, "bar1_free": 2**20}, None, "warning", "only 1 MiB of 128 GiB"),
    ],
)
def test_bar1(nvfs: Made, gpu, bars: str | None, severity: str, says: str):
    nvfs.gpu = dataclasses.replace(nvfs.gpu, **gpu)
    if bars is not None:
        nvfs.write(GPU_RESOURCE, bars)
    finding = nvfs.findings()["gpu.bar1"]
    assert (finding.severity, says in finding.message) == (severity, True)


@pytest.mark.parametrize(
    ("gpu", "severity", "says"),
    [
        ({}, "ok", "neither"),
        ({"name": "NVIDIA A100-SXM4-40GB"}, "ok", "neither"),
        ({"name": "NVIDIA A100-40C"}, "warning", "before Ada"),
        ({"name": "NVIDIA L40S-48Q"}, "info", "the open driver"),
        ({"virtual": True}, "info", "the open driver"),
        ({"mig": True}, "info", "MIG"),
        ({"name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"}, "info", "MIG"),
    ],
)
def test_parts_of_a_gpu(nvfs: Made, gpu, severity: str, says: str):
    nvfs.gpu = dataclasses.replace(nvfs.gpu, **gpu)
    finding = nvfs.findings()["gpu.slice"]
    assert (finding.severity, says in finding.message) == (severity, True)


def test_mig_is_known_by_its_instances_too(nvfs: Made):
    nvfs.write("/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "")
    assert "MIG" in nvfs.findings()["gpu.slice"].message


def test_pages_of_files_that_a_gpu_reads_too_slowly_are_not_used(nvfs: Made):
    nvfs.gpu = dataclasses.replace(
        nvfs.gpu, name="NVIDIA GB10", mapped_rate=0.25e9, pinned_rate=22e9, slow=True, coherent=True
    )
    nvfs.probe = dataclasses.replace(nvfs.probe, nvfs_reads=0, posix_reads=1)
    report = nvfs.diagnose()
    finding = next(one for one in report.findings if one.check == "gpu.mapping")
    assert "at 0.25 GB/s and pinned memory at 22 GB/s, so bounce is used" in finding.message
    assert (report.verdict.backend, report.verdict.worth[:6]) == ("bounce", "hardly")


@pytest.mark.parametrize("environ", [{}, {"container": "x"}])
def test_libraries_that_cufile_loads_itself(nvfs: Made, environ):
    nvfs.environ |= environ
    assert nvfs.findings()["cufile.system-libraries"].severity == "ok"
    nvfs.remove("/usr/lib/x86_64-linux-gnu/libudev.so.1")
    finding = nvfs.findings()["cufile.system-libraries"]
    assert (finding.severity, finding.evidence["missing"]) == ("warning", ["libudev.so.1"])
    assert finding.fix.who == ("container" if environ else "root")
    nvfs.write("/opt/libudev.so.1")
    nvfs.write("/etc/ld.so.cache", b"\0/opt/libudev.so.1\0")
    assert nvfs.findings()["cufile.system-libraries"].severity == "ok"
