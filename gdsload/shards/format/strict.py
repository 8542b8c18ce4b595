"""JSON of strangers: a key that comes twice is refused, since readers differ in which value they take."""

from __future__ import annotations

import json
import reprlib

_SHOWN = reprlib.Repr()
_SHOWN.maxlist = _SHOWN.maxtuple = _SHOWN.maxdict = 16
_SHOWN.maxstring = _SHOWN.maxother = 80
_SMALL_BYTES = 2**24
_BYTES_OF_EACH = 8
"""Least mean bytes of a list or object in a text that is not small: as Python's objects they take a hundred."""


def show(value: object) -> str:
    """A value from a file, for an error: printable, of bounded length, and never nested too deeply to be shown."""
    return _SHOWN.repr(value)


class JsonError(ValueError):
    """Bytes that are no JSON.

    Args:
        message: what is wrong, without a subject.
        offset: the byte at which that was noticed; 0 if it is not known.
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def loads(raw: bytes) -> object:
    """Parse JSON in UTF-8. A zero with a sign becomes a float: no format of ours has one.

    Raises:
        JsonError: if it is no JSON, is nested too deeply, has a number of thousands of digits, or an object has a key
            twice, or it would take many times its size in memory.
    """
    if len(raw) > _SMALL_BYTES and raw.count(b"[") + raw.count(b"{") > len(raw) // _BYTES_OF_EACH:
        raise JsonError("almost nothing but brackets", 0)
    text = ""
    try:
        text = raw.decode("utf-8")
        tree: object = json.loads(text, object_pairs_hook=_no_duplicates, parse_int=_whole)
    except UnicodeDecodeError as error:
        raise JsonError("no valid UTF-8", error.start) from None
    except json.JSONDecodeError as error:
        raise JsonError(f"no valid JSON: {error.msg}", len(text[: error.pos].encode())) from None
    except ValueError as error:
        raise JsonError(f"no valid JSON: {error}", 0) from None
    except RecursionError:
        raise JsonError("no valid JSON: nested too deeply", 0) from None
    except MemoryError:
        raise JsonError("too large for the memory that is free", 0) from None
    return tree


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {show(name)} occurs twice")
        found[name] = value
    return found


def _whole(text: str) -> int | float:
    return float(text) if text == "-0" else int(text)


def is_text(value: object) -> bool:
    """Return whether a value is text that can be written: JSON can hold half a surrogate pair, which no UTF-8 can."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
