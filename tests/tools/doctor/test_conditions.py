"""DMA without nvidia-fs: each condition is found, and found by itself."""

from __future__ import annotations

import dataclasses

import pytest

from gdsload.tools.cli.doctor import render_text
from tests.machines import CLOSED_DRIVER, Made

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


def writes(path: str, text: str):
    return lambda made: made.write(path, text)


def has_gpu(name: str):
    return lambda made: setattr(made, "gpu", dataclasses.replace(made.gpu, name=name))


def no_dwords(made: Made):
    made.write("/proc/driver/nvidia/params", 'RegistryDwords: "RMForceStaticBar1=0;RmForceDisableIomapWC=1;"\n')


def raid(made: Made):
    made.mounts("27 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw", "40 27 9:0 / /data rw - xfs /dev/md0 rw")
    made.write(f"{made.layer('md0', '9:0', 'nvme0n1')}/md/level", "raid0\n")


def no_config(made: Made):
    made.remove("/etc/cufile.json")


OLD_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release"


@pytest.mark.parametrize(
    ("spoil", "condition", "remedy"),
    [
        (writes("/proc/sys/kernel/osrelease", "5.15.0-100-generic"), "kernel", "6.2"),
        (writes("/proc/kallsyms", "0000 d jiffies\n"), "option", "CONFIG_PCI_P2PDMA=y"),
        (writes("/proc/driver/nvidia/version", CLOSED_DRIVER), "driver", "open NVIDIA kernel modules"),
        (writes("/proc/driver/nvidia/version", OLD_DRIVER), "driver", "570"),
        (no_dwords, "bar1", "RMForceStaticBar1=1"),
        (writes("/sys/module/nvme_core/parameters/multipath", "Y\n"), "multipath", "options nvme_core multipath=N"),
        (has_gpu("NVIDIA GeForce RTX 4090"), "gpu", "nvidia-fs"),
        (has_gpu("NVIDIA GH200 480GB"), "gpu", "nvidia-fs"),
        (raid, "drive", "one by one"),
        (writes("/sys/class/block/nvme0n1/device/transport", "tcp\n"), "drive", "not a local NVMe drive"),
        (no_config, "config", "use_pci_p2pdma"),
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


def of_kernel(release: str, architecture: str):
    def change(made: Made) -> None:
        made.write("/proc/sys/kernel/osrelease", release)
        made.architecture = architecture

    return change


def no_dwords_on_arm(made: Made):
    no_dwords(made)
    made.architecture = "aarch64"


def by_variable(value: str):
    def change(made: Made) -> None:
        no_config(made)
        made.environ["CUFILE_USE_PCIP2PDMA"] = value

    return change


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        (of_kernel("5.14.0-503.11.1.el9_5.x86_64", "x86_64"), ["kernel"]),
        (of_kernel("5.14.0-503.11.1.el9_5.aarch64", "aarch64"), []),
        (of_kernel("5.14.0-570.12.1.el9_6.x86_64", "x86_64"), []),
        (of_kernel("6.1.0-28-amd64", "x86_64"), ["kernel"]),
        (no_dwords_on_arm, []),
        (by_variable("TRUE"), []),
        (by_variable("on"), []),
        (by_variable("0"), ["config"]),
        (writes("/proc/kallsyms", "0000 T pci_p2pdma_add_resource\n"), []),
        # It is empty even when the keys are in force.
        (writes("/sys/module/nvidia/parameters/NVreg_RegistryDwords", "\n"), []),
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
