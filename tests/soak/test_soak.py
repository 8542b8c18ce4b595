"""Seconds of simulated training, always the same: nothing is wrong, but where a byte of the shards is."""

import json
import subprocess
import sys

COMMAND = [sys.executable, "-m", "tests.soak", "--devices=cpu", "--processes=1", "--scale=0.02", "--seed=3"]


def soak(*options):
    said = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=100, check=False)
    return said, json.loads(said.stdout)


def test_all_batches_of_trainings_that_stop_and_resume_are_right():
    said, found = soak("--seconds=3")
    assert said.returncode == found["wrong"] == 0, said.stderr
    assert min(found[name] for name in ("trainings", "epochs", "resumes", "changes of ranks", "held")) > 0, found


def test_one_wrong_byte_is_found_and_the_training_is_named():
    said, found = soak("--seconds=3", "--break")
    assert said.returncode == found["wrong"] == 1
    assert "'training': " in said.stderr
    assert "differ" in said.stderr or "ChecksumError" in said.stderr
