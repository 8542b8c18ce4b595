"""Loops that torch compiles with the loader in them: loading is left alone, and what the loop calls is compiled."""

import pytest
import torch

import gdsload

# What torch's own compiler uses of torch, where Python and torch are of certain versions.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Counting:
    """A backend that runs what it is given, and counts the graphs that multiply matrices."""

    def __init__(self):
        self.steps = 0

    def __call__(self, graph, _inputs):
        self.steps += any("linear" in str(node.target) for node in graph.graph.nodes)
        return graph.forward


@pytest.fixture
def numbered(tmp_path):
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        writer.write_batch({"x": torch.arange(64.0)[:, None]})
    return tmp_path / "d"


def step(model, x):
    return model(x).sum()


def whole(loader, model):
    total = torch.zeros(())
    for batch in loader:
        total = total + step(model, batch["x"])
    return total


def from_an_iterator(iterator, model):
    return model(next(iterator)["x"]).sum()


def test_a_loop_with_the_loader_in_it(numbered, load):
    torch.compiler.reset()
    model, backend = torch.nn.Linear(1, 1), Counting()
    loader = load(numbered, 16)
    wanted = whole(loader, model)
    compiled = torch.compile(whole, backend=backend)
    for epoch in (1, 2):
        assert loader.epoch == epoch
        assert compiled(loader, model) == wanted
    assert backend.steps >= 1
    torch.compiler.reset()


def test_a_step_with_the_iterator_in_it(numbered, load):
    torch.compiler.reset()
    model = torch.nn.Linear(1, 1)
    wanted = [model(batch["x"]).sum() for batch in load(numbered, 16)]
    compiled, iterator = torch.compile(from_an_iterator, backend="eager"), iter(load(numbered, 16))
    assert [compiled(iterator, model) for _ in range(4)] == wanted
    with pytest.raises(StopIteration):
        compiled(iterator, model)
    torch.compiler.reset()
