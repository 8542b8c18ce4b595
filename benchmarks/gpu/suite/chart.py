"""A record as small multiples: a panel for each case, a bar for each contender, and the limit of the case as a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.panels import Bar, Panel, Picture, draw

__all__ = ["chart"]

_WHERE = {"P": "files in the page cache", "D": "files on the drive alone", "gather": "rows in VRAM"}
_LIMITS = {"P": "link (P)", "D": "drive (D)", "gather": "bare gather"}


def chart(record: dict[str, Any], theme: str) -> str:
    """The chart in a theme, as SVG. Contenders without a number are left out, and so are cases without a limit."""
    runs = record["runs"]
    hosts = sorted({f"{run['machine'].get('gpu', 'no GPU')}, {run['machine']['cores']} cores" for run in runs})
    dates = sorted(run["date"][:10] for run in runs)
    footer = (
        f"{'; '.join(hosts)}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}. Medians, lines are quartiles. A "
        f"batch is complete in GPU memory. Hot: all pages of the files are in the page cache before each trial. Cold: "
        f"at most one in a thousand. No bar is to be compared with one of another panel."
    )
    return draw(Picture("GB/s into GPU memory, by case and loader", list(_panels(record)), footer, 860, 2), theme)


def _panels(record: dict[str, Any]) -> Iterator[Panel]:
    for case in record["cases"]:
        shown = [entry for entry in case["entries"] if "gb_s" in entry]
        limits = [entry["gb_s"]["median"] for entry in shown if entry["name"] == case["limit"]]
        bars = [_bar(entry) for entry in shown if entry["name"] != case["limit"]]
        if limits and bars:
            order, _, rows = case["title"].partition(": ")
            note = f"{rows}; {_WHERE[case['limit']]}"
            yield Panel(order, note, "GB/s", bars, (_LIMITS[case["limit"]], limits[0]))


def _bar(entry: dict[str, Any]) -> Bar:
    kind = {"gdsload": "ours", "torch": "torch"}.get(entry["name"].partition("-")[0], "peer")
    return Bar(entry["title"], entry["gb_s"]["median"], entry["gb_s"]["q1"], entry["gb_s"]["q3"], kind)
