"""Known bugs before anything is tried, and checks of one fact each: variables, libraries, processors, BAR1, MIG, vGPU."""

from __future__ import annotations

import dataclasses

import pytest

from gdsload.system.probe import ask_cufile
from gdsload.system.probe import probe as asking
from gdsload.system.probe.known_bugs import known_bug
from gdsload.tools.doctor.cufile_checks import find_libraries
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


def test_libraries_in_wheels_in_the_linkers_cache_and_by_the_path(made: Made):
    made.write("/site/nvidia/cu13/lib/libcufile.so.0")
    made.write("/site/nvidia_cufile-1.20.0.107.dist-info/METADATA")
    made.write("/opt/cuda/lib/libcufile.so.0")
    made.write("/odd/libcufile.so.0")
    made.write("/etc/ld.so.cache", b"glibc-ld.so.cache1.1\0\1\2libc.so.6\0/odd/libcufile.so.0\0/gone/libcufile.so.0\0")
    made.environ["LD_LIBRARY_PATH"] = "/opt/cuda/lib:relative"
    found = find_libraries(dataclasses.replace(made.system(), site_folders=("", "/site")))
    assert found == [
        ("/site/nvidia/cu13/lib/libcufile.so.0", "1.20.0.107"),
        ("/opt/cuda/lib/libcufile.so.0", ""),
        ("/odd/libcufile.so.0", ""),
    ]
