"""Batches as tuples; and dicts that are unpacked as if they were tuples, of which that gives names."""

from __future__ import annotations

import types

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

    def test_with_the_same_tensors_for_every_batch(self, load, pairs):
        found = [
            image.data_ptr() for image, _ in load(pairs, 10, fields=["image", "label"], as_tuple=["image", "label"],
                                                  reuse_buffers=True)
        ]  # fmt: skip
        assert len(set(found)) == 1

    @pytest.mark.parametrize(
        ("transform", "match"),
        [(lambda batch: batch["image"], "made a Tensor of the batch"), (lambda _: {"y": 1}, "'image', .*It has 'y'")],
    )
    def test_what_transforms_took_away_is_an_error(self, load, pairs, transform, match):
        with pytest.raises(OptionError, match=match):
            next(iter(load(pairs, transform=transform, as_tuple=["image"])))


def by_for(loader):
    for _image, _label in loader:
        pass


def by_star(loader):
    for _image, *_rest in loader:
        pass


def by_attribute(loader):
    holder = types.SimpleNamespace(loader=loader)
    for _number, (_image, _label) in enumerate(holder.loader, 1):
        pass


def by_enumerate(loader):
    for _number, (_image, _label) in enumerate(loader):
        pass


def by_next(loader):
    _image, _label = next(iter(loader))


def by_name(loader):
    for batch in loader:
        _image, _label = batch


def by_global_name(loader):
    exec("for batch in loader:\n    _image, _label = batch", {"loader": loader})


def by_enumerated_name(loader):
    for _number, batch in enumerate(loader):
        _image, _label = batch


LOOPS = [by_for, by_star, by_enumerate, by_attribute, by_next, by_name, by_global_name, by_enumerated_name]


class TestUnpackingByMistake:
    @pytest.mark.parametrize("loop", LOOPS)
    def test_it_is_told_with_what_to_pass(self, load, pairs, loop):
        loader = load(pairs, 50, fields=["image", "label"])
        with pytest.raises(OptionError, match=r"names of its fields.*Pass as_tuple=\('image', 'label'\)"):
            loop(loader)
        loop(load(pairs, 50, as_tuple=("image", "label")))

    def test_where_transforms_make_tuples_it_is_right(self, load, pairs):
        for made in (
            {"transform": lambda b: (b["image"], b["label"])},
            {"device_transform": lambda b: (b["image"], 1)},
        ):
            for loop in LOOPS:
                loop(load(pairs, 50, **made))

    def test_whatever_else_is_done_with_a_loader_is_left_alone(self, load, pairs):
        loader = load(pairs, 50, fields=["image", "label"])
        for batch in loader:
            assert type(batch) is dict
        for _number, _batch in enumerate(loader):
            pass
        pair = 1, 2
        for _batch in loader:
            _one, _other = pair
        for batch in loader:
            if not isinstance(batch, dict):
                _one, _other = batch
        for _one, _other in zip(loader, loader, strict=True):
            pass
        first, second = loader
        first, *_rest = list(loader)
        image, label = next(iter(loader)).values()
        assert torch.equal(image, first["image"])
        assert not torch.equal(label, second["label"])
        for name, value in next(iter(loader)).items():
            assert torch.equal(first[name], value)
        iterator = iter(loader)
        batch = next(iterator)
        names = [*batch]
        assert names == ["image", "label"]
        assert dict(enumerate(loader)).keys() == {0, 1}
