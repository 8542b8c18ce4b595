"""What users should know of a source, and only who reads it finds out: counted where parts are converted, said once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["Noted", "note", "noted_in_reading", "noting"]

Noted = dict[str, tuple[int, str]]
"""What is to be said, of how many things, and the first of them."""
_noted: ContextVar[Noted | None] = ContextVar("_noted", default=None)


def note(what: str, name: str) -> None:
    """Note something that is no error.

    Args:
        what: what is to be said, of all such things together: "tar files without an end may be cut short".
        name: of which of them.
    """
    if (noted := _noted.get()) is not None:
        number, first = noted.get(what, (0, name))
        noted[what] = number + 1, first


@contextmanager
def noting() -> Iterator[Noted]:
    """Give what is noted in here; it grows while that is read."""
    noted: Noted = {}
    before = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(before)


def noted_in_reading(found: Iterable[Mapping[str, tuple[int, str]]]) -> list[str]:
    """One text for all that is to be said alike, of what several parts noted, in order."""
    together: Noted = {}
    for noted in found:
        for what, (number, first) in noted.items():
            before, earlier = together.get(what, (0, first))
            together[what] = before + number, earlier
    return [
        f"{what}: {first!r:.200}" + (f" and {number - 1} more." if number > 1 else ".")
        for what, (number, first) in sorted(together.items())
    ]
