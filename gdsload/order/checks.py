"""Argument checks that say what was passed, why it cannot be used, and what to do."""

from __future__ import annotations

import operator
from typing import Final

from gdsload.errors import OptionError

MAX_SAMPLES: Final = 1 << 48
"""Most samples that an order can hold: both halves of the Feistel network then fit in 24 bits."""


def check_whole(value: int, name: str, at_least: int, at_most: int | None = None) -> int:
    """Return `value` as an int; OptionError if it is no whole number in [at_least, at_most]."""
    try:
        whole = operator.index(value)
    except TypeError:
        raise OptionError(
            f"is {value!r}, which is no whole number", option=name, remedy=f"Pass an int of at least {at_least}."
        ) from None
    if whole < at_least:
        raise OptionError(
            f"is {whole}, but must be at least {at_least}", option=name, remedy=f"Pass a larger `{name}`."
        )
    if at_most is not None and whole > at_most:
        raise OptionError(f"is {whole}, but must be at most {at_most}", option=name, remedy=f"Pass a smaller `{name}`.")
    return whole
