"""The conversion of some parts of a source into shards, by one worker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from gdsload.conversion.conversion_options import ONE_SCALE, Change, ConvertOptions
from gdsload.conversion.reasons import reason_of
from gdsload.conversion.source import Item, Part, Source
from gdsload.conversion.sources.pictures import ImageSource
from gdsload.conversion.staging import PartReport, part_folder, part_report, write_json
from gdsload.errors import ConversionError, OptionError, ReadError, SchemaError, Skipped, WriteError
from gdsload.shards.encode import as_ragged, sample_of
from gdsload.shards.format.schema import Schema
from gdsload.shards.publish import remove_interrupted
from gdsload.shards.status import write_error
from gdsload.shards.values import CONVERT
from gdsload.shards.writer import ShardWriter

_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class PartTask:
    """A worker's task: some consecutive parts of a source, and how to convert them; picklable.

    Attributes:
        source: the source.
        parts: the parts, which follow one another.
        number: the task's number.
        schema: the schema of the whole dataset, as JSON.
        stage: the folder of the conversion.
        options: how to convert.
        spread_over: folders over which its shards are spread, beginning with the first one.
    """

    source: Source
    parts: tuple[Part, ...]
    number: int
    schema: Any
    stage: str
    options: ConvertOptions
    spread_over: tuple[str, ...] = ()


def convert_part(
    task: PartTask, stopped: Callable[[], bool] | None = None, note: Callable[[int, int], None] | None = None
) -> PartReport:
    """Convert the parts of a task, so that their folder is in the stage when this returns.

    Args:
        task: the task.
        stopped: returns whether the work is to end, where it cannot be ended from outside.
        note: called now and then with the task's number and the number of samples written.

    Raises:
        ConversionError: if a sample cannot be converted and `on_error` is ``"stop"``.
        OptionError: if that is no sample's fault, but an option's.
        WriteError: if the disk is full or fails.
        FormatError: if the source itself is damaged.
    """
    report = part_report(task.stage, task.number)
    if report is not None:  # made by a worker that was lost before it could say so
        return report
    folder = part_folder(task.stage, task.number)
    if os.path.isdir(folder):  # without its report: it was interrupted between the two
        remove_interrupted(folder, task.stage)
    skipped: list[Skipped] = []
    change = Change(task.options)
    schema, options = Schema.from_json(task.schema), task.options
    writer = ShardWriter(
        folder, schema,
        shard_bytes=options.shard_bytes, pack_fields=options.pack_fields, spread_over=task.spread_over,
    )  # fmt: skip
    last = time.monotonic()
    with writer:
        for part in task.parts:
            for item in task.source.read(part):
                if stopped is not None and stopped():
                    raise ReadError("the conversion was interrupted")
                for key, _, found in results(item, change, writer.write_batch, writer.write):
                    if isinstance(found, Exception):
                        trouble = _explained(found, task.source, writer.schema)
                        if options.on_error == "stop":
                            raise failed(key, part, trouble) from trouble
                        skipped.append(Skipped(key, reason_of(trouble)))
                if note is not None and (now := time.monotonic()) - last > _EVERY_S:
                    last = now
                    note(task.number, writer.samples)
    report = PartReport(task.number, writer.samples, _bytes_in(folder), tuple(skipped), change.clipped)
    write_json(folder + ".json", asdict(report))
    return report


def _explained(trouble: Exception, source: Source, schema: Schema | None) -> Exception:
    """The error, with a remedy if it is about a picture of another size than the first ones, or about a sound."""
    if not isinstance(trouble, SchemaError) or schema is None or (field := schema.get(trouble.field or "")) is None:
        return trouble
    if trouble.remedy == CONVERT and f"{trouble.field}.sampling_rate" in schema:
        return SchemaError(trouble.message, field=trouble.field, remedy=ONE_SCALE)
    if trouble.remedy and (asked := as_ragged(str(trouble.field), field)) in trouble.remedy:
        remedy = trouble.remedy.replace(asked, f"`ragged=[{trouble.field!r}]`")
        trouble = SchemaError(trouble.message, field=trouble.field, remedy=remedy)
    if not isinstance(source, ImageSource):
        return trouble
    pixels = field.kind == "fixed" and field.dtype.name == "uint8" and len(field.shape) == 3
    return SchemaError(trouble.message, field=trouble.field, remedy=source.ways_out) if pixels else trouble


def place_of(key: str, part: Part) -> str:
    """The key and part of a sample, for people; the key alone where it already names the part."""
    return key if part.name in key else f"{key} of {part.name}"


def failed(key: str, part: Part, trouble: Exception) -> ConversionError:
    """The error for a sample that cannot be converted, where that stops the conversion."""
    return ConversionError(
        f"{place_of(key, part)} cannot be converted",
        cause=reason_of(trouble),
        remedy='Mend it, or pass `on_error="skip"` to leave such samples out; a report names each.',
    )


def results(
    item: Item, change: Change, of_batch: Callable[[dict[str, Any]], Any], of_sample: Callable[[dict[str, Any]], Any]
) -> Iterator[tuple[str, int, Any]]:
    """Call a function with an item as it will be written: with a batch as a whole, or with each sample if that fails.

    Yields:
        Where it comes from, the number of samples, and what the function returns, or the error that is the fault of
        that sample alone. Errors of disks and options are raised.
    """
    if item.count is not None and not change.wants_samples:
        found = _result(item, change, of_batch)
        if not isinstance(found, Exception):
            yield item.key, item.count, found
            return
    try:
        items = [item] if item.count is None else list(samples_of(item))
    except Exception as error:
        yield item.key, 1, error
        return
    for one in items:
        yield one.key, 1, _result(one, change, of_sample)


def _result(item: Item, change: Change, function: Callable[[dict[str, Any]], Any]) -> Any:
    before = dict(change.clipped)
    try:
        return function(change(item.make()))
    except (WriteError, MemoryError, OptionError):
        raise
    except Exception as error:
        change.clipped = before
        return error


def samples_of(item: Item) -> Iterator[Item]:
    """The samples of a batch, one by one."""
    values = item.make()
    for index in range(item.count or 0):
        yield Item(key_of(item, index), partial(sample_of, values, index))


def key_of(item: Item, index: int) -> str:
    """The key of a sample of a batch; a batch of one has the key of its sample."""
    return item.key if item.count == 1 else f"sample {index} of {item.key}"


def _bytes_in(folder: str) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat().st_size for entry in entries)
    except OSError as error:
        lost = os.path.realpath(error.filename or folder)
        raise write_error("the shards that were just written are gone", error, lost) from error
