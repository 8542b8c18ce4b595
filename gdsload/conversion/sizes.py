"""The sizes of parts and of shards, estimated from the first samples as they will be written; and room for them.

A source knows the length of an image's file, which may be a tenth of its pixels' bytes, and the digits of numbers in a
line of JSON. So a task that is to fill one shard may get more than that. Its shards may get as much, so that no rest of
it becomes a shard; and parts are taken together until they come near a whole number of shards. All of it depends on the
parts and the schema alone.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from gdsload.conversion.conversion_options import Change, ConvertOptions
from gdsload.conversion.part import results
from gdsload.conversion.row_source import BATCH_BYTES
from gdsload.conversion.source import ExactParts, Item, Part, Source
from gdsload.conversion.sources.pictures import ImageSource
from gdsload.conversion.staging import PartReport
from gdsload.errors import DiskFullError, GdsloadError, OptionError
from gdsload.shards.encode import EncodedField, batch_rows, sample_rows
from gdsload.shards.format.schema import Schema
from gdsload.shards.status import naming, write_error
from gdsload.system.units import format_bytes

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


@dataclass(frozen=True, slots=True)
class Room:
    """The space on a disk that the unfinished tasks will need.

    Attributes:
        path: where the dataset will appear.
        sizes: about how many bytes each task will write, or -1.
        done: those that are finished.
        twice: whether all samples are written again, in another order, when all parts are there.
        spread_over: the folders that the shards are spread over; none: they are where the dataset is.
    """

    path: str
    sizes: Sequence[int]
    done: Mapping[int, PartReport]
    twice: bool
    spread_over: Sequence[str] = ()

    @property
    def _folders(self) -> Sequence[str]:
        return self.spread_over or [os.path.dirname(self.path)]

    def check(self) -> None:
        """Raise a `DiskFullError` if there is no room for all unfinished parts, before the first one."""
        if len(self.done) == len(self.sizes):
            return
        left = sum(max(size, 0) for number, size in enumerate(self.sizes) if number not in self.done)
        self._check(left + (sum(max(size, 0) for size in self.sizes) if self.twice else 0))

    def check_again(self) -> None:
        """Raise a `DiskFullError` if there is no room for all samples once more, now that their size is known."""
        self._check(sum(report.nbytes for report in self.done.values()))

    def _check(self, needed: int) -> None:
        found = {folder: _room_in(folder) for folder in self._folders}
        folders_of = Counter(device for device, _, _ in found.values())
        for folder, (device, free, total) in found.items():
            share = needed * folders_of[device] // len(self._folders)
            if share > free and total:  # some file systems do not say how large they are
                message = f"there is no room for the dataset: about {format_bytes(needed)} is still to be written"
                raise DiskFullError(message, file=folder)

    def explain(self, error: DiskFullError) -> DiskFullError:
        """The error of a full disk, with what is free, and the way to go on."""
        free = [format_bytes(_room_in(folder)[1]) for folder in self._folders]
        several = f" in {', '.join(self._folders)}" if len(free) > 1 else ""
        return DiskFullError(
            f"{error.message}; {', '.join(free)} are free{several}",
            file=error.file if self.spread_over and error.file is not None else self.path,
            remedy=f"Free some space and run it again: it goes on after the {len(self.done)} of {len(self.sizes)} "
            "parts that are finished. Or write elsewhere.",
        )


def _room_in(folder: str) -> tuple[int, int, int]:
    """The device of a folder, how many bytes of it are free, and how many there are; a `WriteError` if it is gone."""
    with naming(write_error, "shards cannot be written there any more", folder):
        usage = shutil.disk_usage(folder)
        return os.stat(folder).st_dev, usage.free, usage.total
