"""The verdict on whether a case has become slower, from the rates of both trees, round by round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.record import ratio

__all__ = ["ALLOWED", "Verdict", "judge"]

ALLOWED = 0.03
"""Share by which a case may be slower."""
_NOTCH = 1.57
"""Half the 95 % interval of a median, in interquartile ranges times the root of the number: the notch of a box plot."""

Word = Literal["slower", "equal", "faster", "unclear"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The ratio of two trees' rates in a case, and the verdict on it.

    Attributes:
        ratio: median rate now over that before.
        q1: lower quartile of the ratios that are taken round by round.
        q3: their upper quartile.
        margin: by how much the ratio may be off by chance, from the quartiles and the number of rounds.
        word: ``"equal"`` if the ratio is within what is allowed, ``"slower"`` or ``"faster"`` if it is not, and by more
            than the margin, and else ``"unclear"``.
    """

    ratio: float
    q1: float
    q3: float
    margin: float
    word: Word

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.q1:.3f} to {self.q3:.3f})  {self.word}"


def judge(now: Sequence[float], before: Sequence[float]) -> Verdict:
    """Compare rates.

    Args:
        now: rates of the checked-out tree, one a round.
        before: those of the other tree, of the same rounds.
    """
    medians, pairs = statistics.median(now) / statistics.median(before), ratio(now, before)
    margin = _NOTCH * (pairs["q3"] - pairs["q1"]) / math.sqrt(len(now))
    word: Word = "unclear"
    if abs(medians - 1) <= ALLOWED:
        word = "equal"
    elif abs(medians - 1) > ALLOWED + margin:
        word = "slower" if medians < 1 else "faster"
    return Verdict(medians, pairs["q1"], pairs["q3"], margin, word)
