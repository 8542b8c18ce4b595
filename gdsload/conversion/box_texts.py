"""Detection of YOLO's texts of boxes, which have a line for each object, and of the folder that they belong to."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from gdsload.conversion.input_files import open_file
from gdsload.errors import FormatError
from gdsload.system.paths import absolute

_BOX = re.compile(rb"\s*+\d++(?:\.0*+)?+(?:\s++[-\d.]++(?:e[-+]?\d++)?+){4,}+\s*+$", re.IGNORECASE)
_LOOKED_AT_BYTES = 2**16
_BOM = b"\xef\xbb\xbf"


def has_boxes(file: str) -> bool | None:
    """Return whether a file's first line is a class and four or more numbers; None if it is empty or cannot be read."""
    with suppress(OSError, FormatError), open_file(file) as opened:
        line = opened.readline(_LOOKED_AT_BYTES).removeprefix(_BOM)
        if line.strip():
            return _BOX.match(line) is not None
    return None


def base_of(path: str) -> str:
    """The folder that holds `images` and `labels`: a path itself, or for a folder in `images` the one above that."""
    whole = absolute(path)
    pieces = whole.split(os.sep)
    if "images" not in pieces or os.path.isdir(os.path.join(whole, "images")):
        return whole
    base = os.sep.join(pieces[: len(pieces) - 1 - pieces[::-1].index("images")]) or os.sep
    return base if os.path.isdir(os.path.join(base, "labels")) else whole
