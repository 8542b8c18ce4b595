"""Training on batches of a loader: every step trains."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu.resnet import ResNet


@pytest.fixture(autouse=True)
def _alone():
    """Threads of torch that wait for each other take the processor of whatever else is under way."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


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
