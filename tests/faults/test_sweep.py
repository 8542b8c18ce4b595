"""A share of the sweeps of faults and of power that is lost, and the sweeps themselves."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys

import pytest

from gdsload.errors import ReadError
from tests.faults.errnos import CALLS, ERRNOS
from tests.faults.power import Recording
from tests.faults.sweep import faults_of

COMPILER = shutil.which(os.environ.get("CC", "cc"))


needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler, which the injector needs")


def swept(share, *works):
    """The counts of a share of some works, in which nothing is wrong."""
    command = [sys.executable, "-m", "tests.faults", *works, "--share", str(share), "--seed", "1"]
    at = {"TMPDIR": "/dev/shm"} if os.path.isdir("/dev/shm") else {}  # where fsync takes no time
    said = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env={**os.environ, **at})
    assert said.returncode == 0, f"{command}: {said.stdout}{said.stderr}"
    return json.loads(said.stdout.splitlines()[-1])


@needs_compiler
def test_a_call_that_fails_loses_nothing():
    counts = swept(0.006, "write", "spread", "load mapped", "verify")
    assert counts["errors"] > 10  # that faults are injected, and felt


@needs_compiler
def test_power_that_is_lost_loses_no_dataset():
    counts = swept(0.05, "power write deep", "power spread over", "power convert spread")
    assert counts["old"] > 10
    assert counts["new"] > 10


def test_what_a_disk_may_have_after_power_is_lost(tmp_path):
    made = Recording(tmp_path)
    calls = [("open", b"", "new", ""), ("write", b"data", "new", ""), ("rename", b"", "new", "name")]
    for call, data, a, b in [*calls, ("fsync", b"", "name", ""), ("fsync", b"", "", "")]:
        made.note(call, 0, data, str(tmp_path / a), str(tmp_path / b))

    def found(cut):
        """The files that there may be after so many calls."""
        disks = set()
        for _, changes in made.parts(cut, random.Random(1)):
            made.put(changes)
            disks |= {(path.name, path.read_text()) for path in tmp_path.iterdir()} or {("", "")}
        return disks

    assert found(0) == {("", "")}
    assert found(3) > {("", ""), ("new", ""), ("new", "data"), ("name", ""), ("name", "data")}  # and data in part
    assert found(4) == {("", ""), ("new", "data"), ("name", "data")}
    assert found(5) == {("name", "data")}


def test_each_kind_of_call_has_errors():
    assert all(len(set(ERRNOS[call])) == len(ERRNOS[call]) > 3 for call in CALLS)


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (OSError(5, "it"), ["raw OSError: [Errno 5] it at "]),
        (ReadError("it"), ["no file in ReadError: it", "no remedy in ReadError: it"]),
        (ReadError("it", file="f", remedy="Mend it."), []),
    ],
)
def test_what_the_sweep_finds_wrong(error, wrong, tmp_path):
    assert faults_of(error, tmp_path) == wrong
