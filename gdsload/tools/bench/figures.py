"""Numbers as people read them: two or three digits that mean something, never an exponent."""

from __future__ import annotations

import math


def figure(number: float | None) -> str:
    """``"0.057"``, ``"2.3"``, ``"11.6"``, ``"347"``; a dash where nothing is known."""
    if number is None or not math.isfinite(number):
        return "–"
    if not number:
        return "0"
    digits = 1 - math.floor(math.log10(abs(number)) + 1e-9)
    return f"{number:.{1 if 9.95 <= abs(number) < 99.95 else max(digits, 0)}f}"


def percent(share: float | None) -> str:
    """``"97 %"``; one digit more below 2 %."""
    if share is None or not math.isfinite(share):
        return "–"
    return f"{100 * share:.1f} %" if 0.0005 <= abs(share) < 0.0195 else f"{100 * share:.0f} %"


def gain_text(gain: float) -> str:
    """``"+65 %"``, ``"-12 %"``, and from twice as much on ``"2.6 times"``."""
    return f"{figure(1 + gain)} times" if gain >= 1 else f"{100 * gain:+.0f} %"


def thousands(number: float | None) -> str:
    """``"77 000"``: three digits of it, in groups of three."""
    if number is None or not math.isfinite(number):
        return "–"
    digits = 3 - len(str(round(number)))
    return f"{round(number, min(digits, 0)):,.0f}".replace(",", " ")
