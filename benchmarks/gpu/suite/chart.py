"""A record as a chart: a bar for each contender in each case, GB/s on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape

__all__ = ["draw"]

_WIDTH, _LEFT, _RIGHT = 860, 230, 110
_BAR, _GAP, _HEAD = 16, 5, 44
_LIMIT, _OURS, _PEER = "#9aa0a6", "#0b7a75", "#b0793f"


def draw(record: dict[str, Any]) -> str:
    """The chart, as SVG. Cases without a number are left out."""
    shown = [(case, entries) for case in record["cases"] if (entries := [e for e in case["entries"] if "gb_s" in e])]
    rates = [entry["gb_s"]["median"] for _, entries in shown for entry in entries] or [1.0]
    low, high = math.floor(math.log10(min(rates))), max(math.ceil(math.log10(max(rates))), 1)
    scale = (_WIDTH - _LEFT - _RIGHT) / (high - low)
    parts, y = [], 10
    for case, entries in shown:
        parts.append(_text(10, y + 18, case["title"], "font-weight='bold'"))
        bottom = y + _HEAD + len(entries) * (_BAR + _GAP)
        parts += _axis(y + _HEAD - 6, bottom, low, high, scale)
        for number, entry in enumerate(entries):
            parts += _bar(entry, y + _HEAD + number * (_BAR + _GAP), low, scale)
        y = bottom + 18
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{y}' font-family='sans-serif' "
        f"font-size='12'>"
        f"<title>GB/s into GPU memory, logarithmic</title><rect width='100%' height='100%' fill='white'/>"
        + "".join(parts)
        + "</svg>\n"
    )


def _axis(top: int, bottom: int, low: int, high: int, scale: float) -> Iterator[str]:
    for power in range(low, high + 1):
        x = _LEFT + (power - low) * scale
        yield f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{bottom}' stroke='#ddd'/>"
        yield _text(x, top - 2, f"{10.0**power:g} GB/s", "text-anchor='middle' fill='#777' font-size='10'")


def _bar(entry: dict[str, Any], y: int, low: int, scale: float) -> Iterator[str]:
    found = entry["gb_s"]
    q1, middle, q3 = (max((math.log10(found[key]) - low) * scale, 1) for key in ("q1", "median", "q3"))
    ours = entry["name"].startswith("gdsload")
    color = _OURS if ours else _PEER if entry["package"] else _LIMIT
    yield _text(_LEFT - 8, y + 12, entry["title"], "text-anchor='end'")
    yield f"<rect x='{_LEFT}' y='{y}' width='{middle:.1f}' height='{_BAR}' fill='{color}'/>"
    yield f"<path d='M{_LEFT + q1:.1f} {y + _BAR / 2}H{_LEFT + q3:.1f}' stroke='black'/>"
    yield _text(_LEFT + max(middle, q3) + 6, y + 12, f"{found['median']:.3g}", "")


def _text(x: float, y: float, text: str, style: str) -> str:
    return f"<text x='{x:.1f}' y='{y}' {style}>{escape(text)}</text>"
