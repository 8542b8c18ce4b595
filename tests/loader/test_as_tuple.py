"""Batches as tuples of fields."""

import pytest
import torch

from gdsload import Field, OptionError, ShardWriter
from gdsload.testing import fingerprint


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """100 samples of an image and a label."""
    path = tmp_path_factory.mktemp("pairs") / "pairs"
    with ShardWriter(path, {"image": Field("uint8", (3, 2)), "label": Field("int64"), "rest": "str"}) as writer:
        writer.write_batch(
            {"image": torch.arange(600).view(100, 3, 2).byte(), "label": torch.arange(100), "rest": list("ab") * 50}
        )
    return path


class TestTuples:
    @pytest.mark.parametrize("names", [("image", "label"), ["label", "rest", "image"], ("rest",)])
    def test_they_are_the_fields_of_the_dicts(self, load, pairs, names):
        dicts = list(load(pairs, 8, "full"))
        tuples = list(load(pairs, 8, "full", as_tuple=names))
        assert all(type(batch) is tuple for batch in tuples)
        assert [fingerprint(dict(zip(names, batch, strict=True))) for batch in tuples] == [
            fingerprint({name: batch[name] for name in names}) for batch in dicts
        ]

    def test_no_other_field_is_read_for_them(self, load, pairs):
        def read(**options):
            loader = load(pairs, 100, **options)
            list(loader)
            return sum(loader.backend.bytes_by_path.values())

        assert read(as_tuple=["label"]) == read(fields=["label"]) < read()

    def test_the_index_can_be_one(self, load, pairs):
        for index, label in load(pairs, 7, "full", with_index=True, as_tuple=("index", "label")):
            assert torch.equal(index, label)
        assert [len(found) for (found,) in load(pairs, 60, with_index=True, as_tuple=["index"])] == [60, 40]

    def test_they_come_behind_all_transforms(self, load, pairs):
        loader = load(
            pairs, 10, device_transform=lambda batch: {**batch, "twice": 2 * batch["label"]},
            transform=lambda batch: {**batch, "thrice": batch["twice"] + batch["label"]}, as_tuple=["thrice", "label"],
        )  # fmt: skip
        for thrice, label in loader:
            assert torch.equal(thrice, 3 * label)

    @pytest.mark.parametrize(
        ("transform", "match"),
        [(lambda batch: batch["image"], "made a Tensor of the batch"), (lambda _: {"y": 1}, "'image', .*It has 'y'")],
    )
    def test_what_transforms_took_away_is_an_error(self, load, pairs, transform, match):
        with pytest.raises(OptionError, match=match):
            next(iter(load(pairs, transform=transform, as_tuple=["image"])))
