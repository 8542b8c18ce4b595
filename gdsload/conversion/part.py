"""One part of a source into shards: what a worker does, in whatever process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gdsload.columns import sample_of
from gdsload.conversion.options import Change, ConvertOptions
from gdsload.conversion.source import Item, Part, Source
from gdsload.conversion.stage import PartReport, Skipped, part_folder, part_report, write_json
from gdsload.errors import OptionError, ReadError, SchemaError, WriteError
from gdsload.format.schema import Schema
from gdsload.writer import ShardWriter

__all__ = ["ConversionError", "Task", "convert_part", "made", "samples_of"]

_LONGEST_REASON = 500


class ConversionError(ReadError):
    """A sample that cannot be converted, where that is to stop the conversion."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker gets; picklable.

    Attributes:
        source: the source.
        part: which part of it.
        number: the part's number.
        schema: the schema of the whole dataset, as JSON.
        stage: the folder of the conversion.
        options: how to convert.
    """

    source: Source
    part: Part
    number: int
    schema: Any
    stage: str
    options: ConvertOptions


def convert_part(task: Task) -> PartReport:
    """Convert a part, so that its folder is in the stage when this returns.

    Raises:
        ConversionError: if a sample cannot be converted and `on_error` is ``"stop"``.
        WriteError: if the disk is full or fails.
        FormatError: if the source itself is damaged.
    """
    found = part_report(task.stage, task.number)
    if found is not None:  # made by a worker that was lost before it could say so
        return found
    folder = part_folder(task.stage, task.number)
    if os.path.isdir(folder):  # without its report: it was interrupted between the two
        shutil.rmtree(folder)
    skipped: list[Skipped] = []
    change = Change(task.options)
    writer = ShardWriter(folder, Schema.from_json(task.schema), shard_bytes=task.options.shard_bytes)
    with writer:
        for item in task.source.read(task.part):
            _write(writer, item, change, task, skipped)
    samples, nbytes = writer.samples, _bytes_in(folder)
    listed = [{"key": one.key, "reason": one.reason} for one in skipped]
    write_json(folder + ".json", {"samples": samples, "nbytes": nbytes, "skipped": listed})
    return PartReport(task.number, samples, nbytes, tuple(skipped))


def _write(writer: ShardWriter, item: Item, change: Change, task: Task, skipped: list[Skipped]) -> None:
    """Write an item; one that many samples came in, and one of them is bad, is taken apart to find it."""
    trouble = _try(writer, item, change)
    if trouble is None:
        return
    if item.count is not None:
        try:
            parts = list(samples_of(item))
        except Exception as error:
            trouble = error
        else:
            for part in parts:
                _write(writer, part, change, task, skipped)
            return
    reason = f"{type(trouble).__name__}: {trouble}"[:_LONGEST_REASON]
    if task.options.on_error == "stop":
        raise ConversionError(
            f"{item.key} of {task.part.name} cannot be converted: {reason}",
            remedy='Mend it, or pass on_error="skip" (--on-error skip) to leave such samples out; a report names each.',
        ) from trouble
    skipped.append(Skipped(item.key, reason))


def _try(writer: ShardWriter, item: Item, change: Change) -> Exception | None:
    """Write an item; what is wrong with it, or None. A disk that fails is not its fault."""
    if item.count is not None and change.wants_samples:
        return SchemaError("samples come one by one")
    try:
        values = change(item.make())
        write = writer.write if item.count is None else writer.write_batch
        write(values)
    except (WriteError, MemoryError):
        raise
    except Exception as error:
        return error
    return None


def samples_of(item: Item) -> Iterator[Item]:
    """The samples of a batch, one by one."""
    values = item.make()
    for index in range(item.count or 0):
        yield Item(f"sample {index} of {item.key}", partial(sample_of, values, index))


def made(item: Item, change: Change, most: int) -> list[dict[str, Any]]:
    """The first few samples of an item, as they would be written; none if they cannot be made."""
    items = samples_of(item) if item.count is not None else iter([item])
    found: list[dict[str, Any]] = []
    try:
        for one in items:
            if len(found) >= most:
                break
            found.append(change(one.make()))
    except OptionError:
        raise
    except Exception:  # the sample's fault, of which more is said when it is its turn
        return found
    return found


def _bytes_in(folder: str) -> int:
    return int(np.sum([entry.stat().st_size for entry in os.scandir(folder)], dtype=np.int64))
