"""A share of the sweep of faults: right, or one error with a remedy, and right the second time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from gdsload.errors import ReadError
from tests.faults.errnos import CALLS, ERRNOS
from tests.faults.sweep import faults_of

COMPILER = shutil.which(os.environ.get("CC", "cc"))


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler, with which the injector of faults is made")
def test_a_call_that_fails_loses_nothing():
    """Another share each day; its seed is in the error, and repeats it."""
    seed = int(time.time()) // 86_400
    works = ["write", "spread", "load mapped", "verify"]
    command = [sys.executable, "-m", "tests.faults", *works, "--share", "0.006", "--seed", str(seed)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert said.returncode == 0, f"--seed {seed}: {said.stdout}{said.stderr}"
    counts = json.loads(said.stdout.splitlines()[-1])
    assert counts["errors"] > 10  # that faults are injected, and felt


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
