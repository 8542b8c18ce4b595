"""`gdsload doctor`: its text, its JSON, its exit codes, and this very machine."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch

from gdsload.tools.cli import main
from gdsload.tools.cli.doctor import render_script, render_text
from gdsload.tools.doctor import CHECKS, diagnose
from tests.machines import OPEN_DRIVER, Made
from tests.tools.golden import golden

GOLDEN = Path(__file__).parent / "golden"


def troubled(made: Made) -> Made:
    """A GPU machine as a container often has it: no udev, ext4 that hides its mode, P2PDMA half set up."""
    made.environ["container"] = "docker"
    for path in ("devcount", "version", "modules"):
        made.remove(f"/proc/driver/nvidia-fs/{path}")
    shutil.rmtree(made.root / "run/udev")
    made.mounts("40 27 259:1 / /data rw,relatime - ext4 /dev/nvme0n1p1 rw")
    made.probe = type(made.probe)(
        "failed", "the file cannot be registered: HANDLE_NOT_REGISTERED (5027)", "register",
        "/usr/lib/x86_64-linux-gnu/libcufile.so.1.15.1", "1.15.1", "HANDLE_NOT_REGISTERED", open_s=0.25,
        gpu="NVIDIA H100 80GB HBM3", log=("ERROR cufio-fs:79 mount option not found in mount table data",), seconds=3.5,
    )  # fmt: skip
    return made


def hanging(made: Made) -> Made:
    """A machine whose nvidia-fs was built for another driver, and whose data are on a file system that cuFile refuses."""
    made.write("/proc/driver/nvidia/version", OPEN_DRIVER.replace("570.86.15", "595.91.07"))
    log = "Picking NVIDIA driver sources from NVIDIA_SRC_DIR=/usr/src/nvidia-570.207/nvidia. If that\n"
    made.write("/var/lib/dkms/nvidia-fs/2.26.6/6.8.0-45-generic/x86_64/log/make.log", log)
    made.gpu = dataclasses.replace(made.gpu, name="NVIDIA GeForce RTX 4090")
    made.mounts("40 27 259:1 / /data rw,relatime - btrfs /dev/nvme0n1p1 rw")
    made.distributions.pop("cupy-cuda13x")
    return made


MACHINES = {
    "nvfs": ("nvfs", None, ("80", "--all")),
    "container": ("nvfs", troubled, ("80", "40", "120", "--fix")),
    "hanging": ("nvfs", hanging, ("80", "--fix")),
    "laptop": ("laptop", None, ("80",)),
}
"""Made machines: the fixture of each, the change to it, and what is kept of its report."""


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest):
    """The name and the report of each machine."""
    fixture, change, _ = MACHINES[request.param]
    made = request.getfixturevalue(fixture)
    return request.param, (change(made) if change else made).diagnose()


def test_the_text_for_a_machine(machine):
    name, report = machine
    said = ""
    for form in MACHINES[name][2]:
        if form == "--fix":
            text = render_script(report)
        else:
            text = render_text(report, width=int(form) if form.isdecimal() else 80, everything=form == "--all")
        said += f"$ {form}\n{text}\n\n"
    golden(GOLDEN / f"{name}.txt", said)


def test_lines_fit_words_are_whole_and_nothing_is_left_out(machine):
    _, report = machine
    for width in (40, 60, 80, 99, 100, 120):
        lines = render_text(report, width=width).splitlines()
        assert [line for line in lines if len(line) > width and " " in line.strip().removeprefix("-> ")] == []
    words = set(render_text(report, everything=True).split())
    assert {word for finding in report.findings for word in finding.message.split()} <= words
    short = " ".join(render_text(report).split())
    steps = {step.fix.does for way in report.ways if not way.obstacles for step in way.steps}
    assert all(does in short for does in steps) or report.verdict.backend == "gds"
    for finding in report.findings:
        if finding.severity in ("warning", "error") and not report.ways:
            assert " ".join(finding.message.split()) in short


def test_colour_only_where_asked(nvfs: Made):
    nvfs.distributions.pop("cupy-cuda13x")
    report = nvfs.diagnose()
    assert "\x1b" not in render_text(report)
    assert "<yellow>    !</>  cupy" in render_text(report, painted=lambda text, colour: f"<{colour}>{text}</>")


def test_the_script_is_one_that_a_shell_takes(nvfs: Made):
    made = troubled(nvfs)
    for made.environ in ({"KUBERNETES_SERVICE_HOST": "x"}, {}):
        script = render_script(made.diagnose())
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    lines = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert lines[:2] == ["sudo umount /data", "sudo mount -o data=ordered /dev/nvme0n1p1 /data"]
    assert lines.count("sudo reboot") == 1
    assert render_script(nvfs.diagnose(device="cpu")) == "# nothing to do"


def test_this_machine_whatever_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    start = time.monotonic()
    assert main(["doctor", str(tmp_path), "--json", "--timeout", "5"]) == 0
    assert time.monotonic() - start < 10
    tree = json.loads(capsys.readouterr().out)
    assert list(tree) == ["machine", "findings", "verdict", "ways"]
    assert [finding["check"] for finding in tree["findings"]] == [name for name, _ in CHECKS]
    assert all(list(one) == ["check", "severity", "message", "fix", "evidence"] for one in tree["findings"])
    assert [finding for finding in tree["findings"] if "gave no result" in finding["message"]] == []
    assert tree["verdict"]["backend"] in ("gds", "mapped", "bounce", "host")
    if not torch.accelerator.is_available():
        assert tree["verdict"]["backend"] == "host"
    assert os.listdir(tmp_path) == []


def test_strict_and_odd_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = ["--no-probe", "--timeout", "1"]
    assert main(["doctor", str(tmp_path), *common, "--strict"]) == 1
    assert main(["doctor", *common, "--device", "cpu"]) == 0
    assert "You get     host" in capsys.readouterr().out
    assert main(["doctor", *common, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"]["path"] == str(tmp_path)
    assert main(["doctor", str(tmp_path), *common, "--fix"]) == 0
    assert capsys.readouterr().out.startswith("# ")
    assert main(["doctor", str(tmp_path / "none"), *common]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"error: {tmp_path / 'none'}: there is no such file or folder")


@pytest.mark.cuda
def test_on_a_gpu(tmp_path: Path):
    (tmp_path / "a.safetensors").write_bytes(os.urandom(4 * 2**20))
    report = diagnose(tmp_path, timeout_s=60)
    found = {finding.check: finding for finding in report.findings}
    assert found["gpu.device"].severity == "ok"
    mapping = found["gpu.mapping"].evidence
    assert mapping["registered"] is True
    assert min(mapping["mapped_rate"], mapping["pinned_rate"]) > 1e8
    assert mapping["slow"] <= mapping["coherent"]
    assert found["gpu.bar1"].severity in ("ok", "info", "warning")
    assert [way.name for way in report.ways] == ["p2pdma", "nvidia-fs"]
    probe = found["cufile.probe"].evidence
    assert probe["status"] in ("ok", "failed", "missing", "timeout")
    assert (report.verdict.backend == "gds") <= probe["proven"]
    if probe["status"] == "ok" and probe["nvfs_reads"] is not None:
        assert probe["nvfs_reads"] + probe["p2p_reads"] + probe["posix_reads"] > 0
