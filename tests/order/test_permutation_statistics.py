"""Is the shuffle unbiased?

Every test computes a chi-square statistic over many fixed keys, so the result never changes from run to run. A
statistic may be 5 standard deviations off in either direction (p = 6e-7): too even is as wrong as too uneven.
"""

import math

import numpy as np
import pytest

from gdsload.order import Permutation, derive_key
from gdsload.order.permutation import exact_table
from tests.order.made import feistel

LIMIT = 5.0


def deviations(chi_square, freedom):
    """Standard deviations off: Wilson and Hilferty's cube root makes a chi-square variable nearly normal."""
    spread = 2 / (9 * freedom)
    return ((chi_square / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def unevenness(counts, expected=None, freedom=None):
    """Standard deviations off of counts that should be as expected: by default all the same."""
    expected = counts.sum() / counts.size if expected is None else expected
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return deviations(chi_square, freedom or counts.size - 1)


def keys(count, purpose):
    return [derive_key(20_261_120, purpose, index) for index in range(count)]


def frequencies(tables):
    """How often each of the n! permutations occurs; `tables` has shape [keys, n]."""
    n = tables.shape[1]
    codes = np.zeros(len(tables), dtype=np.int64)
    for column in range(n):
        smaller_later = (tables[:, column + 1 :] < tables[:, column : column + 1]).sum(axis=1)
        codes = codes * (n - column) + smaller_later  # the Lehmer code numbers the permutations
    return np.bincount(codes, minlength=math.factorial(n))


def contingency(pairs, n, bins):
    """Chi-square of a [bins, bins] table of (position, image) pairs, and its degrees of freedom.

    For a random permutation the margins are fixed, and the expectation is n / (n - 1) times the usual one.
    """
    table = np.zeros((bins, bins))
    for positions, images in pairs:
        table += np.bincount(positions * bins // n * bins + images * bins // n, minlength=bins * bins).reshape(
            bins, bins
        )
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    return float(((table - expected) ** 2 / expected).sum()) * (n - 1) / n, (bins - 1) ** 2


@pytest.mark.parametrize("n", [3, 6, 8])
def test_all_permutations_of_tiny_n_are_equally_frequent(n):
    count = max(10_000, math.factorial(n))
    counts = frequencies(np.array([exact_table(n, key) for key in keys(count, n)]))
    assert abs(unevenness(counts)) < LIMIT


@pytest.mark.parametrize(
    ("n", "bins", "count"),
    [(5, 5, 5000), (33, 33, 5000), (65_537, 16, 60), (131_073, 16, 30)],
)
def test_every_position_goes_everywhere_equally_often(n, bins, count):
    positions = np.arange(n)
    pairs = [(positions, Permutation(n, key)(0, n)) for key in keys(count, n)]
    assert abs(deviations(*contingency(pairs, n, bins))) < LIMIT
    if n > 1000:  # not only over many keys: each single epoch is well spread
        each = [contingency([pair], n, bins) for pair in pairs]
        assert abs(deviations(sum(chi for chi, _ in each), sum(freedom for _, freedom in each))) < LIMIT


@pytest.mark.parametrize("n", [65_537, 131_073, 10**10])
def test_single_positions_go_everywhere_equally_often(n):
    bins, count = 16, 4000
    positions = [0, 1, 255, 256, 257, 65_535, 65_536]
    images = np.array([feistel(n, key, positions) for key in keys(count, n % 1000)])
    for column in range(len(positions)):
        counts = np.bincount(images[:, column] * bins // n, minlength=bins)
        assert abs(unevenness(counts)) < LIMIT


@pytest.mark.parametrize("n", [60_000, 65_537, 131_073, 10**10])
@pytest.mark.parametrize("lag", [1, 2, 256, 257])
def test_neighbours_do_not_map_to_related_images(n, lag):
    bins = 16
    tables = [Permutation(n, key)(0, 60_000) for key in keys(20, lag)]
    counts = np.zeros(bins * bins)
    steps = np.zeros(bins)
    for images in tables:
        first, second = images[:-lag] * bins // n, images[lag:] * bins // n
        counts += np.bincount(first * bins + second, minlength=bins * bins)
        steps += np.bincount((images[lag:] - images[:-lag]) % n * bins // n, minlength=bins)
    expected = np.outer(counts.reshape(bins, bins).sum(axis=1), counts.reshape(bins, bins).sum(axis=0))
    expected = (expected / counts.sum()).reshape(-1)
    assert abs(unevenness(counts, expected, (bins - 1) ** 2)) < LIMIT
    assert abs(unevenness(steps)) < LIMIT


def test_feistel_is_biased_on_tiny_domains():
    # Why there is an exact path, and proof that the statistic above notices.
    counts = frequencies(np.array([feistel(5, key) for key in keys(10_000, 5)]))
    assert unevenness(counts) > LIMIT
