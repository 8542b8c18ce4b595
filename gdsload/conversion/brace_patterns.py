"""Files that are named by a pattern of braces: ``train-{000..127}.tar``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from gdsload.errors import OptionError

__all__ = ["expanded"]

_BRACES = re.compile(r"\{(?:(\d{1,12})\.\.(\d{1,12})|([^{},]*(?:,[^{},]*)+))\}", re.ASCII)
_MAX_EXPANDED = 1_000_000


def expanded(path: str) -> list[str] | None:
    """The files that a pattern of braces stands for, in its order; None if it has none, or is a path itself.

    ``{000..002}`` are numbers of so many digits, ``{a,b}`` those words.

    Raises:
        OptionError: if they are none, or too many.
    """
    if os.path.lexists(path) or not _BRACES.search(path):
        return None
    names, end = [""], 0
    for match in _BRACES.finditer(path):
        options = _alternatives(match)
        if not 1 <= len(names) * len(options) <= _MAX_EXPANDED:
            raise OptionError(f"{path!r:.200} stands for no file, or for more than {_MAX_EXPANDED}")
        names = [name + path[end : match.start()] + option for name in names for option in options]
        end = match.end()
    return [name + path[end:] for name in names]


def _alternatives(match: re.Match[str]) -> Sequence[str]:
    low, high, words = match.groups()
    if words is not None:
        return str(words).split(",")
    count = int(high) - int(low) + 1
    if count > _MAX_EXPANDED:
        return ()
    width = len(low) if low.startswith("0") else 0
    return [f"{int(low) + number:0{width}}" for number in range(count)]
