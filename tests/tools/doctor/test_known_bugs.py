"""Known bugs of nvidia-fs, which are looked for before anything is tried."""

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
