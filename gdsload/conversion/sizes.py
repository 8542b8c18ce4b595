"""How large a result will be: by the first samples, as they will be written, where images are among them.

Of an image a source knows how long its file is, and that may be a tenth of its pixels' bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from gdsload.conversion.conversion_options import Change, ConvertOptions
from gdsload.conversion.source import Item, Part, Source
from gdsload.conversion.sources.pictures import ImageSource
from gdsload.errors import OptionError
from gdsload.shards.values import is_tensor

__all__ = ["ImageSizes", "image_sizes", "sized"]

_LOOKED_AT = 16


@dataclass(frozen=True, slots=True)
class ImageSizes:
    """About how many bytes a dataset will have, either way; -1 if that is not known.

    Attributes:
        encoded: with images as the files that they are.
        decoded: with their pixels, of the size that was asked for, or else of their own.
    """

    encoded: int
    decoded: int


def sized(source: Source, parts: Sequence[Part], options: ConvertOptions) -> list[Part]:
    """Parts of a source of images, with the bytes that their samples will have; those of others as they are."""
    mean = _mean(source.first_items(), options) if isinstance(source, ImageSource) else None
    if mean is None or not isinstance(source, ImageSource):
        return list(parts)
    in_files = source.bytes_in_files()
    return [
        replace(part, nbytes=round(part.samples * mean))
        if part.samples >= 0
        else replace(part, nbytes=round(part.nbytes * mean / in_files) if in_files and part.nbytes >= 0 else -1)
        for part in parts
    ]


def image_sizes(source: Source, nbytes: int, options: ConvertOptions) -> ImageSizes | None:
    """How large the result will be with images kept, and decoded; None if there are none.

    Args:
        source: the source.
        nbytes: how large it will be as was asked for, or -1.
        options: how it is converted.
    """
    if not isinstance(source, ImageSource):
        return None
    means = [_mean(source.with_images(kept=kept).first_items(), options) for kept in (True, False)]
    own = means[0 if source.look.keep_encoded else 1]
    if own is None or None in means or means[0] == means[1]:
        return None
    sizes = [-1 if nbytes < 0 or mean is None else round(nbytes * mean / own) for mean in means]
    return ImageSizes(*sizes)


def _mean(items: Iterator[Item], options: ConvertOptions) -> float | None:
    """Bytes of a sample, the mean of some that can be made; None if there are none."""
    change, nbytes, count = Change(options), 0, 0
    for item in islice(items, _LOOKED_AT):
        try:
            values = item.make()
            # Fields that are named after one that images become are not there otherwise.
            found = change(values) if item.count is None or not change.wants_samples else {}
        except OptionError:
            continue
        except Exception:  # noqa: S112 - said when it is its turn
            continue
        nbytes += sum(map(_bytes, found.values()))
        count += 1 if item.count is None else item.count
    return nbytes / count if count and nbytes else None


def _bytes(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value) + 8  # its offset
    if is_tensor(value):
        return value.nbytes
    if isinstance(value, list | tuple) and not all(isinstance(one, int | float) for one in value):
        return sum(map(_bytes, value))
    return int(np.asarray(value).nbytes)
