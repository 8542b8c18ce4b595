"""Color jitter: each sample's own factors, one after the other in its own order."""

import colorsys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gdsload.transforms import ColorJitter
from tests.transforms.drawing import seeded

FULL = ColorJitter("x", 0.4, 0.3, (0.5, 1.6), 0.2)
ALONE = [ColorJitter("x", **{kind: 0.3}) for kind in ("brightness", "contrast", "saturation", "hue")]


def images(count, seed=0):
    return torch.rand(count, 3, 4, 5, generator=seeded(seed), dtype=torch.float64)


def one(image, kind, factor):
    """The result of one factor for an image ``[3, height, width]``."""
    gray = 0.2989 * image[0] + 0.587 * image[1] + 0.114 * image[2]
    if kind == 0:
        return (image * factor).clamp(0, 1)
    if kind == 1:
        return (image * factor + (1 - factor) * gray.mean()).clamp(0, 1)
    if kind == 2:
        return (image * factor + (1 - factor) * gray).clamp(0, 1)
    pixels = image.flatten(1).T.tolist()
    turned = []
    for pixel in pixels:
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        turned.append(colorsys.hsv_to_rgb((hue + factor) % 1, saturation, value))
    return torch.tensor(turned, dtype=image.dtype).T.view_as(image)


@given(st.integers(0, 2**32), st.sampled_from([FULL, *ALONE]))
def test_each_sample_is_changed_by_its_factors_in_its_order(seed, jitter):
    value = images(4, seed)
    factors, order = jitter.draw(value, seeded(seed))
    found = jitter({"x": value}, seeded(seed))["x"]
    for image, four, turns, made in zip(value, factors.tolist(), order.tolist(), found, strict=True):
        wanted = image
        for kind in turns:
            wanted = one(wanted, kind, four[kind])
        torch.testing.assert_close(made, wanted)


def test_gray_images_are_what_three_equal_channels_become():
    gray = images(6)[:, :1]
    found, wanted = (FULL({"x": value}, seeded(3))["x"] for value in (gray, gray.expand(-1, 3, -1, -1)))
    torch.testing.assert_close(found.expand(-1, 3, -1, -1), wanted, atol=1e-3, rtol=0)
    assert found.shape == gray.shape
    assert not torch.allclose(found, gray, atol=0.01)


def test_draws_are_each_samples_own_and_within_what_is_asked_for():
    factors, order = FULL.draw(torch.empty(3000, 3, 1, 1), seeded(1))
    for kind, (low, high) in enumerate([(0.6, 1.4), (0.7, 1.3), (0.5, 1.6), (-0.2, 0.2)]):
        drawn = factors[:, kind]
        assert low <= drawn.amin() < low + 0.01
        assert high - 0.01 < drawn.amax() <= high
        assert len(torch.unique(drawn)) > 2900
    assert len(torch.unique(order, dim=0)) == 24
    assert order.sort(1).values.tolist() == [[0, 1, 2, 3]] * 3000


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_types_stay_and_are_rounded_once(dtype):
    value = images(5)
    exact = FULL({"x": value}, seeded(1))["x"]
    given_ = (value * 255).round().to(dtype) if dtype == torch.uint8 else value.to(dtype)
    found = FULL({"x": given_}, seeded(1))["x"]
    assert found.dtype == dtype
    found = found.double() / 255 if dtype == torch.uint8 else found.double()
    assert (found - exact).abs().amax() < {torch.float32: 1e-5}.get(dtype, 0.05)


def test_nothing_asked_for_changes_nothing():
    value = images(5).float()
    assert torch.equal(ColorJitter("x")({"x": value})["x"], value)
    assert ColorJitter("x", 0.5)({"x": torch.empty(0, 3, 4, 4)})["x"].shape == (0, 3, 4, 4)


@pytest.mark.cuda
def test_on_a_gpu():
    value = images(6).float()
    drawn = FULL.draw(value, seeded(1))
    found = FULL.apply(value.cuda(), *(part.cuda() for part in drawn))
    torch.testing.assert_close(found.cpu(), FULL.apply(value, *drawn), atol=1e-5, rtol=1e-5)
    assert FULL({"x": value.cuda()}, torch.Generator("cuda").manual_seed(1))["x"].is_cuda
