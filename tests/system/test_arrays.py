"""Sorting in two steps is sorting, and a range stands for an array."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.system.arrays import argsort, array_of, taken, unique


@settings(derandomize=True, max_examples=60)
@given(
    st.integers(1, 64), st.integers(0, 3000), st.integers(0, 2**32), st.sampled_from(["spread", "few", "one", "rising"])
)
def test_keys_are_sorted_and_equal_ones_stay_in_order(bits, count, seed, kind):
    """Keys that are spread out, and such whose first bits are all alike."""
    keys = np.random.default_rng(seed).integers(0, 2**bits, count, np.uint64)
    if kind == "few":
        keys %= np.uint64(min(2**bits - 1, 50) or 1)
    if kind == "one":
        keys[:] = keys[:1]
    if kind == "rising":
        keys.sort()
    order = argsort(keys, bits)
    assert order.dtype == np.int64
    assert np.array_equal(order, np.argsort(keys, kind="stable"))


@pytest.mark.parametrize("count", [5, 2000])
def test_rows_of_keys_are_sorted_each(count):
    keys = np.random.default_rng(0).integers(0, 2**64, (3, count), np.uint64)
    assert np.array_equal(argsort(keys), np.argsort(keys, axis=1, kind="stable"))


@pytest.mark.parametrize("numbers", [range(0), range(5), range(-3, 20, 4), range(7, 8, 10)])
def test_a_range_is_as_its_array(numbers):
    array, places = array_of(numbers), np.arange(len(numbers))[::-2]
    assert array.dtype == taken(numbers, places).dtype == np.int64
    assert array.tolist() == array_of(array).tolist() == list(numbers)
    assert taken(numbers, places).tolist() == taken(array, places).tolist() == array[places].tolist()


@settings(derandomize=True, max_examples=60)
@given(st.lists(st.integers(-5, 5)), st.integers(0, 2**60))
def test_distinct_numbers_are_those_of_numpy(numbers, far):
    numbers = np.array([*numbers, *(far + one for one in numbers)], np.int64)
    assert np.array_equal(unique(numbers), np.unique(numbers))
