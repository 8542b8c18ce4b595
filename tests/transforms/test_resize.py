"""Random rectangles, scaled: torch's own interpolation of each crop, whichever way it is computed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from gdsload.transforms import RandomResizedCrop
from gdsload.transforms.resize import resized_by_matrices, resized_one_by_one
from tests.transforms.drawing import images, seeded

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))
WANTED = st.tuples(st.integers(1, 40), st.integers(2, 40))  # torch's own of width 1 are wrong
DTYPES = st.sampled_from([torch.uint8, torch.float32, torch.float64, torch.bfloat16])


@given(SIZES, WANTED, st.integers(0, 2**32), DTYPES)
def test_each_is_torchs_interpolation_of_the_crop(size, wanted, seed, dtype):
    value = images(3, 2, *size, dtype=dtype, seed=seed)
    crop = RandomResizedCrop("x", wanted, scale=(0.05, 1))
    found = crop({"x": value}, seeded(seed))["x"]
    assert (found.shape, found.dtype) == ((3, 2, *wanted), dtype)
    boxes = crop.draw(value, seeded(seed))
    for image, (top, left, height, width), made in zip(value, boxes.tolist(), found, strict=True):
        part = image[None, :, top : top + height, left : left + width]
        if dtype == torch.bfloat16:
            part = part.float()
        if part.shape[2:] != wanted:
            part = functional.interpolate(part, wanted, mode="bilinear", antialias=True)
        torch.testing.assert_close(made, part[0].to(dtype))


@given(SIZES, WANTED, st.integers(0, 2**32), DTYPES)
def test_matrices_make_the_same_up_to_rounding(size, wanted, seed, dtype):
    value = images(3, 2, *size, dtype=dtype, seed=seed)
    boxes = RandomResizedCrop("x", wanted, scale=(0.05, 1)).draw(value, seeded(seed))
    by_torch, by_matrices = resized_one_by_one(value, boxes, wanted), resized_by_matrices(value, boxes, wanted)
    assert by_matrices.dtype == dtype
    nearest = {torch.uint8: 1, torch.bfloat16: 2}.get(dtype, 0.02)
    torch.testing.assert_close(by_matrices.double(), by_torch.double(), atol=nearest, rtol=1e-5)


@given(SIZES, st.integers(0, 2**32))
def test_rectangles_lie_within_and_are_as_asked_for(size, seed):
    crop = RandomResizedCrop("x", 8, scale=(0.3, 0.6), ratio=(0.5, 2))
    boxes = crop.draw(images(50, 1, *size), seeded(seed))
    assert boxes.dtype == torch.int64
    top, left, height, width = boxes.unbind(1)
    assert (top.amin(), left.amin()) >= (0, 0)
    assert height.amin() >= 1
    assert width.amin() >= 1
    assert (top + height).amax() <= size[0]
    assert (left + width).amax() <= size[1]


def test_shares_and_ratios_are_spread_as_asked_for():
    crop = RandomResizedCrop("x", 8, scale=(0.2, 0.6), ratio=(0.5, 2))
    boxes = crop.draw(torch.empty(1, 1, 200, 200).expand(4000, 1, 200, 200), seeded(1)).double()
    share, ratio = boxes[:, 2] * boxes[:, 3] / 40000, boxes[:, 3] / boxes[:, 2]
    assert share.amin() > 0.19
    assert share.amax() < 0.61
    assert abs(share.mean() - 0.4) < 0.01
    assert abs(ratio.log().mean()) < 0.03
    assert 0.49 < ratio.amin() < 0.55
    assert len(torch.unique(boxes, dim=0)) > 3900


@pytest.mark.parametrize(("size", "box"), [((10, 100), [0, 43, 10, 13]), ((100, 10), [43, 0, 13, 10])])
def test_where_no_ratio_fits_it_is_the_middle(size, box):
    crop = RandomResizedCrop("x", 8, scale=(1, 1))
    assert crop.draw(images(5, 1, *size), seeded(1)).tolist() == [box] * 5


@pytest.mark.parametrize("shape", [(2, 0, 5, 5), (0, 3, 9, 7)])
def test_nothing_to_scale(shape):
    for dtype in (torch.uint8, torch.float32):
        assert RandomResizedCrop("x", 4)({"x": images(*shape, dtype=dtype)})["x"].shape == (*shape[:2], 4, 4)


def test_columns_of_one_pixel():
    value = torch.arange(8.0).view(1, 1, 2, 4)
    found = RandomResizedCrop("x", (4, 1), scale=(1, 1), ratio=(2, 2))({"x": value})["x"]
    assert found.flatten().tolist() == pytest.approx([1.5, 2.5, 4.5, 5.5])


def test_more_dimensions_than_images_have():
    value = images(2, 4, 3, 9, 7)
    found = RandomResizedCrop("x", (5, 6))({"x": value, "y": 1}, seeded(3))
    flat = RandomResizedCrop("x", (5, 6))({"x": value.view(2, 12, 9, 7)}, seeded(3))["x"]
    assert torch.equal(found["x"].view(2, 12, 5, 6), flat)
    assert found["y"] == 1


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_on_a_gpu(dtype):
    value = images(4, 3, 50, 40, dtype=dtype)
    boxes = RandomResizedCrop("x", 24).draw(value, seeded(1))
    found = resized_by_matrices(value.cuda(), boxes.cuda(), (24, 24))
    torch.testing.assert_close(
        found.cpu().double(), resized_one_by_one(value, boxes, (24, 24)).double(), atol=2, rtol=1e-4
    )
    drawn = RandomResizedCrop("x", 24)({"x": value.cuda()}, torch.Generator("cuda").manual_seed(1))["x"]
    assert (drawn.shape, drawn.dtype, drawn.device.type) == ((4, 3, 24, 24), dtype, "cuda")
