"""Batches as tuples of fields."""

import pytest
import torch

from gdsload.testing import fingerprint


class TestTuples:
    @pytest.mark.parametrize("names", [("image", "label"), ["label", "text", "image"], ("text",)])
    def test_they_are_the_fields_of_the_dicts(self, load, rich, names):
        dicts = list(load(rich, 8, "full"))
        tuples = list(load(rich, 8, "full", as_tuple=names))
        assert all(type(batch) is tuple for batch in tuples)
        assert [fingerprint(dict(zip(names, batch, strict=True))) for batch in tuples] == [
            fingerprint({name: batch[name] for name in names}) for batch in dicts
        ]

    def test_no_other_field_is_read_for_them(self, load, rich):
        def read(**options):
            loader = load(rich, 100, **options)
            list(loader)
            return sum(loader.backend.bytes_by_path.values())

        assert read(as_tuple=["label"]) == read(fields=["label"]) < read()

    def test_the_index_can_be_one(self, load, rich):
        for index, label in load(rich, 7, "full", with_index=True, as_tuple=("index", "label")):
            assert torch.equal(index, label)
        assert [len(found) for (found,) in load(rich, 60, with_index=True, as_tuple=["index"])] == [60, 60, 23]

    def test_they_come_after_all_transforms(self, load, rich):
        loader = load(
            rich, 10, device_transform=lambda batch: {**batch, "twice": 2 * batch["label"]},
            transform=lambda batch: {**batch, "thrice": batch["twice"] + batch["label"]}, as_tuple=["thrice", "label"],
        )  # fmt: skip
        for thrice, label in loader:
            assert torch.equal(thrice, 3 * label)
