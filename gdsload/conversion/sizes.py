"""Estimates of a result's size, from the first samples as they will be written.

A source knows the length of an image's file, which may be a tenth of its pixels' bytes, and the digits of numbers in a
line of JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from gdsload.conversion.conversion_options import Change, ConvertOptions
from gdsload.conversion.part import made
from gdsload.conversion.row_source import BATCH_BYTES
from gdsload.conversion.source import Item, Part, Source
from gdsload.conversion.sources.pictures import ImageSource
from gdsload.errors import GdsloadError, OptionError, SchemaError
from gdsload.shards.encode import EncodedField, batch_rows, sample_rows
from gdsload.shards.format.schema import Schema

__all__ = ["sized"]

_IMAGES = 16
_ITEMS = 128
_SAMPLES = 4096
_MAPPED = 256
"""Of these, where a function of the user's makes each: it may take its time."""


def sized(source: Source, parts: Sequence[Part], schema: Schema, options: ConvertOptions) -> list[Part]:
    """The parts of a source with about the bytes that their samples will have, as far as that can be known."""
    change = Change(options)
    if isinstance(source, ImageSource):
        mean = _mean(islice(source.first_items(), _IMAGES), change, schema)
        if mean is not None:
            in_files = source.bytes_in_files()
            return [
                replace(part, nbytes=round(part.samples * mean))
                if part.samples >= 0
                else replace(part, nbytes=round(part.nbytes * mean / in_files) if in_files and part.nbytes >= 0 else -1)
                for part in parts
            ]
    if not any(field.ragged for field in schema.values()) and min(part.samples for part in parts) >= 0:
        return list(parts)
    return _measured(source, parts, schema, change)


def _measured(source: Source, parts: Sequence[Part], schema: Schema, change: Change) -> list[Part]:
    """Parts as large as the first samples of the first one let expect."""
    first = parts[0]
    if max(first.samples, first.nbytes) < 0:
        return list(parts)
    try:
        mean = _mean(islice(source.read(first), _ITEMS), change, schema)
        there = first.samples
        if there < 0 and 0 <= first.nbytes <= 2 * BATCH_BYTES:  # a larger one, packed perhaps, takes too long
            there = sum(1 if item.count is None else item.count for item in source.read(first))
    except OptionError:
        raise
    except GdsloadError:
        return list(parts)  # reported when its turn comes
    if mean is None:
        return list(parts)
    ratio = mean * there / first.nbytes if there > 0 < first.nbytes else None
    return [
        replace(part, nbytes=round(part.nbytes * ratio))
        if ratio is not None and part.nbytes >= 0
        else replace(part, nbytes=round(part.samples * mean) if part.nbytes < 0 <= part.samples else part.nbytes)
        for part in parts
    ]


def _mean(items: Iterable[Item], change: Change, schema: Schema) -> float | None:
    """Bytes of a sample in a shard, the mean of the first good ones; None if there are none."""
    samples = nbytes = 0
    for item in items:
        for count, size in _written(item, change, schema):
            samples, nbytes = samples + count, nbytes + size
            if samples >= (_MAPPED if change.wants_samples else _SAMPLES) or nbytes >= BATCH_BYTES:
                return nbytes / samples
    return nbytes / samples if samples else None


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
