"""The sizes of parts and of the shards that they become, estimated from the first samples as they will be written.

A source knows the length of an image's file, which may be a tenth of its pixels' bytes, and the digits of numbers in a
line of JSON. So a task that is to fill one shard may get more than that. Its shards may get as much, so that no rest of
it becomes a shard; and parts are taken together until they come near a whole number of shards. All of it depends on the
parts and the schema alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from gdsload.conversion.conversion_options import Change, ConvertOptions
from gdsload.conversion.part import results
from gdsload.conversion.row_source import BATCH_BYTES
from gdsload.conversion.source import ExactParts, Item, Part, Source
from gdsload.conversion.sources.pictures import ImageSource
from gdsload.errors import GdsloadError, OptionError
from gdsload.shards.encode import EncodedField, batch_rows, sample_rows
from gdsload.shards.format.schema import Schema

_IMAGES = 16
_ITEMS = 128
_SAMPLES = 4096
_MAPPED = 256
"""Of these, where a function of the user's makes each: it may take its time."""
_PARTS_IN_SHARD = 8
_EVEN = 0.15
_ROOM = 0.25


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
        for _, count, found in results(item, change, partial(batch_rows, schema), partial(sample_rows, schema)):
            if not isinstance(found, Exception):
                samples, nbytes = samples + count, nbytes + _bytes_of_rows(schema, found)
            if samples >= (_MAPPED if change.wants_samples else _SAMPLES) or nbytes >= BATCH_BYTES:
                return nbytes / samples
    return nbytes / samples if samples else None


def _bytes_of_rows(schema: Schema, rows: Mapping[str, EncodedField]) -> int:
    count = next(iter(rows.values())).samples
    lengths = {name: found.lengths for name, found in rows.items() if found.lengths is not None}
    varying = sum(int(found.sum()) * schema[name].row_bytes + 8 * count for name, found in lengths.items())
    return count * schema.fixed_bytes + varying


def estimated_bytes(parts: Sequence[Part], schema: Schema) -> int:
    """About how many bytes some parts will have, or -1."""
    sizes = [part_bytes(part, schema) for part in parts]
    return -1 if min(sizes, default=0) < 0 else sum(sizes)


def part_bytes(part: Part, schema: Schema) -> int:
    """About how many bytes a part will have, or -1."""
    if part.samples >= 0 and not any(field.ragged for field in schema.values()):
        return part.samples * schema.fixed_bytes  # fields left out and casts are in it
    return part.nbytes


def bytes_of_parts(source: Source, shard_bytes: int) -> int:
    """The size of the parts to ask a source for: several make a shard where sizes are estimates."""
    if isinstance(source, ExactParts):
        return shard_bytes
    return max(min(shard_bytes // _PARTS_IN_SHARD, BATCH_BYTES), 1)


def gathered(source: Source, parts: Sequence[Part], schema: Schema, shard_bytes: int) -> list[list[Part]]:
    """Runs of parts, whose samples fill one shard each, or several where parts are large.

    A part whose size is not known is alone.
    """
    if isinstance(source, ExactParts):
        return [[part] for part in parts]
    found: list[list[Part]] = []
    total = -1
    for part in parts:
        nbytes = estimated_bytes([part], schema)
        if found and total >= 0 <= nbytes and not _fills(total, nbytes, shard_bytes):
            found[-1].append(part)
            total += nbytes
        else:
            found.append([part])
            total = nbytes
    return found


def _fills(total: int, following: int, shard_bytes: int) -> bool:
    """Return whether so many bytes fill some shards evenly, and no better with what follows."""
    even = _shards(total, shard_bytes) * shard_bytes
    return total + following / 2 >= shard_bytes and abs(total - even) <= _EVEN * even


def bytes_of_shards(source: Source, parts: Sequence[Part], schema: Schema, shard_bytes: int) -> int:
    """The size that the shards of a task may get: even ones, with room for more than was estimated."""
    total = estimated_bytes(parts, schema)
    if total < 0 or isinstance(source, ExactParts):
        return shard_bytes
    shards = _shards(total, shard_bytes)
    return max(int(min(total / shards * (1 + _ROOM / shards), shard_bytes * (1 + _ROOM))), 1)


def _shards(total: int, shard_bytes: int) -> int:
    return max(round(total / shard_bytes), 1)
