"""A seed that is drawn: what decides it, and who keeps it. Several ranks agree in `test_rank_groups.py`."""

import pytest
import torch

from gdsload import StateError
from gdsload.testing import assert_resumes_everywhere


def order(loader):
    return [index for batch in loader for index in batch["index"].tolist()]


@pytest.fixture
def make(load, plain):
    return lambda **options: load(plain, 100, "full", with_index=True, **{"seed": None, **options})


def test_torchs_generator_decides(make):
    found = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        found.append(order(make()))
    assert found[0] == found[1] != found[2]
    assert sorted(found[0]) == sorted(found[2]) == list(range(1000))


def test_it_is_drawn_once_when_the_first_epoch_begins(make):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    loader = make()
    len(loader), loader.state_dict(), iter(loader)
    assert loader.seed is None
    assert torch.equal(torch.get_rng_state(), before)
    first = order(loader)
    after, seed = torch.get_rng_state(), loader.seed
    assert not torch.equal(after, before)
    assert order(loader) != first
    assert loader.seed == seed
    assert torch.equal(torch.get_rng_state(), after)
    assert order(make(seed=seed)) == first


def test_it_resumes_everywhere(make):
    torch.manual_seed(1)
    loaders = []

    def again():
        torch.manual_seed(1)
        loaders.append(make(device_transform=lambda batch, generator: {**batch, "drawn": generator.initial_seed()}))
        return loaders[-1]

    assert_resumes_everywhere(again)
    assert len({loader.seed for loader in loaders if loader.seed is not None}) == 1


def test_one_that_has_not_been_drawn_is_drawn_by_who_resumes(make):
    state = make().state_dict()
    assert state["seed"] is None
    loader = make()
    for _ in range(2):  # in the middle of a run, too
        loader.load_state_dict(state)
        assert sorted(order(loader)) == list(range(1000))
        assert loader.seed is not None
    with pytest.raises(StateError, match="seed differs: it was None, here it is 3"):
        make(seed=3).load_state_dict(state)


@pytest.mark.parametrize("junk", ["5", -1, 2**64, True, 1.5, [1]])
def test_a_state_with_something_else_is_refused(make, junk):
    loader = make()
    with pytest.raises(StateError, match="seed differs"):
        loader.load_state_dict({**loader.state_dict(), "seed": junk})
    assert loader.seed is None
