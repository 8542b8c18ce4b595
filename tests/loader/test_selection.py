"""Paths, subsets and concatenations: ``dataset[index]`` is the sample, whatever the order."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset

import gdsload
from gdsload import DatasetNotFoundError, FormatError, ShardDataset
from gdsload.order import Schedule, make_order
from tests.loader.taking import numbers
from tests.order.quality import batch_ids

ORDERS = [False, "full", {"shuffle": gdsload.BlockShuffle(block=8, window=32, lanes=3)}]


def options(order):
    return order if isinstance(order, dict) else {"shuffle": order}


def number_of(dataset, index):
    """What a sample of a nest of subsets and concatenations is called in its own dataset; torch does the rest."""
    if isinstance(dataset, Subset):
        return number_of(dataset.dataset, dataset.indices[index])
    if isinstance(dataset, ConcatDataset):
        index = index % len(dataset)
        for part in dataset.datasets:
            if index < len(part):
                return number_of(part, index)
            index -= len(part)
    return index % len(dataset)


def check(loader, dataset):
    """Every index once, and with each the sample that the user's dataset has there."""
    seen = []
    for batch in loader:
        for index, row in zip(batch["index"].tolist(), batch["x"], strict=True):
            seen.append(index)
            if len(seen) % 11 == 1:
                assert torch.equal(dataset[index]["x"], row)
            else:  # the dataset's samples hold their own numbers
                assert number_of(dataset, index) == row[0] == row[-1]
    assert sorted(seen) == list(range(len(dataset)))
    return seen


@pytest.fixture(scope="module")
def shards(plain):
    return ShardDataset(plain)


@pytest.fixture(scope="module")
def second(writers, tmp_path_factory):
    """Another dataset of the same schema."""
    return ShardDataset(writers[1](tmp_path_factory.mktemp("second") / "second", 77, shard_bytes=1000))


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("mmap", [True, False])
class TestSelections:
    def both(self, load, dataset, order, mmap):
        return check(load(dataset, 7, with_index=True, mmap=mmap, **options(order)), dataset)

    @pytest.mark.parametrize(
        "indices",
        [range(999, -1, -7), np.arange(0, 1000, 3), torch.arange(999, 0, -3), [np.int32(5), 6]],
        ids=lambda value: type(value).__name__,
    )
    def test_forms_of_indices(self, load, shards, order, mmap, indices):
        seen = self.both(load, Subset(shards, indices), order, mmap)
        if order is False:
            assert seen == list(range(len(indices)))

    def test_concatenation_with_one_twice(self, load, shards, second, order, mmap):
        self.both(load, ConcatDataset([second, shards, second]), order, mmap)
        self.both(load, ConcatDataset([second, ShardDataset(second.path)]), order, mmap)

    def test_all_of_it(self, load, shards, second, order, mmap):
        parts = ConcatDataset([Subset(shards, range(0, 1000, 2)), ConcatDataset([second, Subset(second, [5, -1])])])
        self.both(load, Subset(parts, list(range(len(parts)))[::-3]), order, mmap)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    indices=st.lists(st.integers(-1000, 999), max_size=80),
    order=st.sampled_from(ORDERS),
    batch_size=st.integers(1, 20),
    world_size=st.integers(1, 3),
    mmap=st.booleans(),
)
def test_any_subset_on_any_world(shards, indices, order, batch_size, world_size, mmap):
    subset = Subset(shards, indices)
    seen = []
    for rank in range(world_size):
        world = {"ranks": (rank, world_size), "mmap": mmap}
        with gdsload.DataLoader(subset, batch_size, device="cpu", with_index=True, **world, **options(order)) as loader:
            for batch in loader:
                found = batch["index"].tolist()
                assert batch["x"][:, 0].tolist() == [indices[index] % 1000 for index in found]
                seen += found
    assert sorted(set(seen)) == list(range(len(indices)))
    assert len(seen) - len(indices) < world_size


def test_the_default_order_of_a_subset_is_that_of_its_size(load, shards):
    assert load(Subset(shards, range(50)), 1, "block").order_options.window <= 50


class Path:
    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path


@pytest.mark.parametrize("kind", [str, Path, os.fspath, lambda path: path])
def test_paths(load, plain, kind):
    loader = load(kind(str(plain)), 10)
    assert len(loader) == 100
    assert len(loader.dataset) == 1000, "as with torch's loader"


def test_a_single_shard_and_files_of_others(load, plain, tmp_path):
    assert len(load(os.path.join(plain, "shard-00001.safetensors"))) == 256
    from safetensors.torch import save_file

    save_file({"a": torch.arange(10), "b": torch.zeros(10, 3)}, tmp_path / "foreign.safetensors")
    batch = next(iter(load(tmp_path / "foreign.safetensors", 4)))
    assert batch["a"].tolist() == [0, 1, 2, 3]
    assert batch["b"].shape == (4, 3)


class Named(ShardDataset):
    name = "mine"


class TestRefused:
    def test_what_is_no_dataset_yet_can_be_converted(self, load, tmp_path):
        (tmp_path / "my pictures").mkdir()
        with pytest.raises(
            DatasetNotFoundError, match=r"index.json nor .safetensors files. Pass the folder that Shard"
        ):
            load(tmp_path / "my pictures")
        (tmp_path / "my pictures/cat.png").touch()
        convert = r"Pass what `gdsload convert '\S*/my pictures\S*' shards/` makes of it"
        with pytest.raises(DatasetNotFoundError, match=rf"index.json nor .safetensors files. {convert}"):
            load(tmp_path / "my pictures")
        (tmp_path / "my pictures/train.bin").write_bytes(bytes(range(1, 200)))
        with pytest.raises(FormatError, match=rf"{convert}.*\n.*it is no safetensors file"):
            load(tmp_path / "my pictures/train.bin")

    def test_a_subclass_with_the_samples_of_a_dataset_is_one(self, load, plain):
        assert len(load(Named(plain))) == 1000


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_shards_that_nobody_wants_are_not_touched(writers, tmp_path, load, order):
    """They may even be gone; and blocks come in the order of the whole dataset's shards, as states before say."""
    dataset = ShardDataset(writers[1](tmp_path / "shards", 1000, shard_bytes=2048))
    ends = np.cumsum(dataset.counts)
    assert len(ends) > 9
    wanted = [*range(int(ends[2]) + 3, int(ends[4])), *range(int(ends[7]), int(ends[8]) - 1)][::-1]
    subset = Subset(dataset, wanted)
    whole = load(subset, 7, with_index=True, **options(order))
    expected = numbers(whole)
    for number, source in enumerate(dataset.sources):
        if number not in (3, 4, 8):
            os.remove(source.path)
    loader = load(subset, 7, with_index=True, **options(order))
    assert loader.cache.shards == 3
    found = []
    for batch in loader:
        found.append(batch["index"].tolist())
        assert batch["x"][:, 0].tolist() == [wanted[index] for index in found[-1]]
    assert found == expected
    assert loader.cache.shards == 3
    counts = dataset.counts.tolist()
    if isinstance(order, dict):
        runs = [sum(end - count <= number < end for number in wanted) for count, end in zip(counts, ends, strict=True)]
        made = make_order(loader.order_options, runs, 0, 0)
        schedule = Schedule(len(wanted), 7, lanes=made.lanes)
        in_order = np.argsort(wanted, kind="stable")
        assert found == [in_order[batch_ids(made, schedule, step)].tolist() for step in range(schedule.steps)]


def test_a_subset_of_nothing_wants_no_shard(load, shards):
    loader = load(Subset(shards, []), 7)
    assert list(loader) == []
