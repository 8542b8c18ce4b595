"""Transforms compute the same with any default element type of torch's: that belongs to the process, not the batch."""

import pytest
import torch

from gdsload.transforms import (
    ColorJitter,
    CutMix,
    DecodeImage,
    MixUp,
    Normalize,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
)
from gdsload.transforms.resize import resized_by_matrices

RANDOM = [
    RandomFlip("x"),
    RandomCrop("x", 400),
    RandomResizedCrop("x", 300, scale=(0.5, 1.0)),
    ColorJitter("x", 0.4, 0.4, 0.4, 0.1),
    MixUp("x", "y", 10),
    CutMix("x", "y", 10),
]


@pytest.fixture(params=[torch.float64, torch.float16, torch.bfloat16], ids=str)
def default_dtype(request):
    before = torch.get_default_dtype()

    def switch(*, other):
        torch.set_default_dtype(request.param if other else before)

    yield switch
    torch.set_default_dtype(before)


def both(switch, make):
    """The results with torch's default, and with another one."""
    made = [make()]
    switch(other=True)
    return [*made, make()]


def assert_same(found, wanted):
    assert found.dtype == wanted.dtype
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("transform", RANDOM, ids=lambda one: type(one).__name__)
def test_draws_and_results_are_the_same(transform, default_dtype):
    batch = {"x": torch.rand(4, 3, 404, 404, dtype=torch.float32), "y": torch.arange(4)}
    wanted, found = both(default_dtype, lambda: transform(batch, torch.Generator().manual_seed(5)))
    for name in wanted:
        assert_same(found[name], wanted[name])


def test_matrices_that_scale_are_the_same(default_dtype):
    planes, boxes = torch.rand(2, 3, 500, 400, dtype=torch.float32), torch.tensor([[3, 5, 400, 300], [0, 0, 500, 400]])
    assert_same(*both(default_dtype, lambda: resized_by_matrices(planes, boxes, (300, 301))))


def test_means_and_deviations_are_float32(default_dtype):
    normalize = Normalize("x", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    decode = DecodeImage(size=8, mean=normalize.mean, std=normalize.std)
    for table in (lambda: normalize.table(torch.uint8), decode.table, DecodeImage(dtype=torch.float32).table):
        default_dtype(other=False)
        wanted, found = both(default_dtype, table)
        assert wanted.dtype == torch.float32
        assert_same(found, wanted)
