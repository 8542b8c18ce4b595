"""Parts and mixtures by class: every sample in its place, each class in its proportion, a function of the seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset

import gdsload
from gdsload import Field, OptionError, class_balanced, stratified_split
from gdsload.testing import assert_resumes_everywhere

SIZES = {0: 500, 3: 260, 7: 30, 9: 9, 11: 1}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """800 samples of five classes, in random order."""
    labels = np.random.default_rng(2).permutation(np.repeat(list(SIZES), list(SIZES.values())))
    path = tmp_path_factory.mktemp("labelled") / "set"
    schema = {"label": Field("int16"), "name": "str", "n": "int64", "x": Field("float32", (2,)), "score": "float32"}
    with gdsload.ShardWriter(path, schema, shard_bytes="8KiB", pack_fields=["label", "n"]) as writer:
        for number, label in enumerate(labels):
            name = f"class {label}"
            writer.write({"label": int(label), "name": name, "n": number, "x": torch.zeros(2), "score": 0.5})
    return path, labels


class TestSplit:
    @pytest.mark.parametrize("by", ["label", "name", "vector", "tensor", "texts"])
    def test_each_part_has_its_share_of_every_class(self, labelled, by):
        path, labels = labelled
        vectors = {"vector": labels, "tensor": torch.from_numpy(labels), "texts": [f"{label}" for label in labels]}
        parts = stratified_split(gdsload.ShardDataset(path), [0.8, 0.15, 0.05], vectors.get(by, by), seed=1)
        assert [len(part) for part in parts] == [640, 120, 40]
        assert sorted(np.concatenate([part.indices for part in parts]).tolist()) == list(range(800))
        for part, share in zip(parts, [0.8, 0.15, 0.05], strict=True):
            assert part.indices.tolist() == sorted(part.indices.tolist())
            found = Counter(labels[part.indices].tolist())
            assert all(abs(found[label] - share * size) < 2 for label, size in SIZES.items())

    @settings(derandomize=True, deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def test_whatever_the_classes_and_lengths(self, labelled, data):
        labels = np.array(data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=60)))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(labels)), max_size=4)))
        lengths = np.diff([0, *cuts, len(labels)]).tolist()
        part = Subset(gdsload.ShardDataset(labelled[0]), range(len(labels)))
        parts = stratified_split(part, lengths, labels, seed=data.draw(st.integers(0, 2**64 - 1)))
        assert [len(one) for one in parts] == lengths
        assert sorted(np.concatenate([one.indices for one in parts]).tolist()) == list(range(len(labels)))
        for label, size in Counter(labels.tolist()).items():
            first = (labels[parts[0].indices] == label).sum()
            assert abs(first - lengths[0] * size / len(labels)) < 1

    def test_it_depends_on_the_seed_alone(self, labelled):
        dataset = gdsload.ShardDataset(labelled[0])
        first, again, other = (stratified_split(dataset, [0.5, 0.5], "label", seed=seed)[0] for seed in (1, 1, 2))
        assert first.indices.tolist() == again.indices.tolist()
        assert first.indices.tolist() != other.indices.tolist()

    def test_a_class_of_one_sample_gets_anywhere(self, labelled):
        dataset = gdsload.ShardDataset(labelled[0])
        alone = int(np.flatnonzero(labelled[1] == 11)[0])
        found = [alone in stratified_split(dataset, [0.7, 0.3], "label", seed=seed)[1].indices for seed in range(60)]
        assert 8 < sum(found) < 30

    def test_of_parts_and_concatenations(self, load, labelled):
        dataset = gdsload.ShardDataset(labelled[0])
        rare = dataset.filter(lambda batch: batch["label"] > 0, fields=["label"])
        both = ConcatDataset([rare, rare])
        train, _ = stratified_split(both, [500, 100], "label")
        (batch,) = load(train, 500, fields=["label"])
        found = Counter(batch["label"].tolist())
        assert all(abs(found[label] - 2 * SIZES[label] * 5 / 6) < 1 for label in (3, 7, 9, 11))

    @pytest.mark.parametrize(
        ("lengths", "labels", "message"),
        [
            ([0.5, 0.6], "label", r"lengths are \[0\.5, 0\.6\]\. Pass numbers of samples that add up to 800"),
            ([700, 101], "label", r"lengths are \[700, 101\]"),
            ([-1, 801], "label", r"lengths are \[-1, 801\]"),
            ([], "label", r"lengths are \[\]"),
            ([1.0], "labels", "the dataset has no field 'labels'"),
            ([1.0], "x", r"the field 'x' is .*, and neither a whole number nor a text"),
            ([1.0], "score", r"the field 'score' is .*, and neither a whole number nor a text"),
            ([1.0], [1, 2], r"labels are int64 of shape \(2,\), for 800 samples"),
            ([1.0], [[1, 2], [3]], r"labels are .*, for 800 samples"),
            ([1.0], ["a"] * 799 + [3], "labels cannot be compared with each other"),
        ],
    )
    def test_what_cannot_be_used(self, labelled, lengths, labels, message):
        with pytest.raises(OptionError, match=message):
            stratified_split(gdsload.ShardDataset(labelled[0]), lengths, labels)


class TestBalanced:
    @pytest.mark.parametrize("by", ["label", "name"])
    def test_classes_come_equally_often_and_their_samples_too(self, load, labelled, by):
        path, labels = labelled
        mix = class_balanced(gdsload.ShardDataset(path), by)
        names = ["0", "3", "7", "9", "11"] if by == "label" else [f"class {label}" for label in (0, 11, 3, 7, 9)]
        assert mix.names == tuple(names)
        loader, seen = load(mix, 50, True, seed=1, fields=["n", "label"]), Counter()
        for _ in range(3):
            found = Counter()
            for batch in loader:
                assert labels[batch["n"].numpy()].tolist() == batch["label"].tolist()
                found.update(batch["label"].tolist())
                seen.update(batch["n"].tolist())
            assert all(abs(found[label] - 160) <= 2 for label in SIZES)
        for label in SIZES:
            times = [seen[number] for number in np.flatnonzero(labels == label).tolist()]
            assert max(times) - min(times) <= 1

    def test_ranks_share_it_and_it_resumes(self, load, labelled):
        path, _ = labelled
        mix = class_balanced(gdsload.ShardDataset(path), "label", samples=100)
        ranks = [list(load(mix, 10, True, fields=["n"], rank=rank, world_size=2)) for rank in (0, 1)]
        (whole,) = load(mix, 100, True, fields=["n"])
        shared = torch.cat([batch["n"] for pair in zip(*ranks, strict=True) for batch in pair])
        assert torch.equal(shared, whole["n"])
        assert_resumes_everywhere(lambda: load(mix, 7, True))

    def test_of_a_part_and_what_it_finds(self, load, labelled):
        path, labels = labelled
        part = Subset(gdsload.ShardDataset(path), range(100, 700))
        mix = class_balanced(part, "label", samples="all_exhausted")
        for batch in load(mix, 64, True, with_index=True, fields=["n", "label"]):
            classes, _ = mix.locate(batch["index"])
            assert [mix.names[number] for number in classes.tolist()] == [
                str(label) for label in batch["label"].tolist()
            ]
            assert set(batch["n"].tolist()) <= set(range(100, 700))
        assert {int(name) for name in mix.names} == set(labels[100:700].tolist())

    def test_of_no_samples(self, labelled):
        with pytest.raises(OptionError, match="there are no samples, and so no classes"):
            class_balanced(Subset(gdsload.ShardDataset(labelled[0]), []), "label")

    def test_of_a_mixture(self, labelled):
        with pytest.raises(OptionError, match="a Mix has weights of its own"):
            class_balanced(gdsload.Mix([labelled[0]], [1]), "label")
