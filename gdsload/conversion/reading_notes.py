"""Notes on a source that are found while it is read: counted where parts are converted, and said once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

Noted = dict[str, tuple[int, str]]
"""Texts, each with the number of things that it is about and the name of the first one."""
_noted: ContextVar[Noted | None] = ContextVar("_noted", default=None)


def note(what: str, name: str) -> None:
    """Note something that is no error.

    Args:
        what: a text on all such things together: "tar files without an end may be cut short".
        name: the name of this one.
    """
    if (noted := _noted.get()) is not None:
        number, first = noted.get(what, (0, name))
        noted[what] = number + 1, first


@contextmanager
def noting() -> Iterator[Noted]:
    """Collect the notes of this context; the result grows with each of them."""
    noted: Noted = {}
    before = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(before)


def noted_in_reading(found: Iterable[Mapping[str, tuple[int, str]]]) -> list[str]:
    """One text for all notes that are alike, from the notes of several parts in order."""
    together: Noted = {}
    for noted in found:
        for what, (number, first) in noted.items():
            before, earlier = together.get(what, (0, first))
            together[what] = before + number, earlier
    return [
        f"{what}: {first!r:.200}" + (f" and {number - 1} more." if number > 1 else ".")
        for what, (number, first) in sorted(together.items())
    ]
