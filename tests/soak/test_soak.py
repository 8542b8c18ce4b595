"""Some simulated trainings, always the same: nothing is wrong, unless bytes of the shards are."""

import json
import subprocess
import sys


def soak(*options):
    command = [sys.executable, "-m", "tests.soak", "--devices=cpu", "--processes=1", "--scale=0.01", *options]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return said, json.loads(said.stdout)


def test_all_batches_of_trainings_that_stop_and_resume_are_right():
    said, found = soak("--training", "1", "4", "5")
    assert said.returncode == found["wrong"] == 0, said.stderr
    for name in ("resumes", "changes of ranks", "changes of the batch size", "held", "batches of verify=all"):
        assert found[name] > 0, found


def test_wrong_bytes_are_found_and_the_training_is_named():
    said, found = soak("--training", "5", "--break")
    assert said.returncode == found["wrong"] == 1
    assert "AssertionError: batches differ" in said.stderr, said.stderr
    assert "'training': 5" in said.stderr
