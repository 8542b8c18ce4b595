"""The keyed 64-bit hash that every order is made of.

It is SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, with
Stafford's "variant 13" finaliser): the hash of i is output i, counted from 1, of the generator seeded with the
key. It uses xor, logical right shift, and addition and multiplication modulo 2**64, and nothing else, so that
it can be repeated bit for bit on a device.

The values are part of the library's contract: a saved position means the same samples in every later version.
None of this is cryptography.
"""

from __future__ import annotations

import operator
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import OptionError

MASK64: Final = (1 << 64) - 1

_GOLDEN: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB
_START: Final = 0x243F6A8885A308D3  # pi
_CHAIN: Final = 0xD1342543DE82EF95  # a multiplier of good spectral quality (Steele and Vigna, 2022)

# Of the arrays' own type: the array code below only ever meets uint64, and leaves nothing to promotion.
_GOLDEN_U64: Final = np.uint64(_GOLDEN)
_FIRST_U64: Final = np.uint64(_FIRST)
_SECOND_U64: Final = np.uint64(_SECOND)
_SHIFT_30: Final = np.uint64(30)
_SHIFT_27: Final = np.uint64(27)
_SHIFT_31: Final = np.uint64(31)


class Purpose(IntEnum):
    """The purpose of a key, so that no two uses of one seed share a stream. The numbers never change."""

    SAMPLES = 1
    BLOCKS = 2
    WINDOW = 3
    ROUND = 4
    TURN = 5
    PASS = 6
    TRANSFORM = 7
    BATCHES = 8
    SAMPLE = 10
    IMAGES = 11
    CHECKED = 12


def mix64(value: int) -> int:
    """Scramble a 64-bit integer: a bijection of [0, 2**64) (the finaliser of SplitMix64)."""
    value = ((value ^ (value >> 30)) * _FIRST) & MASK64
    value = ((value ^ (value >> 27)) * _SECOND) & MASK64
    return value ^ (value >> 31)


def derive_key(*parts: int) -> int:
    """Make one 64-bit key from a sequence of whole numbers in [0, 2**64), such as (seed, epoch, purpose).

    Every part is scrambled before it is absorbed, and the number of parts comes first: (1, 2), (2, 1) and (1, 2, 0)
    give unrelated keys. Raises OptionError if a part is outside.
    """
    key = mix64(len(parts) ^ _START)
    for part in parts:
        whole = operator.index(part)
        if not 0 <= whole <= MASK64:
            raise OptionError(
                f"a key cannot be made from {whole}, which is not in [0, 2**64)",
                remedy="Pass a seed and an epoch of at least 0 and below 2**64.",
            )
        # The multiplication keeps a part from cancelling a key that went through the same mixer.
        key = mix64((key * _CHAIN + mix64((whole + _GOLDEN) & MASK64)) & MASK64)
    return key


def hash_into(
    values: NDArray[np.uint64],
    key: np.uint64 | NDArray[np.uint64],
    out: NDArray[np.uint64],
    scratch: NDArray[np.uint64],
) -> None:
    """Write mix64(key + values * golden) into `out`, element by element and modulo 2**64.

    For one key this is a bijection, so distinct values have distinct hashes.

    Args:
        values: the values; may be `out` itself.
        key: key of the hash, or keys that go with the values by numpy's rules.
        out: where the hashes go, of the shape of `values`.
        scratch: overwritten, of the same shape; neither `values` nor `out`.
    """
    np.multiply(values, _GOLDEN_U64, out=out)
    np.add(out, key, out=out)
    np.right_shift(out, _SHIFT_30, out=scratch)
    np.bitwise_xor(out, scratch, out=out)
    np.multiply(out, _FIRST_U64, out=out)
    np.right_shift(out, _SHIFT_27, out=scratch)
    np.bitwise_xor(out, scratch, out=out)
    np.multiply(out, _SECOND_U64, out=out)
    np.right_shift(out, _SHIFT_31, out=scratch)
    np.bitwise_xor(out, scratch, out=out)
