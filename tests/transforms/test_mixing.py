"""MixUp and CutMix: samples and labels mixed alike, by shares of each sample's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gdsload.transforms import CutMix, MixUp
from tests.transforms.drawing import images, seeded

KINDS = [MixUp, CutMix]


def batch_of(count, seed=0):
    return {
        "x": torch.rand(count, 3, 6, 8, generator=seeded(seed), dtype=torch.float64),
        "y": torch.randint(0, 10, (count,), generator=seeded(seed)), "other": "kept",
    }  # fmt: skip


def assert_labels_are_mixed(found, labels, number, share):
    wanted = torch.zeros(10)
    wanted[labels[number]] += share
    wanted[labels[number - 1]] += 1 - share
    torch.testing.assert_close(found, wanted)


@given(st.integers(0, 6), st.integers(0, 2**32), st.sampled_from([0.05, 0.2, 1.0, 2, 8.0]))
def test_mixup_is_a_mean_of_each_sample_and_the_one_before(count, seed, alpha):
    batch, mix = batch_of(count, seed), MixUp("x", "y", 10, alpha)
    kept = mix.draw(batch["x"], seeded(seed)).tolist()
    found = mix(batch, seeded(seed))
    assert found["other"] == "kept"
    for number, share in enumerate(kept):
        assert 0 <= share <= 1
        wanted = share * batch["x"][number] + (1 - share) * batch["x"][number - 1]
        torch.testing.assert_close(found["x"][number], wanted, atol=1e-6, rtol=1e-6)
        assert_labels_are_mixed(found["y"][number], batch["y"], number, share)


@given(st.integers(0, 6), st.integers(0, 2**32), st.sampled_from([0.05, 1.0, 2, 8.0]))
def test_cutmix_exchanges_a_rectangle_and_as_much_of_the_label(count, seed, alpha):
    batch, mix = batch_of(count, seed), CutMix("x", "y", 10, alpha)
    boxes = mix.draw(batch["x"], seeded(seed)).tolist()
    found = mix(batch, seeded(seed))
    for number, (top, left, bottom, right) in enumerate(boxes):
        assert 0 <= top <= bottom <= 6
        assert 0 <= left <= right <= 8
        wanted = batch["x"][number].clone()
        wanted[:, top:bottom, left:right] = batch["x"][number - 1, :, top:bottom, left:right]
        assert torch.equal(found["x"][number], wanted)
        share = 1 - (bottom - top) * (right - left) / 48
        assert_labels_are_mixed(found["y"][number], batch["y"], number, share)


def test_shares_are_of_the_beta_distribution():
    value = torch.empty(20000, 1)
    for alpha in (0.2, 1.0, 4.0):
        drawn = MixUp("x", "y", alpha=alpha).draw(value, seeded(1)).double()
        assert abs(drawn.mean() - 0.5) < 0.01
        assert abs(drawn.var() - 1 / (4 * (2 * alpha + 1))) < 0.005
        assert len(torch.unique(drawn)) > 10000
    half = MixUp("x", "y", p=0.3).draw(value, seeded(1))
    assert abs((half < 1).double().mean() - 0.3) < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_labels_that_are_probabilities_are_mixed_on(kind):
    batch = batch_of(5)
    twice = kind("x", "y")(kind("x", "y", 10)(batch, seeded(1)), seeded(2))
    torch.testing.assert_close(twice["y"].sum(1), torch.ones(5))
    assert twice["y"].shape == (5, 10)
    torch.nn.functional.cross_entropy(torch.zeros(5, 10), twice["y"])


def test_cutmix_takes_any_element_type():
    batch = {"x": images(4, 2, 3, 6, 8), "y": torch.tensor([0, 1, 2, 0], dtype=torch.uint8)}
    assert CutMix("x", "y", 3)(batch)["x"].dtype == torch.uint8


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.uint16, torch.int64])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_any_whole_numbers(kind, dtype):
    """There may be more classes than the type has numbers."""
    labels = torch.tensor([0, 1, 127]).to(dtype)
    found = kind("x", "y", 40_000, p=0.0)({"x": torch.ones(3, 1, 4, 4), "y": labels})["y"]
    assert found.argmax(1).tolist() == [0, 1, 127]
    assert kind("x", "y", 3)({"x": torch.ones(0, 1, 4, 4), "y": labels[:0]})["y"].shape == (0, 3)


def test_what_is_not_mixed_is_not_changed_by_its_neighbour():
    value = torch.tensor([[1.0], [torch.inf], [torch.nan], [2.0]])
    found = MixUp("x", "y", 3, p=0.0)({"x": value, "y": torch.zeros(4, dtype=torch.int64)})
    assert torch.equal(found["x"].view(torch.int32), value.view(torch.int32))


@pytest.mark.cuda
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu(kind):
    batch = {name: one.cuda() for name, one in batch_of(8).items() if name != "other"}
    found = kind("x", "y", 10)(batch, torch.Generator("cuda").manual_seed(1))
    assert found["x"].is_cuda
    torch.testing.assert_close(found["y"].sum(1).cpu(), torch.ones(8))
