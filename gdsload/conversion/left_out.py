"""What sources leave out while they are read: only who reads knows it, so it is counted where parts are converted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from gdsload.system.units import counted

__all__ = ["LeftOut", "counting_left_out", "leave_out", "left_out_notes"]

LeftOut = dict[str, tuple[int, str]]
"""How many of each kind of thing are left out, and the first of them."""
_counts: ContextVar[LeftOut | None] = ContextVar("_counts", default=None)


def leave_out(what: str, name: str) -> None:
    """Count something that is left out.

    Args:
        what: the kind of thing it is, for a note: "member of tar files".
        name: what it is called.
    """
    if (counts := _counts.get()) is not None:
        number, first = counts.get(what, (0, name))
        counts[what] = number + 1, first


@contextmanager
def counting_left_out() -> Iterator[LeftOut]:
    """Give what is left out in here; it grows while that is read."""
    counts: LeftOut = {}
    before = _counts.set(counts)
    try:
        yield counts
    finally:
        _counts.reset(before)


def left_out_notes(found: Iterable[Mapping[str, tuple[int, str]]]) -> list[str]:
    """One note for each kind of thing that was left out, of several counts in order."""
    together: LeftOut = {}
    for counts in found:
        for what, (number, first) in counts.items():
            before, earlier = together.get(what, (0, first))
            together[what] = before + number, earlier
    return [
        f"{counted(number, what)} {'is' if number == 1 else 'are'} left out, hidden or without an ending: "
        f"{first!r:.200} first."
        for what, (number, first) in sorted(together.items())
    ]
