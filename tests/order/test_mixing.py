"""Mixtures: weights are kept without drift, passes are whole, and an epoch is a part of one endless stream."""

import hashlib
import itertools
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.order import MixOrder, Mixture, Permutation, Purpose, derive_key
from gdsload.order.hashing import hash_into
from gdsload.order.mixing import TURN

EXAMPLES = settings(max_examples=40, derandomize=True)
WEIGHTS = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.integers(1, 9).map(float)), min_size=1, max_size=7
).filter(any)


@st.composite
def mixtures(draw):
    weights = draw(WEIGHTS)
    lengths = [draw(st.integers(1, 3000)) for _ in weights]
    return Mixture(tuple(lengths), tuple(weights), draw(st.integers(1, 2 * TURN)))


def stream(mixture, positions, *, shuffled=True, seed=1):
    """The first positions of a mixture's stream, as (datasets, samples)."""
    whole = Mixture(mixture.lengths, mixture.weights, positions)
    ids = MixOrder(whole, shuffled=shuffled, seed=seed, epoch=0).lane_ids(0, 0, positions)
    ends = np.cumsum(mixture.lengths)
    datasets = np.searchsorted(ends, ids, side="right")
    return datasets, ids - (ends - mixture.lengths)[datasets]


class TestCounts:
    @EXAMPLES
    @given(mixture=mixtures(), positions=st.integers(0, 2**70), more=st.integers(0, 10**6))
    def test_they_add_up_never_fall_and_keep_to_the_weights(self, mixture, positions, more):
        counts, later = mixture.counts(positions), mixture.counts(positions + more)
        assert (sum(counts), sum(later)) == (positions, positions + more)
        assert all(low <= high for low, high in zip(counts, later, strict=True))
        bound = (1 + sum(Fraction(1, number) for number in range(1, len(counts) + 1))) / 2
        weights = [Fraction(repr(weight)) for weight in mixture.weights]
        for count, weight in zip(counts, weights, strict=True):
            assert abs(count - positions * weight / sum(weights)) <= bound

    @EXAMPLES
    @given(mixture=mixtures())
    def test_the_epoch_ends_with_the_first_or_the_last_dataset(self, mixture):
        some = [number for number, weight in enumerate(mixture.weights) if weight]
        for last in (False, True):
            found = Mixture.until(mixture.lengths, mixture.weights, last=last)
            counts = found.counts(found.samples)
            assert all(counts[number] >= mixture.lengths[number] for number in some) if last else True
            assert all(counts[number] <= mixture.lengths[number] for number in some) if not last else True
            missing = [abs(counts[number] - mixture.lengths[number]) for number in some]
            assert min(missing) <= 3


class TestOrder:
    @EXAMPLES
    @given(mixture=mixtures(), shuffled=st.booleans(), seed=st.integers(0, 2**64 - 1))
    def test_each_dataset_is_gone_through_pass_by_pass(self, mixture, shuffled, seed):
        datasets, samples = stream(mixture, 2 * TURN + 100, shuffled=shuffled, seed=seed)
        for dataset, length in enumerate(mixture.lengths):
            given = samples[datasets == dataset]
            if not shuffled:
                assert np.array_equal(given, np.arange(len(given)) % length)
            for low in range(0, len(given), length):
                part = given[low : low + length]
                assert len(np.unique(part)) == len(part)
                assert part.max() < length

    @EXAMPLES
    @given(mixture=mixtures())
    def test_every_turn_gives_what_the_weights_say(self, mixture):
        datasets, _ = stream(mixture, 3 * TURN)
        for turns in (1, 2, 3):
            found = np.bincount(datasets[: turns * TURN], minlength=len(mixture.lengths))
            assert found.tolist() == mixture.counts(turns * TURN)

    @EXAMPLES
    @given(mixture=mixtures(), cuts=st.lists(st.integers(0, 2 * TURN), max_size=6))
    def test_epochs_go_on_where_the_last_one_was_however_they_are_cut(self, mixture, cuts):
        places = [0, *sorted(min(cut, mixture.samples) for cut in cuts), mixture.samples]
        ends, found = np.cumsum(mixture.lengths), np.zeros(0, np.int64)
        for epoch in range(4):
            order = MixOrder(mixture, shuffled=True, seed=7, epoch=epoch)
            found = np.concatenate([found, *(order.lane_ids(0, low, high) for low, high in itertools.pairwise(places))])
            assert np.array_equal(found[epoch * mixture.samples :], order.lane_ids(0, 0, mixture.samples))
            datasets = np.searchsorted(ends, found, side="right")
            assert np.bincount(datasets, minlength=len(ends)).tolist() == mixture.counts(len(found))
        times = np.bincount(found, minlength=ends[-1])
        for end, length in zip(ends, mixture.lengths, strict=True):
            assert np.ptp(times[end - length : end]) <= 1

    def test_passes_datasets_and_seeds_differ(self):
        datasets, samples = stream(Mixture((500, 500), (1, 1), 1), TURN)
        passes = [tuple(samples[datasets == dataset][low : low + 500]) for dataset in (0, 1) for low in (0, 500, 1000)]
        other = stream(Mixture((500, 500), (1, 1), 1), TURN, seed=2)[1]
        assert len({*passes, tuple(other[datasets == 0][:500])}) == 7

    def test_short_and_long_passes_agree_whatever_is_asked_for(self):
        """Where a turn holds many passes they are made together, and else one by one."""
        for length in (1, 2, 7, 1365, 2047, 2048, 4096, 5000, 70_000):
            datasets, samples = stream(Mixture((length, 10), (3, 1), 1), 8 * TURN)
            given = samples[datasets == 0]
            keys = np.arange(3, dtype=np.uint64)
            hash_into(keys, np.uint64(derive_key(1, 0, Purpose.PASS)), keys, np.empty_like(keys))
            for number in range(min(3, len(given) // length)):
                wanted = Permutation(length, int(keys[number]))(0, length)
                assert np.array_equal(given[number * length : (number + 1) * length], wanted)

    def test_which_dataset_comes_is_mixed_within_a_turn(self):
        datasets, _ = stream(Mixture((10, 10), (1, 1), 1), 50 * TURN)
        batches = datasets.reshape(-1, 64).sum(1)
        # Without replacement out of 4096: slightly less than the 16 of coins.
        assert 14 < batches.var() < 17
        assert abs(np.corrcoef(datasets[:-1], datasets[1:])[0, 1]) < 0.01

    def test_the_last_epoch_of_all(self):
        order = MixOrder(Mixture((7, 3), (1, 2), 2**40), shuffled=True, seed=2**64 - 1, epoch=2**64 - 1)
        ids = order.lane_ids(0, 2**40 - 2 * TURN, 2**40)
        assert abs(np.count_nonzero(ids < 7) - 2 * TURN / 3) <= 3  # whole turns

    def test_it_never_changes(self):
        """A saved position must mean the same sample in every later version."""
        mixture = Mixture((100_000, 5000, 3), (0.5, 0.3, 0.2), 10_000)
        ids = [MixOrder(mixture, shuffled=True, seed=5, epoch=epoch).lane_ids(0, 0, 10_000) for epoch in (0, 9)]
        found = hashlib.sha256(np.concatenate(ids).astype("<i8").tobytes()).hexdigest()
        assert found[:16] == "fbf334741142641e"
        assert ids[0][:6].tolist() == [105002, 105000, 100162, 81115, 105001, 101669]

    def test_it_is_an_order(self):
        order = MixOrder(Mixture((5, 6), (1, 1), 20), shuffled=True, seed=0, epoch=0)
        assert (order.samples, order.lanes, order.lane_length(0)) == (20, 1, 20)
        assert len(order.lane_ids(0, 7, 7)) == 0
        assert not order.lane_ids(0, 0, 5).flags.writeable
