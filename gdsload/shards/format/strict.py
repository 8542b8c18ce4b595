"""JSON in which every key counts: a key that comes twice is refused, since readers differ in which value they take."""

from __future__ import annotations

import json
import reprlib

__all__ = ["loads", "show"]

_SHOWN = reprlib.Repr()
_SHOWN.maxlist = _SHOWN.maxtuple = _SHOWN.maxdict = 16
_SHOWN.maxstring = _SHOWN.maxother = 80


def show(value: object) -> str:
    """A value from a file, for an error: printable, of bounded length, and never nested too deeply to be shown."""
    return _SHOWN.repr(value)


def loads(text: str) -> object:
    """Parse JSON.

    Raises:
        ValueError: if it is no JSON (then a `json.JSONDecodeError`), or an object has a key twice.
        RecursionError: if it is nested too deeply.
    """
    tree: object = json.loads(text, object_pairs_hook=_no_duplicates)
    return tree


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name[:80]!r} occurs twice")
        found[name] = value
    return found
