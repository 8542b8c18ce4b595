"""Loaders that travel: pickled, copied, spawned, forked."""

import copy
import pickle
from itertools import islice

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import RandomSampler, Subset

import gdsload
from tests.loader.taking import firsts, seeded

WAYS = {"pickled": lambda loader: pickle.loads(pickle.dumps(loader)), "copied": copy.deepcopy, "shared": copy.copy}


def double(batch):
    return {**batch, "x": batch["x"] * 2}


class Named(gdsload.DataLoader):
    """As people subclass torch's loader."""

    def __init__(self, name, dataset):
        self.before = name.upper()
        super().__init__(dataset, 64, shuffle=True, device="cpu")
        self.name = name


def drawn(epoch):
    return torch.randperm(1000, generator=seeded(epoch))


OPTIONS = {
    "in order": dict,
    "shuffled": lambda: {"shuffle": True, "seed": 3, "transform": double},
    "by blocks": lambda: {"shuffle": gdsload.BlockShuffle(block=16, window=64, lanes=2)},
    "a rank": lambda: {"shuffle": True, "ranks": (1, 3)},
    "a sampler": lambda: {"sampler": RandomSampler(range(1000), generator=seeded())},
    "a function of the epoch": lambda: {"sampler": drawn},
}


@pytest.mark.parametrize("options", OPTIONS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(way=st.sampled_from(list(WAYS)), at=st.floats(0, 0.99), batch_size=st.sampled_from([23, 64]))
def test_a_copy_goes_on_where_the_loader_stands(plain, options, way, at, batch_size):
    with gdsload.DataLoader(plain, batch_size, device="cpu", **OPTIONS[options]()) as loader:
        firsts(loader)
        batches = iter(loader)
        firsts(islice(batches, int(at * len(loader))))
        with WAYS[way](loader) as made:
            assert (made.batch_size, made.epoch, len(made)) == (batch_size, 1, len(loader))
            assert firsts(made) == firsts(batches)


def test_a_copy_between_two_epochs_is_for_any_world(load, plain, join):
    loader = load(plain, 50, True)
    firsts(loader)
    made = pickle.loads(pickle.dumps(loader))
    join(0, 1)
    with made:
        assert made.epoch == 1
        assert firsts(made) == firsts(loader)


def test_a_seed_that_was_drawn_goes_with_it(load, plain):
    loader = load(plain, 50, True, seed=None)
    with pickle.loads(pickle.dumps(loader)) as made:
        assert made.seed is None
    firsts(loader)
    with pickle.loads(pickle.dumps(loader)) as made:
        assert (made.seed, made.epoch, made.step) == (loader.seed, 1, 0)
        assert firsts(made) == firsts(loader)


@pytest.mark.parametrize("dataset", ["subset", "concatenation", "mix", "windows"])
def test_datasets_travel_too(load, plain, dataset):
    opened = gdsload.ShardDataset(plain)
    made = {
        "subset": lambda: Subset(opened, range(7, 300, 3)),
        "concatenation": lambda: opened + opened,
        "mix": lambda: gdsload.Mix([opened, opened], [1, 2]),
        "windows": lambda: gdsload.Windows(opened, 4, 2),
    }[dataset]()
    loader = load(made, 32, True)
    with pickle.loads(pickle.dumps(loader)) as copied:
        assert [batch["x"].tolist() for batch in copied] == [batch["x"].tolist() for batch in loader]


def test_a_subclass_keeps_its_own_attributes(plain):
    with Named("train", plain) as loader, pickle.loads(pickle.dumps(loader)) as made:
        made.name += "ing"
        assert (type(made), made.name, made.before, loader.name) == (Named, "training", "TRAIN", "train")
        assert firsts(made) == firsts(loader)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_an_unused_loader_works_in_a_fork_and_in_its_parent(load, plain, ends_in_a_child):
    loader = load(plain, 64, True)
    loader.set_epoch(2)
    with load(plain, 64, True) as other:
        other.set_epoch(2)
        expected = firsts(other)

    def same():
        assert firsts(loader) == expected

    assert ends_in_a_child(same)
    same()
