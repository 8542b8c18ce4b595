"""Bars as SVG: panels side by side, each with a linear axis from zero and its limit as a line, light or dark."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

__all__ = ["THEMES", "Bar", "Panel", "Picture", "draw"]

THEMES = {
    "light": {"text": "#1f2328", "muted": "#59636e", "grid": "#d1d9e0", "ours": "#0b7a75", "torch": "#b5651d"}
    | {"peer": "#8c959f", "limit": "#cf222e", "spread": "#1f2328", "inside": "#ffffff"},
    "dark": {"text": "#f0f6fc", "muted": "#9198a1", "grid": "#3d444d", "ours": "#2bb3a8", "torch": "#d98f4e"}
    | {"peer": "#7d8590", "limit": "#ff7b72", "spread": "#f0f6fc", "inside": "#0d1117"},
}
"""Colours by theme, and by the class that an element has. No background: the page has one."""

_HEAD, _FOOT = 62, 26
_VALUE = 48
_GUTTER = 20
_MARGIN = 6
_LETTER = 6.8


@dataclass(frozen=True, slots=True)
class Bar:
    """A rate with its quartiles; `kind` is ``"ours"``, ``"torch"`` or ``"peer"``."""

    label: str
    median: float
    q1: float
    q3: float
    kind: str


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars with one axis. `note` says under which condition they were measured; `limit` is a name and a rate."""

    title: str
    note: str
    unit: str
    bars: Sequence[Bar]
    limit: tuple[str, float] | None


@dataclass(frozen=True, slots=True)
class Picture:
    """Panels in columns, with a title for screen readers, and lines below the panels: machine and dates.

    A bar and the gap to the next one are `step` pixels.
    """

    title: str
    panels: Sequence[Panel]
    footer: str
    width: int
    columns: int
    step: int = 22


def draw(picture: Picture, theme: str) -> str:
    """The picture as SVG, as wide as it says, and as high as its panels are."""
    width = (picture.width - 2 * _MARGIN - _GUTTER * (picture.columns - 1)) / picture.columns
    parts, top = [], 0
    for first in range(0, len(picture.panels), picture.columns):
        row = picture.panels[first : first + picture.columns]
        for number, panel in enumerate(row):
            parts.append(f"<g transform='translate({_MARGIN + number * (width + _GUTTER):.0f} {top})'>")
            parts += _panel(panel, width, picture.step)
            parts.append("</g>")
        top += _HEAD + _FOOT + max(len(panel.bars) for panel in row) * picture.step + 12
    for line in textwrap.wrap(picture.footer, int((picture.width - 2 * _MARGIN) / _LETTER)):
        parts.append(_text(_MARGIN, top + 4, line, "muted"))
        top += 16
    styles = "".join(f".{name}{{color:{colour};fill:{colour}}}" for name, colour in THEMES[theme].items())
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {picture.width} {top}' width='{picture.width}' "
        f"height='{top}' role='img' aria-labelledby='title values' "
        f"font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif' font-size='12'>\n"
        f"<title id='title'>{escape(picture.title)}</title>\n"
        f"<desc id='values'>{escape(' '.join(map(_spoken, picture.panels)))}</desc>\n"
        f"<style>{styles}path{{stroke:currentColor}}.head{{font-size:14px;font-weight:600}}</style>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(panel: Panel, width: float, step: int) -> Iterator[str]:
    name, limit = panel.limit or ("", math.inf)
    beaten = any(bar.median > limit for bar in panel.bars)
    left = max(len(bar.label) for bar in panel.bars) * _LETTER * 1.1 + 8
    bottom = _HEAD + len(panel.bars) * step
    top = max(*(max(bar.median, bar.q3) for bar in panel.bars), limit if panel.limit else 0)
    scale = (width - left - _VALUE) / top
    yield _text(0, 16, panel.title, "text head")
    yield _text(0, 33, f"{panel.note}, {panel.unit}", "muted")
    for tick in _ticks(top, 3 if width < 380 else 5):
        x = left + tick * scale
        yield f"<path class='grid' d='M{x:.1f} {_HEAD - 4}V{bottom}'/>"
        yield _text(x, bottom + 14, f"{tick:g}", "muted", "middle")
    for number, bar in enumerate(panel.bars):
        yield from _bar(bar, left, (_HEAD + number * step, step - 6), (scale, limit * scale))
    if not panel.limit:
        return
    x = left + limit * scale
    yield f"<path class='limit' stroke-width='2' stroke-dasharray='5 3' d='M{x:.1f} {_HEAD - 8}V{bottom}'/>"
    said = f"{name} {_digits(limit)}" + (", beaten: no limit" if beaten else "")
    yield _text(min(x, width - len(said) * _LETTER / 2), _HEAD - 12, said, "limit", "middle")


def _bar(bar: Bar, left: float, place: tuple[int, int], scales: tuple[float, float]) -> Iterator[str]:
    """A bar at its top and of its height; scales are pixels a unit, and those of the limit."""
    (y, height), (scale, limit) = place, scales
    length, middle = max(bar.median * scale, 1), y + height / 2
    yield _text(left - 8, middle + 4, bar.label, "text", "end", "font-weight='600'" if bar.kind == "ours" else "")
    yield f"<rect class='{bar.kind}' x='{left:.1f}' y='{y}' width='{length:.1f}' height='{height}'/>"
    end, value = length, _digits(bar.median)
    if (bar.q3 - bar.q1) * scale >= 3:
        q1, q3 = left + bar.q1 * scale, left + bar.q3 * scale
        yield f"<path class='spread' d='M{q1:.1f} {middle}H{q3:.1f}'/>"
        end = max(end, bar.q3 * scale)
    wide = len(value) * _LETTER + 10
    if end < limit + 4 < end + wide and wide < length:  # the line of the limit would cross it
        yield _text(left + min(length, bar.q1 * scale) - 6, middle + 4, value, "inside", "end", "font-weight='600'")
    else:
        yield _text(left + end + 6, middle + 4, value, "text")


def _ticks(top: float, at_most: int) -> Iterator[float]:
    """Round numbers from zero to `top`."""
    power = 10.0 ** math.floor(math.log10(top / at_most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if top / (power * factor) <= at_most)
    yield from (number * step for number in range(int(top / step) + 1))


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start", style: str = "") -> str:
    return f"<text class={quoteattr(kind)} x='{x:.1f}' y='{y:.0f}' text-anchor='{anchor}' {style}>{escape(text)}</text>"


def _spoken(panel: Panel) -> str:
    rates = ", ".join(f"{bar.label} {_digits(bar.median)}" for bar in panel.bars)
    limit = f"; {panel.limit[0]} {_digits(panel.limit[1])}" if panel.limit else ""
    return f"{panel.title}, {panel.note}, in {panel.unit}: {rates}{limit}."


def _digits(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 1000 else f"{rate:.3g}"
