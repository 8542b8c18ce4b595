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


def on_a_bad_disk(kind, place):
    """What a process says that reads from it, line by line, by what stands before the colon."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare to make a mount namespace with")
    # A namespace of its own, so that its mounts end with it, and whoever runs this may mount.
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-m", "tests.loader.bad_disks"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [*command, kind, str(place)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=50,
        check=False,
    )
    if ended.returncode == NO_MOUNT:
        pytest.skip(ended.stdout.strip())
    if "unshare failed" in ended.stderr or "unshare: " in ended.stderr:
        pytest.skip(f"this system makes no namespaces: {ended.stderr.strip()}")
    assert ended.returncode == 0, f"ended by {ended.returncode}: {ended.stdout}{ended.stderr[-2000:]}"
    return dict(line.split(": ", 1) for line in ended.stdout.splitlines())


def test_a_bad_sector_is_the_same_error_as_without_a_mapping(tmp_path):
    said = on_a_bad_disk("sector", tmp_path)
    assert re.search(r"shard-00000.safetensors, byte \d+: reading failed: Input/output error", said["epoch"])
    assert said["epoch"] == said["unmapped"]
    assert said["samples that fail"] == "1"


def test_a_bad_sector_in_offsets(tmp_path):
    said = on_a_bad_disk("offsets", tmp_path)
    assert re.search(r"shard-00000.safetensors, byte \d+: reading failed: Input/output error", said["epoch"])


def test_a_hole_on_a_full_file_system(tmp_path):
    said = on_a_bad_disk("full", tmp_path)
    assert re.search(r"byte \d+: its bytes can be read, but its pages cannot be mapped.* mmap=False", said["epoch"])
    assert said["unmapped"] == "1000"
