"""Mixtures: the samples of each dataset in proportion to its weight, resumed at every step, on any number of ranks."""

import itertools
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

import gdsload
from gdsload import Memory, Mix, OptionError, SampleIndexError, ShardDataset, StateError
from gdsload.testing import assert_resumes_everywhere
from tests.loader.conftest import write_plain
from tests.loader.taking import numbers

WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}
SIZES = {"a": 1000, "b": 77, "c": 5}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Datasets whose samples hold their own numbers."""
    folder = tmp_path_factory.mktemp("parts")
    return {name: ShardDataset(write_plain(folder / name, size, shard_bytes=4096)) for name, size in SIZES.items()}


@pytest.fixture
def make(parts):
    """Makes loaders of mixtures; the caller closes them."""

    def loader(batch_size=60, shuffle=True, *, weights=WEIGHTS, samples=2000, seed=3, **options):
        mix = Mix(parts, weights, samples=samples)
        return gdsload.DataLoader(mix, batch_size, shuffle, device="cpu", seed=seed, with_index=True, **options)

    return loader


def taken(loader):
    """The samples of an epoch, as (dataset, number), checked against what the batches hold."""
    found = []
    for batch in loader:
        datasets, numbers = loader.dataset.locate(batch["index"])
        assert torch.equal(batch["x"][:, 0].long(), numbers)
        assert torch.equal(batch["x"][:, -1].long(), numbers)
        found += zip([loader.dataset.names[number] for number in datasets], numbers.tolist(), strict=True)
    return found


@pytest.mark.parametrize("shuffle", [True, "full", False])
def test_samples_of_a_dataset_come_equally_often(make, shuffle, mmap):
    with make(shuffle=shuffle, mmap=mmap) as loader:
        assert len(loader) == 34
        found = []
        for _ in range(3):
            epoch = taken(loader)
            assert len(epoch) == 2000
            found += epoch
            times = Counter(found)
            for name, size in SIZES.items():
                counts = [times[name, number] for number in range(size)]
                assert max(counts) - min(counts) <= 1
        shares = Counter(name for name, _ in found)
        assert all(abs(shares[name] - 6000 * weight) <= 2 for name, weight in WEIGHTS.items())
        first = [number for name, number in found if name == "b"][:77]
        assert (first == sorted(first)) == (shuffle is False)


@pytest.mark.parametrize("world_size", [2, 3, 7])
@pytest.mark.parametrize("drop_last", [False, True])
def test_all_ranks_together_are_a_world_of_one(make, world_size, drop_last):
    def steps(rank, world_size, batch_size):
        with make(batch_size, ranks=(rank, world_size), drop_last=drop_last, samples=500) as loader:
            return numbers(loader)

    ranks = [steps(rank, world_size, 10) for rank in range(world_size)]
    *together, last = [list(itertools.chain(*step)) for step in zip(*ranks, strict=True)]
    *whole, tail = steps(0, 1, 10 * world_size)
    assert together == whole
    assert set(last) == set(tail)  # some of it for two ranks, so that all have as many


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_it_resumes_at_every_step(make, shuffle, drop_last):
    options = {"shuffle": shuffle, "drop_last": drop_last, "samples": 700}
    assert_resumes_everywhere(lambda: make(**options), lambda: make(**options, mmap=False, memory=Memory(prefetch=900)))


@pytest.mark.parametrize(
    "other",
    [{"weights": {"a": 0.5, "b": 0.2, "c": 0.3}}, {"samples": 1999}, {"samples": None}],
    ids=str,
)
def test_another_mixture_is_refused(make, other):
    with make() as loader, make(**other) as second:
        next(iter(loader))
        with pytest.raises(StateError, match="the mixture differs.*same weights and samples"):
            second.load_state_dict(loader.state_dict())


def test_a_mixture_and_a_concatenation_do_not_go_on_from_each_other(make, load, parts):
    with make(samples=None) as loader, pytest.raises(StateError, match="the mixture differs"):
        loader.load_state_dict(load(ConcatDataset(parts.values()), 60, "full", seed=3).state_dict())


def test_a_loader_tells_what_it_mixes(make, parts):
    with make() as loader:
        assert "DataLoader of Mix({'a': 0.5 of 1000, 'b': 0.3 of 77, 'c': 0.2 of 5}, samples=2000)\n" in repr(loader)
    assert repr(Mix([parts["c"]] * 10, [1] * 10)).endswith("'7': 1 of 5, 2 more}, samples=50)")


class TestParts:
    def test_as_a_dataset_it_is_the_concatenation(self, parts):
        mix, both = Mix(parts, WEIGHTS), ConcatDataset(parts.values())
        assert len(mix) == len(both) == mix.samples == 1082
        for index in (0, 999, 1000, 1076, 1077, -1):
            assert torch.equal(mix[index]["x"], both[index]["x"])
        datasets, numbers = mix.locate(torch.tensor([0, 999, 1000, 1076, 1077, 1081]))
        assert datasets.tolist() == [0, 0, 1, 1, 2, 2]
        assert numbers.tolist() == [0, 999, 0, 76, 0, 4]
        for outside in (-1, 1082):
            with pytest.raises(SampleIndexError, match=f"sample {outside} does not exist: the Mix has 1082"):
                mix.locate(torch.tensor([0, outside]))

    def test_paths_subsets_and_one_dataset_twice(self, load, parts):
        subset = Subset(parts["a"], range(999, 900, -1))
        mix = Mix(
            [parts["b"].path, subset, Path(parts["b"].path), parts["b"], parts["b"]], [1, 1, 1, 2, 3], samples=800
        )
        loader = load(mix, 50, "full", with_index=True)
        times = Counter()
        for batch in loader:
            datasets, numbers = mix.locate(batch["index"])
            wanted = [
                999 - number if dataset == 1 else number for dataset, number in zip(datasets, numbers, strict=True)
            ]
            assert batch["x"][:, 0].tolist() == wanted
            times.update(datasets.tolist())
        assert all(abs(times[number] - share) <= 2 for number, share in enumerate([100, 100, 100, 200, 300]))
        assert mix.names == ("0", "1", "2", "3", "4")

    def test_a_weight_of_nothing(self, make):
        with make(weights={"a": 0, "b": 1, "c": 0}) as loader:
            assert {name for name, _ in taken(loader)} == {"b"}

    @pytest.mark.parametrize(
        ("samples", "wanted"),
        [(None, 1082), (10, 10), (0, 0), ("first_exhausted", 25), ("all_exhausted", 2000)],
    )
    def test_how_long_an_epoch_is(self, make, samples, wanted):
        with make(samples=samples) as loader:
            assert len(taken(loader)) == wanted == loader.dataset.samples


def test_blocks_of_one_sample_are_refused_as_well(tmp_path):
    """They would be a full shuffle, but whether an argument is refused is no matter of the samples' size."""
    large = write_plain(tmp_path / "large", 2, width=600_000)
    with pytest.raises(OptionError, match="a Mix cannot be shuffled in blocks"):
        gdsload.DataLoader(Mix([large], [1]), 1, "block", device="cpu")
