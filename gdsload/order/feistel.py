"""A keyed permutation of [0, n) that needs no table of n numbers: each image is computed by itself."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gdsload.order.hashing import Purpose, derive_key, hash_into

ROUNDS: Final = 8
"""Rounds of the Feistel network. Frozen: they decide which samples a saved position means."""

TILE: Final = 16_384
"""Numbers mapped together. Four arrays of 128 KiB stay in most second-level caches, and the cost of numpy's calls is
small for each number. A call that maps as many at once makes the tables."""
_MOST_TABLED: Final = 4096
"""Halves up to this size have tables, that is domains of up to 16.8 million: of 1.1 MiB then, made in a millisecond."""
_HASH_SHIFT: Final = np.uint64(24)
_REDUCE_SHIFT: Final = np.uint64(40)


class _Tables(NamedTuple):
    """The tables of a network: the number that each round adds to one half by the value of the other, and both halves.

    A half of size m that a round changes is not reduced between the rounds: it is added to and stays below 5 m in the
    end. So each table repeats itself as often as the half it is looked up by has been added to. `left` has the left
    half reduced, `right` the right half reduced and times the size of the left one.
    """

    rounds: list[NDArray[np.int64]]
    left: NDArray[np.int64]
    right: NDArray[np.int64]


class Feistel:
    """A permutation of [0, n), n up to 2**48, by a generalised Feistel network and cycle walking, with a 64-bit key.

    Both are from Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002). A number is split
    into (left, right) in Z_a x Z_b; each round adds a keyed hash of one half to the other, modulo its size.
    With a = ceil(sqrt(n)) and b = ceil(n / a), a * b exceeds n by less than a, so that fewer than one number
    in sqrt(n) lands outside [0, n). Those are sent through again until they land inside, which keeps it a
    bijection.

    A round takes the top 40 bits of the hash and multiplies and shifts them into [0, m). Some values of
    [0, m) then own one 40-bit hash more than others: a relative bias of at most m / 2**40, which is 2**-31 at
    65 537 samples, 2**-23 at 10**10 and 2**-16 at the limit, 2**48.

    A half has few values, so for many numbers the hashes of all values are computed first, and looked up. Any thread
    may use it.
    """

    __slots__ = ("_left", "_n", "_right", "_round_keys", "_tables")

    def __init__(self, n: int, key: int) -> None:
        left = math.isqrt(n - 1) + 1
        self._n = np.uint64(n)
        self._left = np.uint64(left)
        self._right = np.uint64(-(-n // left))
        self._round_keys = [np.uint64(derive_key(key, Purpose.ROUND, index)) for index in range(ROUNDS)]
        self._tables: _Tables | None = None

    @property
    def parameters(self) -> NDArray[np.uint64]:
        """The numbers that define the network: n, the sizes of both halves, and the key of each round."""
        return np.array([self._n, self._left, self._right, *self._round_keys], np.uint64)

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables; 0 as long as every image is computed."""
        if self._tables is None:
            return 0
        return sum(table.nbytes for table in (*self._tables.rounds, self._tables.left, self._tables.right))

    def map_in_place(self, values: NDArray[np.uint64]) -> None:
        """Replace each of `values` (shape [k], all below n) by its image."""
        if self._tables is None and self._left <= _MOST_TABLED and values.size >= TILE:
            self._tables = self._make_tables()
        self._pass(values)
        outside = np.flatnonzero(values >= self._n)
        while outside.size:
            again = values[outside]
            self._pass(again)
            values[outside] = again
            outside = outside[again >= self._n]

    def _pass(self, values: NDArray[np.uint64]) -> None:
        scratch = np.empty((4, min(TILE, values.size)), dtype=np.uint64)
        for start in range(0, values.size, TILE):
            tile = values[start : start + TILE]
            arrays = scratch[:, : tile.size]
            left, right, spare, _ = arrays
            np.floor_divide(tile, self._left, out=right)
            np.multiply(right, self._left, out=spare)
            np.subtract(tile, spare, out=left)
            if self._tables is None:
                self._compute(tile, arrays)
            else:
                _look_up(self._tables, tile.view(np.int64), arrays.view(np.int64))

    def _compute(self, tile: NDArray[np.uint64], arrays: NDArray[np.uint64]) -> None:
        """The rounds, from both halves in `arrays` to images in `tile`."""
        left, right, hashed, spare = arrays
        halves = ((left, right, self._left), (right, left, self._right))
        for index in range(ROUNDS):
            changed, source, size = halves[index % 2]
            self._hash(index, source, hashed, spare)
            np.add(changed, hashed, out=changed)
            # Modulo without a division: where changed < size, the difference wraps to a huge number.
            np.subtract(changed, size, out=spare)
            np.minimum(changed, spare, out=changed)
        np.multiply(right, self._left, out=tile)
        np.add(tile, left, out=tile)

    def _hash(self, index: int, source: NDArray[np.uint64], out: NDArray[np.uint64], spare: NDArray[np.uint64]) -> None:
        """Write the numbers that round `index` adds to one half, from the values of the other."""
        hash_into(source, self._round_keys[index], out, spare)
        np.right_shift(out, _HASH_SHIFT, out=out)
        np.multiply(out, self._right if index % 2 else self._left, out=out)
        np.right_shift(out, _REDUCE_SHIFT, out=out)

    def _make_tables(self) -> _Tables:
        rounds, sizes = [], (self._left, self._right)
        for index in range(ROUNDS):
            source = np.arange(sizes[(index + 1) % 2], dtype=np.uint64)
            hashed = np.empty_like(source)
            self._hash(index, source, hashed, np.empty_like(source))
            rounds.append(np.tile(hashed.view(np.int64), 1 + (index + 1) // 2))
        left, right = (np.tile(np.arange(size, dtype=np.int64), 1 + ROUNDS // 2) for size in sizes)
        return _Tables(rounds, left, right * int(self._left))


def _look_up(tables: _Tables, tile: NDArray[np.int64], arrays: NDArray[np.int64]) -> None:
    """The rounds, from both halves in `arrays` to images in `tile`."""
    left, right, found, _ = arrays
    for index, table in enumerate(tables.rounds):
        changed, source = (right, left) if index % 2 else (left, right)
        table.take(source, out=found, mode="clip")  # nothing is to be clipped; any other mode takes a copy
        np.add(changed, found, out=changed)
    tables.left.take(left, out=found, mode="clip")
    tables.right.take(right, out=tile, mode="clip")
    np.add(tile, found, out=tile)
