"""Images in separate files: a few of them tell the size of all, and parts list the names of files."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import TypeVar

import numpy as np

from gdsload.conversion.row_source import batches
from gdsload.conversion.source import Item, Part
from gdsload.errors import FormatError

One = TypeVar("One")

_LOOKED_AT = 16
USUAL_BYTES = 3 * 640 * 480
"""Bytes of an image of which nothing is known: about as large as a photograph of ImageNet or COCO. Parts of images that
are smaller have fewer bytes than they should, which costs little; parts of larger ones would have more."""


def image_parts(pairs: Sequence[tuple[str | int, str]], nbytes: int, target_bytes: int) -> list[Part]:
    """Parts of images of about `nbytes` each, with the pair of each image in `Part.where`.

    So a part has the names of its files: to look for them again would take as long as to read them.
    """
    return [
        Part(
            f"images {low} to {high - 1}",
            tuple(chain.from_iterable(pairs[low:high])),
            high - low,
            (high - low) * nbytes,
        )
        for low, high in batches(0, len(pairs), nbytes, target_bytes)
    ]


def mean_bytes(items: Iterable[Item], but: Container[str] = ()) -> int:
    """Bytes of a sample as it is stored, without some fields: the mean of some samples."""
    found = []
    for item in items:
        with suppress(FormatError):  # reported when its turn comes
            fields = [value for name, value in item.make().items() if name not in but]
            values = (value[0] if isinstance(value, list | tuple) else value for value in fields)
            found.append(sum(len(one) if isinstance(one, bytes) else np.asarray(one).nbytes for one in values))
    return max(sum(found) // len(found), 1) if found else USUAL_BYTES


def some(items: Sequence[One]) -> Sequence[One]:
    """Some at even distances among all."""
    return items[:: -(-len(items) // _LOOKED_AT) or 1]
