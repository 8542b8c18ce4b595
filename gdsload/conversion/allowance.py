"""The number of samples that a conversion may skip."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from gdsload.errors import ConversionError, OptionError, Skipped

DEFAULT_ALLOWANCE = "1%"
_NAMED = 3
_PATTERN = re.compile(r"\s*(\d{1,18})(\.\d{1,18})?\s*(%?)\s*", re.ASCII)


class Allowance:
    """The largest number, or share, of the samples that may be skipped.

    Args:
        given: a share of all samples, as ``"5%"`` or 0.05; or a number of them, as 20.

    Raises:
        OptionError: if it is neither.
    """

    def __init__(self, given: float | str) -> None:
        self._given = given
        text = f"{given:.18f}" if isinstance(given, float) else str(given)  # not "1e-05"
        whole, fraction, percent = found.groups() if (found := _PATTERN.fullmatch(text)) else ("2", "", "%")
        self._count = int(whole)
        self._share = float(whole + (fraction or "")) / (100 if percent else 1) if fraction or percent else None
        if found is None or isinstance(given, bool) or (self._share is not None and self._share > 1):
            raise OptionError(
                f"is {given!r:.200}, no share or number of samples",
                option="max_skipped",
                remedy='Pass a share as "5%" or 0.05, at most 1.0; or a number, as 20.',
            )

    def check(self, skipped: Sequence[Skipped], samples: int) -> None:
        """Refuse to skip more than are allowed of all samples.

        Raises:
            ConversionError: if they are too many, with the reasons of the first few.
        """
        # A number that is nearly whole counts as whole: 0.07 of 100 is seven.
        most = self._count if self._share is None else math.floor(self._share * samples * (1 + 1e-12))
        if len(skipped) > most:
            reasons = "; ".join(f"{one.key}: {one.reason}" for one in skipped[:_NAMED])
            raise ConversionError(
                f"{len(skipped)} of {samples} samples cannot be converted, more than the {most} that "
                f"`max_skipped={self._given!r}` allows",
                skipped=skipped,
                cause=reasons,
                remedy="Mend them or the options; or pass more, `max_skipped=20` or `max_skipped='5%'`: "
                "then it goes on with the parts that are finished, which are kept.",
            )
