"""The record of a benchmark as text for a terminal, from 40 columns on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gdsload.tools.bench import contents
from gdsload.tools.bench.facts import STATES, State
from gdsload.tools.cli.terminal import plain, wrapped

Paint = Callable[[str, str], str]

_TITLES = {
    "cold": "first epochs, or data larger than memory",
    "hot": "epochs once the data are in the page cache",
}
_LABEL = 11
_NARROW = 60
"""Below it, text gets all columns, and labels no column."""
_BAR, _LEAST_BAR = 24, 6
_KEPT = 3
"""Columns with this number or less are worth more than bars."""
_BEFORE_BARS = ("", "GB/s", "spread")
_EIGHTHS = " ▏▎▍▌▋▊▉"


def render_text(
    record: dict[str, Any], width: int = 80, *, blocks: bool = True, painted: Paint = lambda text, _colour: text
) -> str:
    """The report on a record of `run_bench` with its verdict, in lines of `width` columns.

    With `blocks`, bars are drawn with block characters, which not all encodings have.
    """
    lines = [line for name, text in contents.conditions(record).items() for line in _labelled(name, text, width)]
    for title, entries in (("LIMITS", contents.limits(record)), ("COLD START", contents.cold_start(record))):
        lines += _entries(title, entries, width, painted)
    for state in STATES:
        lines += _table(record, state, width, blocks, painted)
    notes = [line for note in contents.notes(record) for line in wrapped(plain(note), width, first="- ", rest="  ")]
    return "\n".join([*lines, *_verdict(record, width, painted), "", *notes])


def _labelled(name: str, text: str, width: int, indent: str = "", label: int = _LABEL) -> list[str]:
    first, rest = f"{indent}{name:<{label}}", indent + " " * label
    if width < _NARROW:
        first, rest = f"{indent}{name}: ", indent + "  "
    return wrapped(plain(text), width, first=first, rest=rest)


def _entries(title: str, entries: Sequence[tuple[str, str, str]], width: int, painted: Paint) -> Iterator[str]:
    """Lines of names, right-aligned values and remarks; in a narrow terminal remarks are below."""
    if not entries:
        return
    yield ""
    if width < _NARROW:
        yield painted(title, "bold")
        for name, value, remark in entries:
            yield from wrapped(plain(f"{name}: {value}"), width, first="  ", rest="    ")
            yield from wrapped(plain(remark), width, first="    ", rest="    ") if remark else ()
        return
    names, values = (max(len(entry[place]) for entry in entries) for place in (0, 1))
    for number, (name, value, remark) in enumerate(entries):
        text = f"{name:<{names}}  {value:>{values}}   {remark}".rstrip()
        first = title if not number else ""
        lines = wrapped(plain(text), width, first=f"{first:<{_LABEL}}", rest=" " * (_LABEL + 2))
        yield from _headed(first, lines, painted) if first else lines


def _table(record: dict[str, Any], state: State, width: int, blocks: bool, painted: Paint) -> Iterator[str]:
    if record[state] is None:
        return
    yield ""
    name, checked = state.upper(), record[state]["checked"]
    if not contents.shown_rows(record, state):
        missing = f"{name}  {contents.missing(record, state)}"
        yield from _headed(name, wrapped(plain(missing), width, rest="  "), painted)
        return
    title = f"{name:<4}  {_TITLES[state]}" + (f"   ({checked})" if checked else "")  # empty if it was stopped
    yield from _headed(name, wrapped(plain(title), width, rest="  "), painted)
    for line in _laid_out(contents.columns(record, state), contents.bar_shares(record, state), width - 2, blocks):
        yield f"  {line}".rstrip()
    for text in contents.remarks(record, state):
        yield from wrapped(plain(text), width, first="    ", rest="      ")


def _headed(name: str, lines: list[str], painted: Paint, colour: str = "bold") -> list[str]:
    """The lines of a section, which begin with its name."""
    return [painted(name, colour) + lines[0][len(name) :], *lines[1:]]


def _laid_out(found: list[contents.Column], shares: list[float], width: int, blocks: bool) -> Iterator[str]:
    """A table's lines: columns that do not fit are left out, and the last three only where bars are, too."""
    found = [column for column in found if set(column.cells) != {"–"}]
    most = max(column.spare for column in found)
    while most and _width(found) + (_LEAST_BAR + 2 if most > _KEPT else 0) > width:
        found = [column for column in found if column.spare < most]
        most = max(column.spare for column in found)
    room = width - _width(found) - 2
    bar = min(_BAR, room) if room >= _LEAST_BAR else 0
    place = sum(column.title in _BEFORE_BARS for column in found)
    for number in range(-1, len(shares)):  # -1: the headings
        texts = [column.title if number < 0 else plain(column.cells[number]) for column in found]
        cells = [f"{text:>{_widest(column)}}" for text, column in zip(texts, found, strict=True)]
        cells[0] = f"{texts[0]:<{_widest(found[0])}}"
        if bar:
            cells.insert(place, f"{'' if number < 0 else _bar(shares[number], bar, blocks):<{bar}}")
        yield "  ".join(cells)


def _widest(column: contents.Column) -> int:
    return max(map(len, (column.title, *column.cells)))


def _width(found: list[contents.Column]) -> int:
    return sum(map(_widest, found)) + 2 * (len(found) - 1)


def _bar(share: float, cells: int, blocks: bool) -> str:
    eighths = max(round(share * cells * 8), 1)
    if not blocks:
        return "#" * max(round(share * cells), 1)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()


def _verdict(record: dict[str, Any], width: int, painted: Paint) -> Iterator[str]:
    found, wide = record["verdict"], width >= _NARROW
    colour = {"yes": "green", "no": "green", "worse": "red"}.get(found["gds"], "yellow")
    first, rest = (f"{'VERDICT':<{_LABEL}}", " " * _LABEL) if wide else ("VERDICT  ", "  ")
    yield ""
    yield from _headed("VERDICT", wrapped(plain(found["sentence"]), width, first=first, rest=rest), painted, colour)
    for label, text in contents.answers(record):
        yield from _labelled(label, text, width, indent="  ", label=_LABEL - 2)
    for number, command in enumerate(found["next"]):
        label = "" if number else "Next"
        yield f"  {label:<{_LABEL - 2}}{plain(command)}" if wide else f"  {plain(command)}"
