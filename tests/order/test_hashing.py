"""The hash and the keys. The golden values are the contract: changing one changes every saved position."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsload.order.hashing import MASK64, Purpose, derive_key, hash_into, mix64

GOLDEN = 0x9E3779B97F4A7C15
WORDS = st.integers(0, MASK64)


def hashes(values, key):
    values = np.array(values, dtype=np.uint64)
    out = np.empty_like(values)
    hash_into(values, np.uint64(key), out, np.empty_like(values))
    return out.tolist()


def test_hash_is_splitmix64():
    # The outputs that other implementations of SplitMix64 publish for this seed.
    assert hashes([1, 2, 3, 4, 5], 1234567) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.lists(WORDS, min_size=1, max_size=20), WORDS)
def test_array_hash_equals_the_scalar_formula(values, key):
    expected = [mix64((key + value * GOLDEN) & MASK64) for value in values]
    assert hashes(values, key) == expected
    in_place = np.array(values, dtype=np.uint64)
    hash_into(in_place, np.uint64(key), in_place, np.empty_like(in_place))
    assert in_place.tolist() == expected


GOLDEN_KEYS = {
    (): 0xE9E0033E3BADAF36,
    (0,): 0x002ECA4CE4CCC27D,
    (0, 0): 0x88E56D2E91B54409,
    (0, 0, 1): 0xC9BC56C4A2AFC084,
    (42, 3, 2): 0xF1072213152B658F,
    (MASK64, MASK64, 4): 0xC470EB1FF2B8E788,
}


@pytest.mark.parametrize(("parts", "key"), GOLDEN_KEYS.items())
def test_golden_keys(parts, key):
    assert derive_key(*parts) == key


def test_purposes_never_change():
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        "SAMPLES": 1,
        "BLOCKS": 2,
        "WINDOW": 3,
        "ROUND": 4,
        "TURN": 5,
        "PASS": 6,
        "TRANSFORM": 7,
        "BATCHES": 8,
        "SAMPLE": 10,
        "IMAGES": 11,
        "CHECKED": 12,
    }


def test_keys_of_small_parts_are_distinct():
    parts = [(), *((a,) for a in range(30)), *((a, b) for a in range(30) for b in range(30))]
    parts += [(a, b, c) for a in range(12) for b in range(12) for c in range(12)]
    assert len({derive_key(*each) for each in parts}) == len(parts)


def test_one_changed_bit_of_a_part_changes_half_of_the_key():
    flips = [
        (derive_key(seed, 7) ^ derive_key(seed ^ (1 << bit), 7)).bit_count() for seed in range(8) for bit in range(64)
    ]
    assert abs(np.mean(flips) - 32) < 1


def test_numpy_integers_are_parts():
    assert derive_key(np.int64(5), np.uint64(6)) == derive_key(5, 6)
