"""Kinds of arrays that are passed from room to room, and how they are sorted."""

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
Numbers = IntArray | range
"""Whole numbers; a range stands for an array that would take 8 bytes for each."""

_BY_PARTS = 1024
"""Keys from which they are sorted in two steps."""


def array_of(numbers: Numbers) -> IntArray:
    """The numbers as an array, which may be the one given."""
    return np.arange(numbers.start, numbers.stop, numbers.step) if isinstance(numbers, range) else numbers


def taken(numbers: Numbers, places: IntArray) -> IntArray:
    """The numbers at some places, which are not negative."""
    if not isinstance(numbers, range):
        return numbers[places]
    found: IntArray = places * numbers.step
    found += numbers.start
    return found


def unique(numbers: IntArray) -> IntArray:
    """The distinct numbers, in rising order.

    `numpy.unique` imports `numpy.ma` when it is first called, which a first batch would wait 20 to 50 ms for.
    """
    found = np.sort(numbers)
    first = np.ones(len(found), bool)
    np.not_equal(found[1:], found[:-1], out=first[1:])
    return found[first]


def argsort(keys: NDArray[np.uint64], bits: int = 64) -> IntArray:
    """Indices that sort keys, which are below ``2**bits``, along the last axis, those of equal ones in order.

    numpy sorts numbers of 16 bits in linear time. Sorted so by their first ones, keys that are spread over all that
    they may be have hardly anything left to be put right: many thousands take a fifth of the time.
    """
    if keys.shape[-1] < _BY_PARTS:
        return keys.argsort(kind="stable").astype(np.int64, copy=False)
    first = (keys >> np.uint64(max(bits - 16, 0))).astype(np.uint16)
    order = first.argsort(kind="stable")
    rest = np.take_along_axis(keys, order, -1).argsort(kind="stable")
    return np.take_along_axis(order, rest, -1).astype(np.int64, copy=False)
