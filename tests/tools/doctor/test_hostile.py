"""Hostile files that the doctor reads: it never raises, never hangs, and prints only what a terminal may get."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdsload.errors import DatasetNotFoundError
from gdsload.tools.cli.doctor import render_json, render_text
from gdsload.tools.doctor import CHECKS, Report
from tests.machines import DWORDS, Made


def files_of(made: Made) -> list[Path]:
    return sorted(path for path in made.root.rglob("*") if path.is_file() and not path.is_symlink())


def hold(report: Report) -> None:
    assert [finding.check for finding in report.findings] == [name for name, _ in CHECKS]
    assert [finding for finding in report.findings if "gave no result" in finding.message] == []
    json.loads(render_json(report))
    text = render_text(report)
    assert all(char.isprintable() or char == "\n" for char in text)


@pytest.fixture
def full(nvfs: Made) -> Made:
    """A machine with every file that any check reads."""
    nvfs.write("/proc/driver/nvidia/params", DWORDS)
    nvfs.write("/etc/cufile.json", '{"properties": {"use_pci_p2pdma": true}, "fs": {"generic": {}}}')
    nvfs.write("/etc/ld.so.cache", b"\0/usr/lib/libcufile.so.0\0")
    nvfs.write("/proc/version", "Linux")
    nvfs.write("/proc/1/cgroup", "0::/\n")
    nvfs.write("/sys/fs/cgroup/memory.max", "max\n")
    nvfs.write("/sys/module/nvidia_fs/parameters/rw_stats_enabled", "1\n")
    return nvfs


words = st.sampled_from(
    ["-1", "0", "9" * 40, "0x" + "f" * 40, "nan", "\x1b[2J", "/", "../..", "\0", "\n", *':{["٣', "\udc80", "é"]
)
contents = st.one_of(
    st.binary(max_size=300),
    st.lists(words, max_size=8).map(lambda parts: " ".join(parts).encode("utf-8", "surrogatepass")),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_in_any_file(full: Made, data: st.DataObject):
    files = files_of(full)
    chosen = data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=3, unique=True))
    before = {path: path.read_bytes() for path in chosen}
    after = {
        path: content[: data.draw(st.integers(0, len(content)))] + data.draw(contents)
        for path, content in before.items()
    }
    try:
        for path, content in after.items():
            path.write_bytes(content)
        hold(full.diagnose())
    finally:
        for path, content in before.items():
            path.write_bytes(content)


def test_a_pipe_a_folder_and_nothing_at_the_place_of_every_file(full: Made):
    files = files_of(full)
    for path in files:
        content = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        hold(full.diagnose())
        path.unlink()
        path.write_bytes(content)
    for put, take in ((os.mkdir, os.rmdir), (os.mkfifo, os.unlink)):
        for path in files:
            path.unlink()
            put(path)
        hold(full.diagnose())
        for path in files:
            take(path)
        hold(full.diagnose())
        for path in files:
            path.touch()


@pytest.mark.parametrize("depth", [1, 3])
def test_a_circle_of_links(full: Made, depth: int):
    base = full.root / "sys/class/block/md9"
    for index in range(depth):
        (full.root / f"sys/class/block/x{index}").symlink_to(f"x{(index + 1) % depth}")
    base.symlink_to("x0")
    full.mounts("27 1 0:44 / / rw - btrfs /dev/md9 rw")
    hold(full.diagnose())


def test_a_link_that_leads_out_of_the_tree_is_not_followed(full: Made):
    (full.root / "sys/class/block/sdz").symlink_to("/sys/class")
    full.mounts("27 1 0:44 / / rw - btrfs /dev/sdz rw")
    assert full.findings()["storage.drives"].evidence == {"stack": []}


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60), path=st.text(st.characters(exclude_characters="\0"), max_size=20))
def test_any_name_and_any_path(full: Made, text: str, path: str):
    full.gpu = dataclasses.replace(full.gpu, name=text, address=text, register_error=text, registered=False)
    full.probe = dataclasses.replace(full.probe, reason=text, log=(text,), library=text, nvfs_reads=0)
    try:
        report = full.diagnose("/data/" + path)
    except DatasetNotFoundError:
        report = full.diagnose()
    hold(report)
