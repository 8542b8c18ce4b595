"""The corpus, and some inputs beside it, always the same ones: none may do more than end in an error of gdsload's."""

import json
import subprocess
import sys

import pytest

from tests.fuzz.__main__ import NAMES

pytest.importorskip("PIL", reason="one target has images")


def test_inputs_of_strangers_end_in_an_error_or_in_the_values_that_they_have():
    command = [sys.executable, "-m", "tests.fuzz", *NAMES, "--plain", "--runs", "60"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert said.returncode == 0, said.stderr[-3000:]
    found = [json.loads(line) for line in said.stdout.splitlines()]
    assert [one["target"] for one in found] == list(NAMES)
    assert all(0 < one["batches"] < one["inputs"] for one in found), found  # some are taken, some are refused
