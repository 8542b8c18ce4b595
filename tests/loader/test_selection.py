"""Paths, subsets and concatenations: ``dataset[index]`` is the sample, whatever the order."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset

import gdsload
from gdsload import DatasetNotFoundError, FormatError, OptionError, ShardDataset, ShardWriter
from gdsload.loader.selection import select
from gdsload.order import Schedule, make_order
from tests.loader.conftest import write_plain
from tests.loader.taking import BLOCK, EXAMPLES, ORDERS, numbers
from tests.order.quality import batch_ids


@pytest.fixture(scope="module")
def shards(plain):
    return ShardDataset(plain)


@EXAMPLES
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
        with gdsload.DataLoader(subset, batch_size, device="cpu", with_index=True, **world, **order) as loader:
            for batch in loader:
                found = batch["index"].tolist()
                assert batch["x"][:, 0].tolist() == [indices[index] % 1000 for index in found]
                seen += found
    assert sorted(set(seen)) == list(range(len(indices)))
    assert len(seen) - len(indices) < world_size


def test_the_default_order_of_a_subset_is_that_of_its_size(load, shards):
    assert load(Subset(shards, range(50)), 1, "block").order_options.window <= 50


def test_a_single_shard_and_files_of_others(load, plain, tmp_path):
    assert len(load(os.path.join(plain, "shard-00001.safetensors"))) == 256
    from safetensors.torch import save_file

    save_file({"a": torch.arange(10), "b": torch.zeros(10, 3)}, tmp_path / "foreign.safetensors")
    batch = next(iter(load(tmp_path / "foreign.safetensors", 4)))
    assert batch["a"].tolist() == [0, 1, 2, 3]
    assert batch["b"].shape == (4, 3)


class TestRefused:
    def test_what_is_no_dataset_yet_can_be_converted(self, load, tmp_path):
        (tmp_path / "my pictures").mkdir()
        with pytest.raises(DatasetNotFoundError, match="index.json nor .safetensors files. Pass the folder"):
            load(tmp_path / "my pictures")
        (tmp_path / "my pictures/cat.png").touch()
        convert = r"Pass what `gdsload convert '\S*/my pictures\S*' shards/` makes of it"
        with pytest.raises(DatasetNotFoundError, match=rf"index.json nor .safetensors files. {convert}"):
            load(tmp_path / "my pictures")
        (tmp_path / "my pictures/train.bin").write_bytes(bytes(range(1, 200)))
        with pytest.raises(FormatError, match=rf"{convert}.*\n.*it is no safetensors file"):
            load(tmp_path / "my pictures/train.bin")


def test_shards_that_nobody_wants_are_not_touched(tmp_path, load, order):
    """They may even be gone; and blocks come in the order of the whole dataset's shards, as states before say."""
    dataset = ShardDataset(write_plain(tmp_path / "shards", 1000, shard_bytes=2048))
    ends = np.cumsum(dataset.counts)
    assert len(ends) > 9
    wanted = [*range(int(ends[2]) + 3, int(ends[4])), *range(int(ends[7]), int(ends[8]) - 1)][::-1]
    subset = Subset(dataset, wanted)
    whole = load(subset, 7, with_index=True, **order)
    expected = numbers(whole)
    for number, source in enumerate(dataset.sources):
        if number not in (3, 4, 8):
            os.remove(source.path)
    loader = load(subset, 7, with_index=True, **order)
    assert loader.cache.shards == 3
    found = []
    for batch in loader:
        found.append(batch["index"].tolist())
        assert batch["x"][:, 0].tolist() == [wanted[index] for index in found[-1]]
    assert found == expected
    assert loader.cache.shards == 3
    counts = dataset.counts.tolist()
    if order == BLOCK:
        runs = [sum(end - count <= number < end for number in wanted) for count, end in zip(counts, ends, strict=True)]
        made = make_order(loader.order_options, runs, 0, 0)
        schedule = Schedule(len(wanted), 7, lanes=made.lanes)
        in_order = np.argsort(wanted, kind="stable")
        assert found == [in_order[batch_ids(made, schedule, step)].tolist() for step in range(schedule.steps)]


# --- what they are taken apart into ---


@pytest.fixture(scope="module")
def leaves(tmp_path_factory):
    """Three datasets of 0, 5 and 3 samples."""
    parent = tmp_path_factory.mktemp("leaves")
    found = []
    for number, count in enumerate((0, 5, 3)):
        with ShardWriter(parent / str(number), {"x": "str"}, shard_bytes=20) as writer:
            for index in range(count):
                writer.write({"x": f"{number}.{index}"})
        found.append(ShardDataset(parent / str(number)))
    return found


def names(selected):
    """The stored samples of each of the user's indices."""
    every = [sample["x"] for dataset in selected.datasets for sample in dataset]
    return every if selected.ids is None else [every[index] for index in selected.ids]


@st.composite
def trees(draw, depth=3):
    """A recipe for a nest of subsets and concatenations."""
    kind = draw(st.sampled_from(["leaf"] if depth == 0 else ["leaf", "subset", "concat"]))
    if kind == "leaf":
        return kind, draw(st.integers(0, 2))
    if kind == "subset":
        form = draw(st.sampled_from([list, tuple, np.array, torch.tensor]))
        return kind, draw(trees(depth=depth - 1)), draw(st.lists(st.integers(-1000, 1000), max_size=8)), form
    return kind, draw(st.lists(trees(depth=depth - 1), min_size=1, max_size=3))


def grow(tree, leaves):
    if tree[0] == "leaf":
        return leaves[tree[1]]
    if tree[0] == "concat":
        return ConcatDataset([grow(part, leaves) for part in tree[1]])
    inner = grow(tree[1], leaves)
    count = len(inner)
    indices = [number % (2 * count) - count for number in tree[2]] if count else []
    form = tree[3] if indices else list
    return Subset(inner, form(indices))


@settings(derandomize=True, max_examples=80)
@given(trees())
def test_any_nest_is_what_torch_makes_of_it(leaves, tree):
    source = grow(tree, leaves)
    selected = select(source)
    wanted = [source[index]["x"] for index in range(len(source))]
    assert (wanted, len(source)) == (names(selected), len(selected))
    assert len({id(dataset) for dataset in selected.datasets}) == len(selected.datasets)


def test_one_dataset_needs_no_table(leaves):
    for source in (
        leaves[1],
        leaves[1].path,
        Subset(leaves[1], range(5)),
        ConcatDataset([leaves[1], leaves[2]]),
        ConcatDataset([leaves[1], ConcatDataset([leaves[2]])]),
        ConcatDataset([Subset(leaves[1], range(2)), Subset(leaves[1], range(2, 5))]),
    ):
        assert select(source).ids is None


def test_subset_of_a_masks_nonzero(leaves):
    mask = torch.tensor([True, False, False, True, False])
    assert select(Subset(leaves[1], mask.nonzero())).ids.tolist() == [0, 3]
    assert len(select(Subset(leaves[1], (~mask & mask).nonzero()))) == 0


def test_datasets_of_other_fields(leaves, tmp_path):
    with ShardWriter(tmp_path / "d") as writer:
        writer.write({"y": 1})
    other = ShardDataset(tmp_path / "d")
    with pytest.raises(OptionError, match=r"have different fields: x: .*; and y: int64 \[\]\. Convert one of them"):
        select(ConcatDataset([leaves[1], other]))
