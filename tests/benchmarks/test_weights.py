"""The benchmark of weights runs on a CPU, too: bytes are compared, and what cannot take part says why."""

import json
import re

import pytest
import safetensors.torch
import torch

from benchmarks.gpu import weights


def test_a_small_run(tmp_path, capsys):
    out = tmp_path / "weights.json"
    names = ["gdsload", "safetensors", "by-hand"]
    command = ["--small", "--device", "cpu", "--rounds", "2", "--out", str(out), "--contenders", *names]
    assert weights.main([*command, "--work-dir", str(tmp_path)]) == 0
    record = json.loads(out.read_text())
    found = {entry["name"]: entry for entry in record["contenders"]}
    assert list(found) == names
    assert [len(found[name]["trials"]) for name in names] == [2, 2, 2 * torch.cuda.is_available()]
    assert torch.cuda.is_available() or re.search("CUDA|NVIDIA", found["by-hand"]["failed"])
    assert found["gdsload"]["to_safetensors"]["median"] > 0
    assert record["files"] == 2
    assert weights.render(record) == capsys.readouterr().out.rstrip("\n") + "\n"
    assert not list(tmp_path.glob("gdsload-weights-*"))


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
