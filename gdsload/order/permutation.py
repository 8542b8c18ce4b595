"""Seeded permutations of [0, n) that are computed piece by piece.

Up to EXACT_LIMIT the permutation is the numbers sorted by their hashes, as unbiased as the hashes are random.
Above it, a Feistel network computes any part of the permutation without a table. It does not do so below,
because Feistel networks on tiny domains are measurably biased: see docs/design/0001-order.md.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gdsload.order.feistel import TILE, Feistel
from gdsload.order.hashing import hash_into
from gdsload.order.recent import Recent
from gdsload.system.arrays import argsort

EXACT_LIMIT: Final = 65_536
"""Largest n that is shuffled exactly. Frozen: it decides which samples a saved position means."""

_RECENT_CHUNKS: Final = 4


def exact_table(n: int, key: int) -> NDArray[np.int64]:
    """Return the numbers 0..n-1 sorted by their hashes under `key`; shape [n].

    This is Black and Rogaway's prefix cipher. The hash is a bijection, so there are no ties, and every sorting
    algorithm gives this table.
    """
    table: NDArray[np.int64] = exact_tables(n, np.array([key], dtype=np.uint64))[0]
    return table


def exact_tables(n: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the table of each of some keys; shape [keys, n]."""
    hashes = np.tile(np.arange(n, dtype=np.uint64), (len(keys), 1))
    hash_into(hashes, keys[:, None], hashes, np.empty_like(hashes))
    return argsort(hashes)


class Permutation:
    """A seeded permutation of [0, n), n up to 2**48: position -> image. Safe to share between threads.

    Making one, of a 64-bit key from `derive_key`, costs microseconds, whatever n is. It keeps the images that were used
    last: all up to EXACT_LIMIT, and above it four chunks of 128 KiB, beside the tables of its network.
    """

    __slots__ = ("_chunks", "_each", "_feistel", "_key", "_n")

    def __init__(self, n: int, key: int) -> None:
        self._n, self._key = n, key
        self._feistel = Feistel(self._n, self._key) if self._n > EXACT_LIMIT else None
        # Of a network few at a time: the beginning of an epoch waits for them.
        self._each = EXACT_LIMIT if self._feistel is None else TILE
        self._chunks: Recent[int, NDArray[np.int64]] = Recent(_RECENT_CHUNKS)

    def __call__(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the images of positions [start, stop), which are within [0, n); read-only, shape [stop - start]."""
        each = self._each
        first = start // each
        if stop <= (first + 1) * each:
            return self._chunk(first)[start - first * each : stop - first * each]
        images = np.empty(stop - start, dtype=np.int64)
        for index in range(first, -(-stop // each)):
            base = index * each
            lower, upper = max(start, base), min(stop, base + each)
            images[lower - start : upper - start] = self._chunk(index)[lower - base : upper - base]
        images.flags.writeable = False
        return images

    def recipe(self) -> dict[str, NDArray[np.int64]]:
        """The permutation in a form that a device can compute: ``"network"``, see `Feistel.parameters`, or ``"table"``.

        The table has the image of each position.
        """
        if self._feistel is None:
            return {"table": self._chunk(0) if self._n else np.empty(0, np.int64)}
        return {"network": self._feistel.parameters.view(np.int64)}

    def _chunk(self, index: int) -> NDArray[np.int64]:
        return self._chunks.get(index, self._make_chunk)

    def _make_chunk(self, index: int) -> NDArray[np.int64]:
        if self._feistel is None:
            images = exact_table(self._n, self._key)
        else:
            values = np.arange(index * self._each, min((index + 1) * self._each, self._n), dtype=np.uint64)
            self._feistel.map_in_place(values)
            images = values.view(np.int64)
        images.flags.writeable = False
        return images
