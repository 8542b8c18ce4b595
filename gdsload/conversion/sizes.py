"""Estimates of a result's size, from the first samples as they will be written.

A source knows the length of an image's file, which may be a tenth of its pixels' bytes, and the digits of numbers in a
line of JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from gdsload.conversion.conversion_options import Change, ConvertOptions
from gdsload.conversion.part import made
from gdsload.conversion.row_source import BATCH_BYTES
from gdsload.conversion.source import Item, Part, Source
from gdsload.conversion.sources.pictures import ImageSource
from gdsload.errors import GdsloadError, OptionError, SchemaError
from gdsload.shards.encode import EncodedField, batch_rows, sample_rows
from gdsload.shards.format.schema import Schema
from gdsload.shards.values import is_tensor

__all__ = ["ImageSizes", "image_sizes", "sized"]

_LOOKED_AT = 16
_ITEMS = 128
_SAMPLES = 4096
_MAPPED = 256
"""Of these, where a function of the user's makes each: it may take its time."""


@dataclass(frozen=True, slots=True)
class ImageSizes:
    """About how many bytes a dataset will have, either way; -1 if that is not known.

    Attributes:
        encoded: with images as the files that they are.
        decoded: with their pixels, of the size that was asked for, else of each image's size.
    """

    encoded: int
    decoded: int


def sized(source: Source, parts: Sequence[Part], schema: Schema, options: ConvertOptions) -> list[Part]:
    """The parts of a source with about the bytes that their samples will have, as far as that can be known."""
    mean = _mean(source.first_items(), options) if isinstance(source, ImageSource) else None
    if mean is None or not isinstance(source, ImageSource):
        known = not any(field.ragged for field in schema.values()) and min(part.samples for part in parts) >= 0
        return list(parts) if known else _measured(source, parts, schema, options)
    in_files = source.bytes_in_files()
    return [
        replace(part, nbytes=round(part.samples * mean))
        if part.samples >= 0
        else replace(part, nbytes=round(part.nbytes * mean / in_files) if in_files and part.nbytes >= 0 else -1)
        for part in parts
    ]


def _measured(source: Source, parts: Sequence[Part], schema: Schema, options: ConvertOptions) -> list[Part]:
    """Parts with sizes estimated from the first samples of the first part."""
    first, samples, nbytes = parts[0], 0, 0
    if max(first.samples, first.nbytes) < 0:
        return list(parts)
    change = Change(options)
    most = _MAPPED if change.wants_samples else _SAMPLES
    try:
        for item in islice(source.read(first), _ITEMS):
            for count, size in _written(item, change, schema):
                samples, nbytes = samples + count, nbytes + size
                if samples >= most or nbytes >= BATCH_BYTES:
                    break
            if samples >= most or nbytes >= BATCH_BYTES:
                break
        there = first.samples
        if there < 0 and 0 <= first.nbytes <= 2 * BATCH_BYTES:  # a larger one, packed perhaps, takes too long
            there = sum(1 if item.count is None else item.count for item in source.read(first))
    except OptionError:
        raise
    except GdsloadError:
        return list(parts)  # reported when its turn comes
    if not samples:
        return list(parts)
    mean = nbytes / samples
    ratio = mean * there / first.nbytes if there > 0 < first.nbytes else None
    return [
        replace(part, nbytes=round(part.nbytes * ratio))
        if ratio is not None and part.nbytes >= 0
        else replace(part, nbytes=round(part.samples * mean) if part.nbytes < 0 <= part.samples else part.nbytes)
        for part in parts
    ]


def _written(item: Item, change: Change, schema: Schema) -> Iterator[tuple[int, int]]:
    """The numbers of good samples of an item, and their bytes in a shard: all at once, or one by one."""
    try:
        if item.count is not None and not change.wants_samples:
            yield item.count, _bytes_of_rows(schema, batch_rows(schema, change(item.make())))
            return
    except OptionError:
        raise
    except Exception:  # noqa: S110 - one of its samples is bad
        pass
    for _, sample in made(item, change):
        if isinstance(sample, Exception):
            continue
        with suppress(SchemaError):
            yield 1, _bytes_of_rows(schema, sample_rows(schema, sample))


def _bytes_of_rows(schema: Schema, rows: Mapping[str, EncodedField]) -> int:
    count = next(iter(rows.values())).samples
    lengths = {name: found.lengths for name, found in rows.items() if found.lengths is not None}
    varying = sum(int(found.sum()) * schema[name].row_bytes + 8 * count for name, found in lengths.items())
    return count * schema.fixed_bytes + varying


def image_sizes(source: Source, nbytes: int, options: ConvertOptions) -> ImageSizes | None:
    """The sizes of the result with images kept and with images decoded; None if they are unknown or equal.

    `nbytes` is the size with the options given, or -1.
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
        except Exception:  # noqa: S112 - reported when its turn comes
            continue
        nbytes += sum(map(_bytes, found.values()))
        count += 1 if item.count is None else item.count
    return nbytes / count if count and nbytes else None


def _bytes(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value.encode(errors="replace") if isinstance(value, str) else value) + 8  # its offset
    if is_tensor(value):
        return value.nbytes
    if isinstance(value, list | tuple) and not all(isinstance(one, int | float) for one in value):
        return sum(map(_bytes, value))
    return int(np.asarray(value).nbytes)
