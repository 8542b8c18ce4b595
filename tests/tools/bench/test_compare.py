"""Rows of a benchmark compared: equal ones are not called different, and different ones are."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsload.tools.bench.compare import FEWEST, compare
from gdsload.tools.bench.summary import noise_of

RATES = st.floats(0.01, 100)
PAIRS = st.lists(st.tuples(RATES, RATES), min_size=1, max_size=12)


@pytest.mark.parametrize("noise", [0.05, 0.15, 0.3])
@pytest.mark.parametrize("turns", [FEWEST, 7, 9, 25])
def test_equal_rows_are_called_different_in_less_than_1_percent_of_benchmarks(noise, turns):
    random = np.random.default_rng(8)
    rates = np.exp(noise * random.standard_normal((900, 3, turns)))
    wrong = 0
    for ours, theirs, again in rates:
        rows = [
            {"kind": kind, "gb_per_s": {"median": np.median(one)}} for kind, one in (("", theirs), ("control", again))
        ]
        wrong += compare(ours, theirs).different(noise_of(rows))
    assert wrong < 9


def test_a_slow_machine_does_not_hide_a_difference():
    """A disturbance that slows both rows of a round is no difference, and hides none."""
    random = np.random.default_rng(0)
    drift = np.exp(0.5 * random.standard_normal((100, 9)))
    ours, theirs = drift * np.exp(0.03 * random.standard_normal((2, 100, 9)))
    found = [compare(gain * one, other) for gain in (1.2, 1) for one, other in zip(ours, theirs, strict=True)]
    assert sum(one.different(0.02) for one in found[:100]) > 98
    assert sum(one.different(0.02) for one in found[100:]) < 3
    inside = sum(one.low <= 0.2 <= one.high for one in found[:100])
    assert 88 <= inside <= 100  # the interval's 95 %
    disturbed = 1.2 * ours
    disturbed[:, 4] /= 50
    assert all(compare(one, other).gain > 0.1 for one, other in zip(disturbed, theirs, strict=True))


@given(PAIRS)
def test_the_other_way_round_is_the_other_way_round(pairs):
    ours, theirs = zip(*pairs, strict=True)
    found, back = compare(ours, theirs), compare(theirs, ours)
    assert (1 + found.gain) * (1 + back.gain) == pytest.approx(1)
    assert (1 + found.low) * (1 + back.high) == pytest.approx(1)
    assert found.chance == back.chance
    assert found.low <= found.gain <= found.high


@given(st.lists(st.sampled_from([0.5, 0.8, 1.0, 1.25, 2.0, 3.0]), min_size=8, max_size=10))
def test_chance_is_the_share_of_sign_patterns_as_far_apart(ratios):
    found = [np.log(ratio) for ratio in ratios if ratio != 1]
    ranks = [
        sum(abs(one) > abs(other) + 1e-9 for other in found)
        + (1 + sum(abs(abs(one) - abs(other)) < 1e-9 for other in found)) / 2
        for one in found
    ]
    sums = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=len(found))]
    had = sum(rank for rank, one in zip(ranks, found, strict=True) if one > 0)
    tails = [sum(one <= had + 1e-9 for one in sums), sum(one >= had - 1e-9 for one in sums)]
    assert compare(ratios, [1.0] * len(ratios)).chance == pytest.approx(min(2 * min(tails) / len(sums), 1))


def test_fewer_turns_cannot_tell_rows_apart():
    for pairs in range(1, 12):
        assert compare([100.0] * pairs, [1.0] * pairs).different(0) == (pairs >= FEWEST)
    assert compare([2.0] * 5, [1.0] * 5).chance == pytest.approx(2 / 252)
    assert compare([2.0, 2.1, 2.2, 2.3, 0.9], [1.0] * 5).chance > 0.01


def test_turns_without_a_batch_do_not_count():
    assert compare([], [1.0]).pairs == compare([0.0], [1.0]).pairs == 0
    assert compare([0.0, 3.0], [1.0, 1.5]).gain == pytest.approx(1)
