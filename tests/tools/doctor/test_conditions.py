"""DMA without nvidia-fs: each condition is found, and found by itself."""

from __future__ import annotations

import dataclasses

import pytest

from gdsload.tools.cli.doctor import render_text
from tests.machines import CLOSED_DRIVER, DWORDS, Made
from tests.tools.doctor.test_findings import Change, both, files, gpu, layer

NAMES = ("gpu", "drive", "kernel", "option", "driver", "bar1", "multipath", "config")


def failed(made: Made) -> list[str]:
    report = made.diagnose()
    found = {finding.check: finding for finding in report.findings}
    fulfilled = {name: found[f"cufile.p2p-{name}"].evidence["fulfilled"] for name in NAMES}
    assert (report.ways[0].holds, report.ways[0].of) == (list(fulfilled.values()).count(True), len(NAMES))
    return [name for name in NAMES if fulfilled[name] is False]


def test_a_machine_that_fulfils_them_all(p2p: Made):
    found = p2p.findings()
    assert [found[f"cufile.p2p-{name}"].severity for name in NAMES] == ["ok"] * len(NAMES)
    assert p2p.diagnose().verdict.backend == "gds"


def on(architecture: str, change: Change) -> Change:
    return both(change, lambda made: setattr(made, "architecture", architecture))


NO_CONFIG = files(without=["/etc/cufile.json"])
NO_DWORDS = files({"/proc/driver/nvidia/params": DWORDS.replace("Bar1=1", "Bar1=0")})
OLD_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release"


@pytest.mark.parametrize(
    ("spoil", "condition", "remedy"),
    [
        (files({"/proc/sys/kernel/osrelease": "5.15.0-100-generic"}), "kernel", "6.2"),
        (files({"/proc/kallsyms": "0000 d jiffies\n"}), "option", "CONFIG_PCI_P2PDMA=y"),
        (files({"/proc/driver/nvidia/version": CLOSED_DRIVER}), "driver", "open NVIDIA kernel modules"),
        (files({"/proc/driver/nvidia/version": OLD_DRIVER}), "driver", "570"),
        (NO_DWORDS, "bar1", "RMForceStaticBar1=1"),
        (files({"/sys/module/nvme_core/parameters/multipath": "Y\n"}), "multipath", "options nvme_core multipath=N"),
        (gpu(name="NVIDIA GeForce RTX 4090"), "gpu", "nvidia-fs"),
        (gpu(name="NVIDIA GH200 480GB"), "gpu", "nvidia-fs"),
        (layer("md0", "9:0", "nvme0n1", "md/level", "raid0\n"), "drive", "one by one"),
        (files({"/sys/class/block/nvme0n1/device/transport": "tcp\n"}), "drive", "not a local NVMe drive"),
        (NO_CONFIG, "config", "use_pci_p2pdma"),
    ],
)
def test_each_condition_fails_alone_and_names_its_remedy(p2p: Made, spoil, condition: str, remedy: str):
    spoil(p2p)
    p2p.probe = dataclasses.replace(p2p.probe, p2p_reads=0, posix_reads=1)
    assert failed(p2p) == [condition]
    report = p2p.diagnose()
    finding = next(one for one in report.findings if one.check == f"cufile.p2p-{condition}")
    assert (finding.severity, report.verdict.backend) == ("warning", "mapped")
    assert remedy in finding.message + finding.remedy
    way = report.ways[0]
    own = [step.check for step in way.steps[way.common :]]
    assert [*own, *way.obstacles] == [finding.check if finding.fix else finding.message]


def test_where_dma_works_a_failing_condition_of_the_other_way_is_only_a_fact(nvfs: Made):
    severities = {finding.severity for finding in nvfs.diagnose().findings if "p2p" in finding.check}
    assert severities <= {"ok", "info"}
    assert failed(nvfs) == ["bar1", "config"]


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        (on("x86_64", files({"/proc/sys/kernel/osrelease": "5.14.0-503.11.1.el9_5.x86_64"})), ["kernel"]),
        (on("aarch64", files({"/proc/sys/kernel/osrelease": "5.14.0-503.11.1.el9_5.aarch64"})), []),
        (on("x86_64", files({"/proc/sys/kernel/osrelease": "5.14.0-570.12.1.el9_6.x86_64"})), []),
        (on("x86_64", files({"/proc/sys/kernel/osrelease": "6.1.0-28-amd64"})), ["kernel"]),
        (on("aarch64", NO_DWORDS), []),
        (both(NO_CONFIG, files(environ={"CUFILE_USE_PCIP2PDMA": "TRUE"})), []),
        (both(NO_CONFIG, files(environ={"CUFILE_USE_PCIP2PDMA": "on"})), []),
        (both(NO_CONFIG, files(environ={"CUFILE_USE_PCIP2PDMA": "0"})), ["config"]),
        (files({"/proc/kallsyms": "0000 T pci_p2pdma_add_resource\n"}), []),
        # It is empty even when the keys are in force.
        (files({"/sys/module/nvidia/parameters/NVreg_RegistryDwords": "\n"}), []),
    ],
)
def test_other_ways_to_fulfil_a_condition(p2p: Made, change, failing: list[str]):
    change(p2p)
    assert failed(p2p) == failing


def test_all_fulfilled_and_yet_no_dma_is_said(p2p: Made):
    p2p.probe = dataclasses.replace(p2p.probe, p2p_reads=0, posix_reads=1)
    assert "nokaslr" in p2p.diagnose().ways[0].steps[0].fix.does


def test_what_could_not_be_looked_at_is_said_of_its_way(p2p: Made):
    p2p.probe = dataclasses.replace(p2p.probe, p2p_reads=0, posix_reads=1)
    p2p.remove("/proc/kallsyms")
    way = p2p.diagnose().ways[0]
    assert (way.holds, way.unclear) == (7, ("the kernel's symbols cannot be read",))
    assert "unknown: the kernel's symbols cannot be read" in " ".join(render_text(p2p.diagnose()).split())
