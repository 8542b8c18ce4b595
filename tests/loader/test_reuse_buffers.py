"""`reuse_buffers`: the same batches, all in the same tensors."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from gdsload import OptionError
from gdsload.testing import assert_resumes_everywhere, fingerprint
from gdsload.transforms import ChannelsLast
from tests.loader.taking import begin

FIXED = ["image", "label", "flag", "u16", "bf16", "fp8"]


class Pair(NamedTuple):
    x: torch.Tensor
    y: tuple[torch.Tensor, ...]


def test_batches_are_the_same_at_the_same_addresses(load, rich, shuffle):
    """All element types, over epochs; 143 samples make a last batch of 15, which is a view of the first rows."""
    options = {"fields": FIXED, "with_index": True}
    loader, plain = load(rich, 16, shuffle, reuse_buffers=True, **options), load(rich, 16, shuffle, **options)
    places = set()
    for _ in range(3):
        for batch, wanted in zip(loader, plain, strict=True):
            assert fingerprint(batch) == fingerprint(wanted)
            places.add(tuple(tensor.data_ptr() for tensor in batch.values()))
    assert len(places) == 1
    assert len(set(places.pop())) == len(FIXED) + 1


def test_the_buffers_are_for_full_batches_even_if_the_first_is_none(load, plain):
    loader = load(plain, 300, reuse_buffers=True)
    loader.load_state_dict(load(plain, 300).state_dict() | {"position": 900})
    small = next(iter(loader))["x"]
    assert (len(small), small.untyped_storage().nbytes()) == (100, 300 * 32)
    full = next(iter(loader))["x"]
    assert full.data_ptr() == small.data_ptr()
    assert small[:, 0].tolist() == list(range(100)), "it is valid until the next one only"


@pytest.mark.parametrize("views", [1, 2, 3])
@pytest.mark.parametrize("size", [16, 300, 1000])
def test_several_rows_a_sample_even_if_the_first_batch_is_not_full(load, plain, views, size):
    """As contrastive learning makes them; a tensor of another length is no row a sample."""

    def augment(batch):
        return {"x": torch.cat([batch["x"]] * views), "scale": torch.arange(7.0)}

    options = {"reuse_buffers": True, "device_transform": augment}
    loader = load(plain, size, **options)
    steps = len(loader)
    loader.load_state_dict(load(plain, size).state_dict() | {"position": (steps - 1) * size})
    plain_loader = load(plain, size, device_transform=augment)
    found = [[fingerprint(batch) for batch in loader] for _ in range(2)]
    wanted = [fingerprint(batch) for batch in plain_loader]
    assert found == [wanted[-1:], wanted]


def test_resumes_at_every_step(load, rich):
    assert_resumes_everywhere(lambda: load(rich, 16, "full", fields=FIXED, reuse_buffers=True))


def test_what_transforms_return_is_copied(load, plain):
    """In any nest, from the consumer's own transform as well."""

    def nest(batch):
        return Pair(batch["x"] + 1, (batch["x"].sum(), [batch["x"][:1] * 2]))

    options = {"device_transform": lambda batch: {"x": batch["x"].float()}, "transform": nest}
    loader, other = load(plain, 300, reuse_buffers=True, **options), load(plain, 300, **options)
    places = set()
    for found, wanted in zip(loader, other, strict=True):
        assert isinstance(found, Pair)
        assert fingerprint(found) == fingerprint(wanted)
        places.add((found.x.data_ptr(), found.y[0].data_ptr(), found.y[1][0].data_ptr()))
    assert len(places) == 1


def test_the_layout_stays(load, rich):
    def images(batch):
        return {"x": batch["image"][:, :, :, None].expand(-1, -1, -1, 2)}

    loader = load(rich, 10, fields=["image"], reuse_buffers=True, device_transform=[images, ChannelsLast("x")])
    for batch in loader:
        assert batch["x"].is_contiguous(memory_format=torch.channels_last)


def test_gradients_and_modes_of_the_consumer_do_not_matter(load, plain):
    weight = torch.ones(8, requires_grad=True)
    with torch.inference_mode():
        iterator = begin(load(plain, 100, reuse_buffers=True, transform=lambda batch: batch["x"] * weight.detach()))
    assert not next(iterator).is_inference()
    iterator = begin(load(plain, 100, reuse_buffers=True, transform=lambda batch: batch["x"] * weight))
    batch = next(iterator)
    assert not batch.requires_grad
    assert batch[:, 0].tolist() == list(range(100, 200))


class TestRefused:
    @pytest.mark.parametrize(
        ("make", "match"),
        [
            (lambda x, _: {"x": [x, "text"]}, r"batch\['x'\]\[1\] is a str"),
            (lambda x, _: {"x": x.to_sparse()}, r"batch\['x'\] is a tensor of layout torch.sparse_coo"),
            (lambda x, step: x[:, : 3 + step], r"batch is torch.int32 \(100, 4\) on cpu, .* its buffer, .*100, 3"),
            (lambda x, step: x.to(torch.int64) if step else x, r"batch is torch.int64 .* its buffer, torch.int32"),
            (lambda x, step: torch.cat([x] * (1 + step)), r"batch is torch.int32 \(200, 8\) .* buffer, .*100, 8"),
            (lambda x, step: x.sum() if step else x, r"batch is torch.int64 \(\)"),
            (lambda x, step: {"x": x} if step else {"x": x, "y": x}, r"there is no batch\['y'\]"),
            (lambda x, step: {"x": x, "y": x} if step else {"x": x}, r"batch\['y'\] is new"),
        ],
    )
    def test_what_cannot_be_kept_comes_out_at_its_batch(self, load, plain, make, match):
        steps = []

        def transform(batch):
            steps.append(1)
            return make(batch["x"], len(steps) - 1)

        loader = load(plain, 100, reuse_buffers=True, transform=transform)
        with pytest.raises(OptionError, match=match):
            list(loader)
        assert loader.state_dict()["position"] == 100 * (len(steps) - 1)

    def test_a_batch_sampler_with_larger_batches_than_the_first(self, load, plain):
        loader = load(plain, batch_sampler=[[1, 2], [3], [4, 5, 6]], reuse_buffers=True)
        iterator = iter(loader)
        assert [next(iterator)["x"][:, 0].tolist() for _ in range(2)] == [[1, 2], [3]]
        with pytest.raises(OptionError, match="an attribute `batch_size`"):
            next(iterator)
