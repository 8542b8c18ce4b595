"""Two rows of a benchmark compared: how far apart they are, and whether chance alone explains it.

Rows take turns, so the turns of one round are a pair: what slows a machine down for a while slows both. The statistics
are Wilcoxon's: a permutation test over the signs of the pairs' differences, by rank, so that a single turn that was
disturbed does not decide. With fewer than 8 pairs no pattern of signs is rare enough. Then it is the one over all ways
to call turns ours and theirs, which sees less where a machine's speed changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

CHANCE = 0.01
"""Rows are different only where equal ones would be as far apart more rarely than this."""
EQUAL = 0.04
"""Rows that are closer are called equal: nobody changes a machine for that."""
FEWEST = 5
"""With fewer turns chance explains even rows without any overlap: 2 of the 70 ways to call 4 of 8 turns ours. With
fewer batches, the start and the end dominate the rate of a turn."""
_FEW_PAIRS = 8


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row beside another one.

    Attributes:
        gain: how much faster it is, as a share of the other one's rate: 0.65 for 65 %.
        low: the lower end of the gain's 95 % interval.
        high: its upper end.
        chance: how often equal rows are that far apart.
        pairs: turns of each that were compared.
    """

    gain: float
    low: float
    high: float
    chance: float
    pairs: int

    def different(self, noise: float) -> bool:
        """Return whether the rows differ, where the same row measured twice differs by a share of `noise`."""
        return self.chance < CHANCE and abs(self.gain) > max(EQUAL, 2 * noise)


def compare(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """Compare the rates of two rows, turn by turn.

    Turns that one row has more are left out, and those in which a row had no batch. If no pair is left, the rows are
    called equal.
    """
    both = [pair for pair in zip(ours, theirs, strict=False) if min(pair) > 0]
    if not (pairs := len(both)):
        return Comparison(0.0, 0.0, 0.0, 1.0, 0)
    rates = np.log(both)
    found = rates[:, 0] - rates[:, 1]
    first, second = np.triu_indices(pairs)
    means = np.sort((found[first] + found[second]) / 2)
    # The ends of the 95 % interval are the k-th smallest and largest mean of two differences.
    deviation = math.sqrt(pairs * (pairs + 1) * (2 * pairs + 1) / 24)
    outside = max(math.floor(pairs * (pairs + 1) / 4 - 1.96 * deviation), 0)
    gain, low, high = np.expm1([np.median(means), means[outside], means[-1 - outside]]).tolist()
    return Comparison(gain, low, high, _chance_of_labels(rates) if pairs < _FEW_PAIRS else _chance(found), pairs)


def _chance_of_labels(rates: NDArray[np.float64]) -> float:
    """The share of all ways to call half of the turns ours for which their ranks' sum is as far from its middle."""
    ranks = _ranks(np.round(rates.T.ravel(), 12))
    sums = np.array([sum(chosen) for chosen in combinations(ranks.tolist(), len(rates))])
    total = ranks[: len(rates)].sum()
    return float(min(2 * min((sums <= total).mean(), (sums >= total).mean()), 1.0))


def _chance(differences: NDArray[np.float64]) -> float:
    """The share of all patterns of signs for which the ranks' sum is as far from its middle, on either side."""
    found = np.round(differences, 12)  # so that a ratio and its inverse are a tie
    found = found[found != 0]
    if not found.size:
        return 1.0
    ranks = _ranks(np.abs(found))
    patterns = np.zeros(int(ranks.sum()) + 1)
    patterns[0] = 1.0
    for rank in ranks:  # patterns[s]: the share of the patterns of the ranks so far whose positive ones sum to s
        patterns[rank:] = patterns[rank:] / 2 + patterns[:-rank] / 2
        patterns[:rank] /= 2
    total = int(ranks[found > 0].sum())
    return float(min(2 * min(patterns[: total + 1].sum(), patterns[total:].sum()), 1.0))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Twice the rank of each, so that those of ties are whole numbers."""
    ranks: NDArray[np.int64] = (values[:, None] > values).sum(1) + (values[:, None] >= values).sum(1) + 1
    return ranks
