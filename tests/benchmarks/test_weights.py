"""The benchmark of weights compares all bytes, on a CPU, too."""

import json

import pytest
import safetensors.torch
import torch

from benchmarks.gpu import weights


@pytest.mark.parametrize("name", ["gdsload-each", "safe-open"])
def test_others_load_the_same_bytes(tmp_path, capsys, name):
    files = weights.write_model(tmp_path, 2**18)
    assert weights.main(["--trial", name, "--device", "cpu", "--files", *files]) == 0
    assert json.loads(capsys.readouterr().out)["wrong"] == 0


def test_wrong_bytes_are_a_failure(tmp_path, capsys, monkeypatch):
    files = weights.write_model(tmp_path, 2**18)

    def load(names, device):
        found = {key: one for name in names for key, one in safetensors.torch.load_file(name, device=device).items()}
        first = next(iter(found))
        return {**found, first: torch.zeros_like(found[first])}

    monkeypatch.setitem(weights.CONTENDERS, "gdsload", ("broken", "gdsload", load))
    assert weights.main(["--trial", "gdsload", "--device", "cpu", "--files", *files]) == 0
    assert json.loads(capsys.readouterr().out)["wrong"] == 1
