"""Argument checks that say what was passed, why it cannot be used, and what to do."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

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


def check_epoch(value: object) -> int:
    """Return the number of an epoch as an int; OptionError if it is no whole number from 0 to 2**64 - 1."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(cast("int", value))
    except TypeError:
        number = -1
    if not 0 <= number < 2**64:
        raise OptionError(f"is {value!r}, no whole number from 0 to 2**64 - 1", option="epoch")
    return number


def check_range(start: int, stop: int, length: int, where: str) -> None:
    """Raise OptionError unless 0 <= start <= stop <= length; `where` names what has that length."""
    if not 0 <= start <= stop <= length:
        raise OptionError(
            f"positions [{start}, {stop}) are not within the {length} of {where}",
            remedy=f"Ask for 0 <= start <= stop <= {length}.",
        )


def check_run_lengths(run_lengths: Sequence[int]) -> NDArray[np.int64]:
    """Return the samples of each shard as int64, shape [shards].

    Raises OptionError if they are no whole numbers of at least 0, or more than MAX_SAMPLES together.
    """
    lengths = np.asarray(run_lengths)
    if lengths.ndim != 1 or (lengths.size and (lengths.dtype.kind not in "iu" or int(lengths.min()) < 0)):
        raise OptionError(
            "hold something else than numbers of samples",
            option="run_lengths",
            remedy="Pass one int of at least 0 for each shard.",
        )
    check_whole(sum(lengths.tolist()), "number of samples", 0, MAX_SAMPLES)
    return lengths.astype(np.int64)
