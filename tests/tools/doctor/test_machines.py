"""Whole machines and the parts of them: GPU, cuFile, topology, memory, packages."""

from __future__ import annotations

import importlib.util
import time

import pytest
import torch

from gdsload.system.probe import CufileProbe
from gdsload.system.probe.library import parse_config
from gdsload.tools.doctor import Calls
from gdsload.tools.doctor import checkup as run
from gdsload.tools.doctor.system import TorchBuild
from tests.machines import DRIVE, GPU, Hang, Made, make_drive, make_gpu, make_host


def test_a_machine_that_shows_nothing_at_all(made: Made):
    report = made.diagnose("/")
    assert report.verdict.backend == "host"
    assert {finding.severity for finding in report.findings} <= {"ok", "info", "unknown"}


def test_a_probe_that_hangs_is_not_waited_for(nvfs: Made, hang: Hang, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run, "_FILES_S", 0.1)
    nvfs.calls["probe"] = hang
    start = time.monotonic()
    assert run.diagnose("/data/set", system=nvfs.system(), timeout_s=0.2).verdict.backend != "gds"
    assert time.monotonic() - start < 10


def test_cufile_is_not_asked_unless_wanted_nor_without_a_gpu(nvfs: Made, tmp_path):
    def never(*arguments) -> CufileProbe:
        raise AssertionError("asked")

    nvfs.calls["probe"] = never
    assert nvfs.findings(probe=False)["cufile.probe"].severity == "unknown"
    other = Made(tmp_path / "other")
    make_host(other)
    other.calls["probe"] = never
    assert "no NVIDIA GPU" in other.findings()["cufile.probe"].message


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": "//no comment", /* b */ "c": 1 // d\n}', {"a": "//no comment", "c": 1}),
        ('{"a": "\\" // still inside"}', {"a": '" // still inside'}),
        ("[1]", {}),
        ('{"a": ' + "[" * 100_000, {}),
        ('"' + '\\"' * 300_000, {}),
        ("/*" * 300_000, {}),
        ("", {}),
    ],
)
def test_comments_in_the_configuration(text: str, values: dict[str, object]):
    found, error = parse_config(text)
    assert found == values
    assert bool(error) == (not values)


@pytest.mark.parametrize(
    ("parent", "node", "severity", "says"),
    [
        ("/sys/devices/pci0000:00/0000:00:02.0", 0, "ok", "on NUMA node 0"),
        ("/sys/devices/pci0000:00/0000:00:02.0", -1, "info", "not known"),
        ("/sys/devices/pci0000:80/0000:80:01.0", 1, "warning", "is on NUMA node 1"),
        ("/sys/devices/pci0000:80/0000:80:01.0", 0, "warning", "different root complexes"),
    ],
)
def test_drive_and_gpu_on_one_numa_node_and_root_complex_or_two(
    made: Made, parent, node: int, severity: str, says: str
):
    make_host(made)
    make_drive(made)
    make_gpu(made, parent, node)
    finding = made.findings()["topology.drives"]
    assert finding.evidence["gpus"] == {GPU: None if node < 0 else node}
    assert finding.evidence["drives"] == {DRIVE: 0}
    assert finding.severity == severity
    assert says in finding.message


@pytest.mark.parametrize(
    ("environ", "device"),
    [
        ({}, "cuda:0"),
        ({"LOCAL_RANK": "3"}, "cuda:3"),
        ({"LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "cuda:3"),
        ({"LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": "5"}, "cuda:0"),
        ({"LOCAL_RANK": "x"}, "cuda:0"),
    ],
)
def test_the_gpu_of_a_rank_is_the_one_that_a_loader_takes(nvfs: Made, environ, device: str):
    nvfs.environ |= environ
    asked: list[str] = []
    nvfs.calls["try_gpu"] = lambda file, device, timeout_s: asked.append(device) or nvfs.gpu
    nvfs.diagnose()
    assert asked == [device]


def test_without_torch_no_version_of_the_working_folder_is_taken_for_its(tmp_path, monkeypatch):
    (tmp_path / "version.py").write_text("__version__ = '9'\ncuda = '99'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert Calls().torch_build() == TorchBuild("", "", "")


def test_a_module_in_the_working_folder_is_not_imported(tmp_path, monkeypatch):
    for name in ("ctypes", "cupy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(tmp_path)
    assert "a stranger" not in Calls().import_error("cupy")


@pytest.mark.parametrize(
    ("path", "text"),
    [("/.dockerenv", ""), ("/proc/1/cgroup", "12:memory:/kubepods/burstable\n"), ("/proc/version", "Linux gVisor")],
)
def test_signs_of_a_container(laptop: Made, path, text):
    assert not laptop.diagnose().machine["container"]
    laptop.write(path, text)
    assert laptop.diagnose().machine["container"]


def test_packages_that_are_missing_broken_doubled_or_for_another_cuda(nvfs: Made):
    nvfs.distributions = {"cupy-cuda12x": "13.0.0"}
    report = nvfs.diagnose()
    found = {finding.check: finding for finding in report.findings}
    assert found["packages.cuda-bindings"].remedy.endswith('pip install "gdsload[cu13]"')
    assert "another CUDA than torch, which is built for CUDA 13" in found["packages.cupy"].message
    nvfs.distributions |= {"cupy-cuda13x": "14.2.0", "cuda-bindings": "13.3.1"}
    nvfs.broken = {"cuda.bindings": "ImportError: none"}
    report = nvfs.diagnose()
    assert "more than one cupy" in next(f.message for f in report.findings if f.check == "packages.cupy")
    broken = next(one for one in report.findings if one.check == "packages.cuda-bindings")
    assert (broken.severity, report.verdict.backend) == ("error", "bounce")
    assert "pip uninstall -y cuda-bindings; pip install" in broken.remedy


@pytest.mark.slow
def test_the_process_that_asks_torch_answers_on_this_machine(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(bytes(8192))
    (tmp_path / "sitecustomize.py").write_text("import os; os.write(1, b'a stranger')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    trial = Calls().try_gpu(str(tmp_path / "file"), "cuda:0", 50.0)
    assert trial.status == "ok"
    assert torch.accelerator.is_available() or trial.error == "torch sees no GPU"
    assert Calls().try_gpu("", "cuda:0", 0.01).status == "timeout"
