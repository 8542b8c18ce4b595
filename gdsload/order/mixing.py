"""Several datasets mixed by weights: one endless stream, of which each epoch is the next part.

Each epoch is cut into turns of TURN positions, the last of which may be shorter. The number of samples of each dataset
in a turn follows from the weights and the turn's place in the stream, and does not drift; their order in the turn is a
permutation. Each dataset gives its samples one pass after the other, each pass in another order, and continues in the
next epoch where it was. docs/design/0007-mixtures.md has the reasons.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import OptionError
from gdsload.order.checks import MAX_SAMPLES, check_whole
from gdsload.order.hashing import MASK64, Purpose, derive_key, hash_into
from gdsload.order.lanes import Order
from gdsload.order.permutation import Permutation, exact_table, exact_tables
from gdsload.order.recent import Recent

if TYPE_CHECKING:
    from fractions import Fraction

TURN: Final = 4096
"""Positions of a turn. Frozen: it decides what a saved position means."""

_RECENT_TURNS: Final = 4


@dataclass(frozen=True)
class Mixture:
    """The datasets of a mixture, and their proportions.

    Attributes:
        lengths: samples of each dataset.
        weights: weight of each, of which only the proportions matter.
        samples: samples of an epoch.

    Raises:
        OptionError: if a number is out of range, or a dataset with a weight has no samples.
    """

    lengths: tuple[int, ...]
    weights: tuple[float, ...]
    samples: int

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.lengths):
            raise OptionError(
                f"has length {len(self.weights)}, but there are {len(self.lengths)} datasets",
                option="weights",
                remedy="Pass a weight for each dataset.",
            )
        for weight, length in zip(self.weights, self.lengths, strict=True):
            if not (weight >= 0 and math.isfinite(weight)):
                raise OptionError(f"has {weight!r}, which is no number of at least 0", option="weights")
            if weight and not length:
                raise OptionError("a dataset that is to be mixed has no samples", remedy="Give it a weight of 0.")
        if not any(self.weights):
            raise OptionError("has nothing above 0", option="weights", remedy="Give at least one dataset a weight.")
        check_whole(self.samples, "samples", 0, MAX_SAMPLES)

    @classmethod
    def until(cls, lengths: tuple[int, ...], weights: tuple[float, ...], *, last: bool) -> Mixture:
        """A mixture whose first epoch ends when the first, or the last, of its datasets has been through once."""
        endless = cls(lengths, weights, 0)
        some = [dataset for dataset, share in enumerate(endless.shares) if share]
        needed = [lengths[dataset] / endless.shares[dataset] for dataset in some]
        samples, step = (math.ceil(max(needed)), 1) if last else (math.floor(min(needed)), -1)
        while any((endless.counts(samples)[dataset] - lengths[dataset]) * step < 0 for dataset in some):
            samples += step  # counts are rounded
        return cls(lengths, weights, samples)

    @cached_property
    def shares(self) -> tuple[Fraction, ...]:
        """The part of all samples that each dataset gives. 0.1 is a tenth here, and not the binary number beside it."""
        from fractions import Fraction

        weights = [Fraction(repr(float(weight))) for weight in self.weights]
        return tuple(weight / sum(weights) for weight in weights)

    @cached_property
    def _splits(self) -> list[tuple[int, int, int]]:
        """Datasets by falling weight, each with the part, as a fraction, of what those before it have left."""
        left, found = sum(self.shares), []
        for dataset in sorted(range(len(self.shares)), key=lambda dataset: -self.shares[dataset]):
            part = self.shares[dataset] / left if left else left
            found.append((dataset, part.numerator, part.denominator))
            left -= self.shares[dataset]
        return found

    def counts(self, positions: int) -> list[int]:
        """The counts of samples that each dataset gives to the first positions of the stream.

        They add up to `positions`, none falls as it grows, and each is within (1 + H) / 2 of its share, H being
        1 + 1/2 + ... + 1/datasets.
        """
        counts, left = [0] * len(self.shares), positions
        for dataset, above, below in self._splits:
            counts[dataset] = (2 * left * above + below) // (2 * below)  # rounded
            left -= counts[dataset]
        return counts

    def state(self) -> dict[str, Any]:
        """The values that the order depends on, JSON-able."""
        return {"lengths": list(self.lengths), "weights": list(self.weights), "samples": self.samples}


class MixOrder(Order):
    """The order of one epoch of a mixture, in one lane. Its ids count through the datasets one after the other.

    Each pass through a dataset is its own permutation if `shuffled`, else in dataset order.
    """

    def __init__(self, mixture: Mixture, *, shuffled: bool, seed: int, epoch: int) -> None:
        self.samples, self._mixture, self._shuffled = mixture.samples, mixture, shuffled
        self._seed, self._epoch = seed, epoch
        self._starts = [0, *accumulate(mixture.lengths)]
        self._turns: Recent[int, NDArray[np.int64]] = Recent(_RECENT_TURNS)
        self._passes: Recent[tuple[int, int], Permutation] = Recent(2 * len(mixture.lengths))

    def lane_ids(self, lane: int, start: int, stop: int) -> NDArray[np.int64]:
        ids = np.empty(stop - start, dtype=np.int64)
        for turn in range(start // TURN, -(-stop // TURN)):
            begin = turn * TURN
            low, high = max(start, begin), min(stop, begin + TURN)
            ids[low - start : high - start] = self._turns.get(turn, self._turn)[low - begin : high - begin]
        ids.flags.writeable = False
        return ids

    def _turn(self, turn: int) -> NDArray[np.int64]:
        begin, end = turn * TURN, min((turn + 1) * TURN, self.samples)
        before, after = (self._mixture.counts(self._epoch * self.samples + place) for place in (begin, end))
        given = [
            self._starts[dataset] + self._samples(dataset, start, stop)
            for dataset, (start, stop) in enumerate(zip(before, after, strict=True))
        ]
        # Sorted as 16-bit numbers, which numpy does in linear time: where each dataset's turns are, in rising order.
        datasets = np.repeat(np.arange(len(given), dtype=np.uint16), [len(ids) for ids in given])
        key = derive_key(self._seed, self._epoch, turn, Purpose.TURN)
        mixed = datasets[exact_table(end - begin, key)]
        ids = np.empty(end - begin, dtype=np.int64)
        ids[np.argsort(mixed, kind="stable")] = np.concatenate(given)
        return ids

    def _samples(self, dataset: int, start: int, stop: int) -> NDArray[np.int64]:
        """The samples [start, stop) that a dataset gives, all passes counted through."""
        length, count = self._mixture.lengths[dataset], stop - start
        if not count:
            return np.empty(0, dtype=np.int64)
        first, offset = divmod(start, length)
        if not self._shuffled:
            return (offset + np.arange(count)) % length
        passes = (offset + count - 1) // length + 1
        if passes <= 2:
            high = min(length, offset + count)
            part = self._passes.get((dataset, first), self._permutation)(offset, high)
            if passes == 1:
                return part
            rest = self._passes.get((dataset, first + 1), self._permutation)(0, offset + count - high)
            return np.concatenate([part, rest])
        # Short passes, a whole number of them at once: no Python for each.
        tables = exact_tables(length, self._pass_keys(dataset, first, passes))
        return tables.reshape(-1)[offset : offset + count]

    def _permutation(self, key: tuple[int, int]) -> Permutation:
        dataset, number = key
        return Permutation(self._mixture.lengths[dataset], int(self._pass_keys(dataset, number, 1)[0]))

    def _pass_keys(self, dataset: int, first: int, count: int) -> NDArray[np.uint64]:
        keys = np.arange(count, dtype=np.uint64) + np.uint64(first & MASK64)
        hash_into(keys, np.uint64(derive_key(self._seed, dataset, Purpose.PASS)), keys, np.empty_like(keys))
        return keys
