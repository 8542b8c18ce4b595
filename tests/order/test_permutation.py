import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gdsload.order import FullOrder, Permutation
from gdsload.order.checks import MAX_SAMPLES
from gdsload.order.feistel import TILE, Feistel
from gdsload.order.hashing import hash_into
from gdsload.order.permutation import EXACT_LIMIT, exact_table, exact_tables
from tests.order.made import feistel

KEYS = st.integers(0, 2**64 - 1)


def is_permutation(images, n):
    return images.dtype == np.int64 and np.array_equal(np.sort(images), np.arange(n))


@given(st.integers(0, 3000), KEYS)
@example(0, 0)
@example(1, 0)
def test_small_is_a_permutation(n, key):
    assert is_permutation(Permutation(n, key)(0, n), n)


@pytest.mark.parametrize("n", [EXACT_LIMIT - 1, EXACT_LIMIT, EXACT_LIMIT + 1, 66_049, 131_071, 131_073, 300_000])
def test_large_is_a_permutation(n):
    for key in (0, 2**64 - 1):
        assert is_permutation(Permutation(n, key)(0, n), n)


@settings(max_examples=30)
@given(st.integers(0, 12), st.lists(KEYS, min_size=1, max_size=3), st.integers(-2, 2))
@example(16, [42], 0)
def test_a_table_is_the_numbers_sorted_by_their_hashes(bits, keys, more):
    n = max(2**bits + more, 0)
    tables = exact_tables(n, np.array(keys, np.uint64))
    assert tables.dtype == np.int64
    assert tables.shape == (len(keys), n)
    for table, key in zip(tables, keys, strict=True):
        hashes, numbers = np.empty(n, np.uint64), np.arange(n, dtype=np.uint64)
        hash_into(numbers, np.uint64(key), hashes, np.empty_like(hashes))
        assert np.array_equal(table, np.argsort(hashes, kind="stable"))


@settings(max_examples=60)
@given(st.integers(1, 4096**2) | st.integers(1, 3000), KEYS, st.integers(0, 2**64 - 1))
@example(1, 0, 0)
@example(2, 0, 0)
@example(4096**2, 0, 0)
def test_looked_up_images_are_those_that_are_computed(n, key, seed):
    computing, looking_up = Feistel(n, key), Feistel(n, key)
    looking_up.map_in_place(np.zeros(TILE, np.uint64))
    values = np.random.default_rng(seed).integers(0, n, 500).astype(np.uint64)
    values[:2] = 0, n - 1
    images = values.copy()
    computing.map_in_place(values)
    looking_up.map_in_place(images)
    assert computing.table_bytes == 0 < looking_up.table_bytes
    assert np.array_equal(images, values)


@pytest.mark.parametrize(("n", "tabled"), [(70_000, True), (4096**2, True), (4096**2 + 1, False), (10**10, False)])
def test_tables_are_made_where_many_numbers_are_mapped_and_they_are_small(n, tabled):
    network = Feistel(n, 1)
    network.map_in_place(np.arange(1000, dtype=np.uint64))
    assert network.table_bytes == 0
    images = np.arange(40_000, dtype=np.uint64)
    network.map_in_place(images)
    assert (network.table_bytes > 0) == tabled
    assert images[:1000].tolist() == feistel(n, 1, np.arange(1000)).tolist()
    assert network.table_bytes <= 1.1 * 2**20


@pytest.mark.parametrize("n", [MAX_SAMPLES, MAX_SAMPLES - 1, 10**10])
def test_feistel_images_stay_inside_huge_domains(n):
    permutation = Permutation(n, 5)
    images = np.concatenate([permutation(0, 2000), permutation(n - 2000, n)])
    assert np.unique(images).size == images.size
    assert images.min() >= 0
    assert images.max() < n


def test_cycle_walking_is_what_keeps_images_inside():
    """Where the domain is all pairs of halves there is none, and the rounds of two domains with these halves are one."""
    n, pairs = 65_537, 257 * 256
    walked, passed = feistel(n, 1), feistel(pairs, 1, np.arange(n))
    outside = passed >= n
    assert 0 < np.count_nonzero(outside) < 257
    assert np.array_equal(walked[~outside], passed[~outside])
    assert walked.max() < n


@pytest.mark.parametrize("n", [1000, 200_000])
def test_any_cut_gives_the_same_images(n):
    whole = Permutation(n, 9)(0, n)
    cut = Permutation(n, 9)
    rng = np.random.default_rng(0)
    for _ in range(50):
        start, stop = np.sort(rng.integers(0, n + 1, 2)).tolist()
        assert np.array_equal(cut(start, stop), whole[start:stop])
    for edge in range(0, n, 16_384):
        lower, upper = max(0, edge - 3), min(n, edge + 3)
        assert np.array_equal(cut(lower, upper), whole[lower:upper])


def test_images_are_read_only():
    permutation = Permutation(200_000, 9)
    for start, stop in ((0, 10), (16_383, 16_385), (0, 200_000)):
        with pytest.raises(ValueError, match="read-only"):
            permutation(start, stop)[0] = 1


def test_golden_images():
    assert exact_table(10, 1).tolist() == [9, 0, 5, 4, 8, 1, 2, 6, 7, 3]
    assert Permutation(65_536, 42)(0, 6).tolist() == [46868, 46602, 6567, 34249, 33378, 21175]
    assert Permutation(65_537, 42)(0, 6).tolist() == [43273, 19994, 365, 61264, 57572, 51772]
    assert Permutation(10**10, 42)(0, 4).tolist() == [5048890889, 7794740523, 5852073684, 1357548628]
    assert Permutation(2**48, 42)(0, 3).tolist() == [277840316664287, 94552320137637, 160938835718370]
    assert Permutation(2**48, 42)(2**48 - 1, 2**48).tolist() == [251316864971434]


def test_ten_thousand_million_samples_are_served_at_once():
    Permutation(10**6, 0)(0, 10)  # whatever numpy does on first use is not what is measured
    tracemalloc.start()
    start = time.perf_counter()
    ids = FullOrder(10**10, key=1).lane_ids(0, 0, 256)
    elapsed = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.unique(ids).size == 256
    assert elapsed < 0.2
    assert peak < 4 << 20
