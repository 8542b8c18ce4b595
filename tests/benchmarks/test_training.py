"""Training on batches of a loader: every step trains, and the record says what the loader cost."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.gpu import training
from benchmarks.gpu.resnet import ResNet


@pytest.fixture(autouse=True)
def _alone():
    """Threads of torch that wait for each other take the processor of whatever else is under way."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


def test_a_record_has_every_case_that_was_asked_for(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(training, "link", lambda *_: {"gb_s": 10.0})  # which takes seconds
    command = ["--device", "cpu", "--small", "--rounds", "2", "--bytes", "256KiB", "--seconds-per-trial", "0.01"]
    names = ["network-0.5-auto", "resnet18-auto"]
    assert training.main(["--out", str(tmp_path / "found.json"), *command, "--cases", *names]) == 0
    record = json.loads((tmp_path / "found.json").read_text())
    assert [entry["name"] for entry in record["cases"]] == names
    for entry in record["cases"]:
        assert entry["images_s_alone"]["median"] > 0
        assert entry["images_s_loaded"]["median"] > 0
        assert entry["bytes_by_path"]["host"] > 0
    assert capsys.readouterr().out == training.render(record)


@pytest.mark.parametrize(("name", "parameters"), [("resnet18", 11_689_512), ("resnet50", 25_557_032)])
def test_a_resnet_trains(name, parameters):
    """The numbers of parameters are those that torchvision documents for its models of these names."""
    torch.manual_seed(0)
    step = ResNet(name, torch.device("cpu"))
    assert sum(parameter.numel() for parameter in step._net.parameters()) == parameters
    before = [parameter.detach().clone() for parameter in step._net.parameters()]
    step(torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8))
    changed = [not torch.equal(was, now) for was, now in zip(before, step._net.parameters(), strict=True)]
    assert all(changed)
