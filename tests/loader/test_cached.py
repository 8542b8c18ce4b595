"""The first batches of a loader, again and again."""

import copy

import pytest
import torch
from torch.utils.data import DataLoader

import gdsload


@pytest.mark.parametrize("most", [1, 8, 500])
def test_an_epoch_has_as_many_batches_but_the_first_ones_alone(load, plain, most):
    wanted = [batch["x"][:, 0].tolist() for batch in load(plain, 64, "full")]
    loader = gdsload.cached(load(plain, 64, "full"), batches=most)
    held = min(most, len(wanted))
    for _ in range(2):
        found = list(loader)
        assert [batch["x"][:, 0].tolist() for batch in found] == [wanted[step % held] for step in range(len(wanted))]
        assert len({id(batch) for batch in found}) == held
    assert len(loader) == len(wanted)


def test_all_else_is_the_loaders(load, plain):
    inner = load(plain, 100)
    loader = gdsload.cached(inner, 2)
    loader.set_epoch(3)
    next(iter(loader))
    assert (loader.epoch, loader.batch_size, loader.state_dict()) == (3, 100, inner.state_dict())
    assert inner.state_dict() != load(plain, 100).state_dict()  # it is after the batches that were loaded
    assert len(copy.copy(loader)) == 10
    with pytest.raises(AttributeError, match="nothing"):
        loader.nothing  # noqa: B018


def test_torchs_loader_and_lists_are_loaders_too():
    assert [batch.tolist() for batch in gdsload.cached(DataLoader(torch.arange(5), 2), 2)] == [[0, 1], [2, 3], [0, 1]]
    assert list(gdsload.cached([])) == []
    assert repr(gdsload.cached([7], 2)) == "cached([7], batches=2)"
