"""Sizes and counts as people write them."""

from __future__ import annotations

import re

from gdsload.errors import OptionError

_FACTORS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_PATTERN = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_bytes(value: int | str, name: str, *, at_least: int = 0) -> int:
    """Turn ``"256MiB"``, ``"1.5 GB"`` or a plain number of bytes into a number of bytes.

    KiB, MiB, GiB and TiB are powers of 1024, kB, MB, GB and TB powers of 1000. `name` is the argument's, for the error.

    Raises:
        OptionError: if the text is no size, or the size is below `at_least`.
    """
    match = _PATTERN.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif match and (factor := _FACTORS.get(match[2].lower())):
        size = int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor
    else:
        remedy = 'Write it as "256MiB", "1.5GB" or a number of bytes.'
        raise OptionError(f"is {value!r}, which is no size", option=name, remedy=remedy)
    if size < at_least:
        raise OptionError(f"is {size} bytes, but must be at least {at_least}", option=name)
    return size


def format_bytes(size: float) -> str:
    """Write a number of bytes for people, in binary units: ``268435456`` as ``"256 MiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def counted(number: int, what: str) -> str:
    """``"1 shard"``, ``"2 shards"``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
