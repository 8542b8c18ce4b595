"""Subsets and concatenations taken apart: the same samples in the same order as torch gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset

from gdsload import DatasetNotFoundError, OptionError, ShardDataset, ShardWriter
from gdsload.loader.selection import select


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
    """What each of the user's indices stands for."""
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


@settings(derandomize=True, deadline=None, max_examples=80)
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
        ConcatDataset([leaves[1], leaves[2]]),
        ConcatDataset([leaves[1], ConcatDataset([leaves[2]])]),
        ConcatDataset([Subset(leaves[1], range(2)), Subset(leaves[1], range(2, 5))]),
    ):
        assert select(source).ids is None
    assert select(Subset(leaves[1], range(5))).ids is None
    assert select(leaves[1].path).ids is None


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


def test_path_to_nothing(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="there is no dataset here"):
        select(tmp_path / "none")
