"""Disks that fail under a mapping: an error, as without one, and never the end of the process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loader.bad_disks import NO_MOUNT

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """What a process says that reads from bad disks: its lines, by the disk."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare to make a mount namespace with")
    # A namespace of its own, so that its mounts end with it, and whoever runs this may mount.
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-m", "tests.loader.bad_disks"]
    ended = subprocess.run(
        [*command, str(tmp_path_factory.mktemp("disks"))], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=50, check=False,
    )  # fmt: skip
    if "unshare failed" in ended.stderr or "unshare: " in ended.stderr:
        pytest.skip(f"this system makes no namespaces: {ended.stderr.strip()}")
    assert ended.returncode == 0, ended.stderr[-2000:]
    said, errors = ended.stdout, ended.stderr
    return {name: (lines, errors) for name, lines in re.findall(r"^\[(\w+)\]\n([^\[]*)", said, re.MULTILINE)}


@pytest.fixture
def on_a_bad_disk(process):
    """What was said of a bad disk, line by line, by what stands before the colon."""

    def said(kind):
        lines, errors = process[kind]
        found = dict(line.split(": ", 1) for line in lines.splitlines())
        if found["ended"] == str(NO_MOUNT):
            pytest.skip(lines.splitlines()[0])
        assert found["ended"] == "0", f"{lines}{errors[-2000:]}"
        return found

    return said


def test_a_bad_sector_is_the_same_error_as_without_a_mapping(on_a_bad_disk):
    said = on_a_bad_disk("sector")
    assert re.search(r"shard-00000.safetensors, byte \d+: reading failed: Input/output error", said["epoch"])
    assert said["epoch"] == said["unmapped"]
    assert said["samples that fail"] == "1"


def test_a_bad_sector_in_offsets(on_a_bad_disk):
    said = on_a_bad_disk("offsets")
    assert re.search(r"shard-00000.safetensors, byte \d+: reading failed: Input/output error", said["epoch"])


def test_a_hole_on_a_full_file_system(on_a_bad_disk):
    said = on_a_bad_disk("full")
    assert re.search(r"byte \d+: its bytes can be read, but its pages cannot be mapped.* `mmap=False`", said["epoch"])
    assert said["unmapped"] == "1000"
