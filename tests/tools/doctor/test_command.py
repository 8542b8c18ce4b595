"""`gdsload doctor`: its text, its JSON, its exit codes, and this very machine."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path

import pytest
import torch

from gdsload.tools.cli import main
from gdsload.tools.cli.doctor import render_text
from gdsload.tools.doctor import CHECKS, diagnose
from tests.machines import Made
from tests.tools.golden import golden

GOLDEN = Path(__file__).parent / "golden"


def troubled(made: Made) -> Made:
    """A GPU machine as a container often has it: no udev, ext4 that hides its mode, P2PDMA half set up."""
    for name in ("version", "devcount"):
        made.remove(f"/proc/driver/nvidia-fs/{name}")
    made.remove("/run/udev/data/b259:1")
    made.mounts("40 27 259:1 / /data rw,relatime - ext4 /dev/nvme0n1p1 rw")
    made.probe = type(made.probe)(
        "failed", "the file cannot be registered: HANDLE_NOT_REGISTERED (5027)", "register",
        "/usr/lib/x86_64-linux-gnu/libcufile.so.1.15.1", "1.15.1", "HANDLE_NOT_REGISTERED", open_s=0.25,
        gpu="NVIDIA H100 80GB HBM3", log=("ERROR cufio-fs:79 mount option not found in mount table data",), seconds=3.5,
    )  # fmt: skip
    return made


@pytest.mark.parametrize(
    ("machine", "change", "name"),
    [("nvfs", None, "nvfs.txt"), ("nvfs", troubled, "container.txt"), ("laptop", None, "laptop.txt")],
)
def test_the_text_for_a_machine(request: pytest.FixtureRequest, machine: str, change, name: str):
    made = request.getfixturevalue(machine)
    report = (change(made) if change else made).diagnose()
    golden(GOLDEN / name, render_text(report) + "\n")


def test_remedies_stand_below_what_needs_one_and_colour_only_where_asked(nvfs: Made):
    report = troubled(nvfs).diagnose()
    text = render_text(report)
    for finding in report.findings:
        shown = " ".join(text.split()).count(" ".join(finding.remedy.split())) if finding.remedy else 0
        assert (shown >= 2) == (finding.severity in ("warning", "error"))
    assert "\x1b" not in text
    assert "<yellow>    !</>  probe" in render_text(report, painted=lambda text, colour: f"<{colour}>{text}</>")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit_and_words_are_whole(nvfs: Made, width: int):
    report = troubled(nvfs).diagnose()
    lines = render_text(report, width=width).splitlines()
    assert lines[0] == "Verdict: mapped"
    assert [line for line in lines if len(line) > width and " " in line.strip().removeprefix("-> ")] == []
    words = {word for finding in report.findings for word in finding.message.split()}
    assert words <= {word for line in lines for word in line.split()}


def test_what_does_not_matter_without_a_gpu_is_listed_on_demand(laptop: Made):
    report = laptop.diagnose()
    short, whole = render_text(report), render_text(report, everything=True)
    assert "14 checks for machines with a GPU; --all lists them" in short
    assert len(whole.splitlines()) > len(short.splitlines()) + 14


def test_with_a_gpu_all_of_it_matters(nvfs: Made):
    assert render_text(nvfs.diagnose()) == render_text(nvfs.diagnose(), everything=True)


def test_this_machine_whatever_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    start = time.monotonic()
    assert main(["doctor", str(tmp_path), "--json", "--timeout", "5"]) == 0
    assert time.monotonic() - start < 10
    tree = json.loads(capsys.readouterr().out)
    assert list(tree) == ["machine", "findings", "verdict"]
    assert [finding["check"] for finding in tree["findings"]] == [name for name, _ in CHECKS]
    assert all(list(one) == ["check", "severity", "message", "remedy", "evidence"] for one in tree["findings"])
    assert [finding for finding in tree["findings"] if "gave no result" in finding["message"]] == []
    assert tree["verdict"]["backend"] in ("gds", "mapped", "bounce", "host")
    if not torch.accelerator.is_available():
        assert tree["verdict"]["backend"] == "host"
    assert os.listdir(tmp_path) == []


def test_strict_and_odd_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    common = ["--no-probe", "--timeout", "1"]
    assert main(["doctor", str(tmp_path), *common, "--strict"]) == 1
    assert main(["doctor", str(tmp_path), *common, "--device", "cpu"]) == 0
    assert "Verdict: host" in capsys.readouterr().out
    assert main(["doctor", str(tmp_path / "none"), *common, "--device", "banana"]) == 0
    assert "ERROR  path" in capsys.readouterr().out


def test_a_terminal_that_cannot_show_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    odd = tmp_path / "é×\x1b[2J"
    odd.mkdir()
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["doctor", str(odd), "--no-probe", "--device", "cpu"]) == 0
    stream.flush()
    said = stream.buffer.getvalue()
    assert b"Verdict: host" in said
    assert b"\x1b" not in said


@pytest.mark.cuda
def test_on_a_gpu(tmp_path: Path):
    (tmp_path / "a.safetensors").write_bytes(os.urandom(2**20))
    report = diagnose(tmp_path, timeout_s=60)
    found = {finding.check: finding for finding in report.findings}
    assert found["gpu.device"].severity == "ok"
    assert found["gpu.mapping"].evidence["registered"] is True
    probe = found["cufile.probe"].evidence
    assert probe["status"] in ("ok", "failed", "missing", "timeout")
    assert (report.verdict.backend == "gds") <= probe["proven"]
    if probe["status"] == "ok" and probe["nvfs_reads"] is not None:
        assert probe["nvfs_reads"] + probe["p2p_reads"] + probe["posix_reads"] > 0
