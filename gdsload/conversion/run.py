"""A conversion: parts by workers, and the dataset put together of them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

import torch

from gdsload.conversion.infer import schema_of
from gdsload.conversion.options import ConvertOptions, OnError
from gdsload.conversion.packing import PackedSource, Packing
from gdsload.conversion.part import Task, convert_part
from gdsload.conversion.publish import publish, put_in_order, shuffle_into
from gdsload.conversion.recognise import source_for
from gdsload.conversion.room import Room
from gdsload.conversion.source import Part, Source
from gdsload.conversion.stage import PartReport, Skipped, Stage
from gdsload.errors import DiskFullError, OptionError, ReadError
from gdsload.format.schema import Field, Schema
from gdsload.paths import absolute
from gdsload.publish import Publication

__all__ = ["ConvertKeywords", "ConvertReport", "Plan", "Progress", "choose", "convert", "plan", "publish_check"]

Progress = Callable[[int, int, int, int], None]
"""Called with the samples and bytes written so far, parts finished, and parts in all. A shuffle writes all twice."""


class ConvertKeywords(TypedDict, total=False):
    """The keywords of `convert`."""

    kind: str | None
    schema: Schema | Mapping[str, Field | str] | None
    fields: Sequence[str] | None
    casts: Mapping[str, str] | None
    ragged: Sequence[str]
    map: str | None
    shard_bytes: int | str
    shuffle_seed: int | None
    on_error: OnError
    workers: int | None
    executor: Executor | None
    overwrite: bool
    restart: bool
    progress: Progress | None
    source_options: Mapping[str, Any] | None
    pack: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a conversion would do.

    Attributes:
        kind: what the source is.
        schema: the fields of the result.
        parts: the parts of the source.
    """

    kind: str
    schema: Schema
    parts: list[Part]

    @property
    def samples(self) -> int:
        """Number of samples, or -1 if that is only known once they are read."""
        return -1 if any(part.samples < 0 for part in self.parts) else sum(part.samples for part in self.parts)

    @property
    def nbytes(self) -> int:
        """About how many bytes the samples have, or -1."""
        return -1 if any(part.nbytes < 0 for part in self.parts) else sum(part.nbytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What a conversion has done.

    Attributes:
        path: where the dataset is.
        samples: its number of samples.
        shards: its number of shards.
        nbytes: bytes of its shards.
        skipped: every sample that was left out, and why.
        resumed: parts that an earlier, interrupted run had finished.
    """

    path: str
    samples: int
    shards: int
    nbytes: int
    skipped: tuple[Skipped, ...]
    resumed: int


@dataclass(slots=True)
class _Count:
    """What has been written so far."""

    parts: int
    progress: Progress | None
    passes: int
    done: dict[int, PartReport] = field(default_factory=dict)

    def add(self, report: PartReport) -> None:
        self.done[report.number] = report
        if self.progress is not None:
            self.progress(*self.written(), len(self.done), self.parts * self.passes)

    def again(self, samples: int) -> None:
        """So many samples have been written in their new order, too; in parts, as if they had any."""
        if self.progress is not None:
            first, nbytes = self.written()
            second = [whole * samples // max(first, 1) for whole in (nbytes, self.parts)]
            self.progress(first + samples, nbytes + second[0], self.parts + second[1], self.parts * self.passes)

    def written(self) -> tuple[int, int]:
        """Samples and bytes of the parts that are done."""
        reports = self.done.values()
        return sum(one.samples for one in reports), sum(one.nbytes for one in reports)


def plan(source: str | os.PathLike[str] | Source, **options: Unpack[ConvertKeywords]) -> Plan:
    """What `convert` would do with these arguments; nothing is written.

    Raises:
        FormatError, OptionError: see `convert`.
    """
    found = _source(source, options)
    chosen = choose(options)
    parts = found.parts(int(chosen.shard_bytes))
    return Plan(found.kind, _schema(found, parts, chosen, options), parts)


def convert(
    source: str | os.PathLike[str] | Source, out: str | os.PathLike[str], **options: Unpack[ConvertKeywords]
) -> ConvertReport:
    """Make a dataset of shards from a source, in parallel, so that an interrupted run can go on.

    The result is the same, byte for byte, whatever the number of workers. Nothing is at `out` until all of it is.

    Args:
        source: a path, whose kind is recognised, or a `Source`.
        out: the folder to make.
        **options: `kind`: what the source is, if that cannot be recognised. `source_options`: keywords of that kind.
            `schema`: the fields (default: worked out from the first samples). `fields`: those to keep. `casts`: field
            names to element types that they are cast to. `ragged`: names of fields whose first dimension varies.
            `map`: ``"package.module:function"``, which gets each sample as a dict and returns the one to be written.
            `shard_bytes`: about how large a shard gets. `shuffle_seed`: write the samples in a random order, the same
            for the same seed (default: in that of the source). `pack`: ``{"field": name, "length": n}``: cut the tokens
            of all documents into blocks of `n`, with ``"eos": id`` a token behind each document, with ``"pad": id`` the
            last block filled up rather than left out; the guide says which fields blocks have. `on_error`: ``"stop"``,
            or ``"skip"``: leave samples out that cannot be converted, and report each. `workers`: how many processes,
            or threads where they do as well (default: one for each processor; 1: this one). `executor`: any
            `concurrent.futures.Executor`, for instance a cluster's, over a file system that all share. `overwrite`:
            replace a dataset that is at `out`. `restart`: throw away what an interrupted conversion with other
            arguments has left. `progress`: called with samples, bytes, finished parts and parts.

    Raises:
        FormatError: if the source is not recognised, or is damaged.
        ReadError: if a sample cannot be converted, or a worker was lost; the next run goes on from there.
        DiskFullError: if there is no room, which is looked at before each part; likewise.
        WriteError: if the disk fails; likewise.
        OptionError: if an argument cannot be used, or another conversion to `out` was interrupted.
        DatasetExistsError: if there is something at `out` that must not be replaced.
    """
    found = _source(source, options)
    chosen = choose(options)
    path = absolute(out)
    publish_check(path, overwrite=options.get("overwrite", False))
    given = options.get("schema")
    wanted = {
        "source": found.describe(),
        # Whether bad samples are skipped changes nothing of parts that have none, or whose bad ones were skipped.
        "options": {name: value for name, value in chosen.to_json().items() if name != "on_error"},
        "schema": None if given is None else _as_schema(given).to_json(),
    }
    stage = Stage(path, wanted, restart=options.get("restart", False))
    done = False
    try:
        report = _run(found, chosen, stage, path, options)
        done = True
    finally:
        stage.close(remove=done)
    return report


def _run(source: Source, chosen: ConvertOptions, stage: Stage, path: str, options: ConvertKeywords) -> ConvertReport:
    if stage.planned is None:
        parts = source.parts(int(chosen.shard_bytes))
        stage.keep(_schema(source, parts, chosen, options), parts)
    schema, parts = stage.planned or (Schema({}), [])
    twice = chosen.shuffle_seed is not None
    count = _Count(len(parts), options.get("progress"), 2 if twice else 1)
    for number in range(len(parts)):
        if (report := stage.finished(number)) is not None:
            count.add(report)
    resumed = len(count.done)
    tasks = [
        Task(source, part, number, schema.to_json(), stage.folder, chosen)
        for number, part in enumerate(parts)
        if number not in count.done
    ]
    room = Room(path, schema, parts, count.done, twice=twice)
    overwrite = options.get("overwrite", False)
    try:
        _convert_all(tasks, options, count, room)
        if twice:
            room.begin_again()
            ordered = put_in_order(stage.folder, schema, len(parts))
            shuffle_into(path, ordered, chosen, overwrite=overwrite, progress=count.again)
        else:
            publish(path, stage.folder, schema, len(parts), overwrite=overwrite)
    except DiskFullError as error:
        raise room.explain(error) from error
    skipped = tuple(one for number in sorted(count.done) for one in count.done[number].skipped)
    shards = [entry for entry in os.scandir(path) if entry.name.endswith(".safetensors")]
    nbytes = sum(entry.stat().st_size for entry in shards)
    return ConvertReport(path, count.written()[0], len(shards), nbytes, skipped, resumed)


def _source(source: str | os.PathLike[str] | Source, options: ConvertKeywords) -> Source:
    """The source that is meant; a path by its full name, as a cluster's workers have other working folders."""
    if isinstance(source, str | os.PathLike) and os.path.exists(source):
        source = absolute(source)
    found, pack = source_for(source, options.get("kind"), options.get("source_options")), options.get("pack")
    if pack is None:
        return found
    try:
        return PackedSource(found, Packing(**pack))
    except TypeError as error:
        raise OptionError(f"pack is {dict(pack)!r:.200}: {error}") from None


def choose(options: ConvertKeywords) -> ConvertOptions:
    """Those of the keywords that decide the result, checked.

    Raises:
        OptionError: if one cannot be used.
    """
    fields, casts = options.get("fields"), options.get("casts") or {}
    if isinstance(fields, str):
        raise OptionError(f"fields is the text {fields!r}", remedy=f"Pass a list: fields=[{fields!r}].")
    return ConvertOptions(
        shard_bytes=options.get("shard_bytes", "256MiB"),
        fields=None if fields is None else tuple(fields),
        casts=tuple(casts.items()),
        ragged=tuple(options.get("ragged", ())),
        map=options.get("map"),
        on_error=options.get("on_error", "stop"),
        shuffle_seed=options.get("shuffle_seed"),
    )


def _as_schema(given: Schema | Mapping[str, Field | str]) -> Schema:
    return given if isinstance(given, Schema) else Schema(given)


def _schema(source: Source, parts: list[Part], chosen: ConvertOptions, options: ConvertKeywords) -> Schema:
    given = options.get("schema")
    return schema_of(source, parts, chosen) if given is None else _as_schema(given)


def publish_check(path: str, *, overwrite: bool) -> None:
    """Refuse at once what could not be published in the end."""
    Publication(path, overwrite=overwrite).abandon()


def _convert_all(tasks: list[Task], options: ConvertKeywords, count: _Count, room: Room) -> None:
    workers = options.get("workers") or len(os.sched_getaffinity(0))
    executor = options.get("executor")
    if executor is None and (workers == 1 or len(tasks) < 2):
        for task in tasks:
            room.begin(task.number)
            count.add(convert_part(task))
        return
    threads = tasks[0].source.threads and tasks[0].options.map is None
    with _executor(executor, min(workers, len(tasks)), threads=threads) as found:
        _spread(found, tasks, count, room, most=4 * workers)


@contextmanager
def _executor(given: Executor | None, workers: int, *, threads: bool) -> Iterator[Executor]:
    """The user's executor, which is left open, or one of our own."""
    if given is not None:
        yield given
        return
    own: Executor
    if threads:
        own = ThreadPoolExecutor(workers, "gdsload-convert")
    else:  # spawned: forks of a process with torch's threads in it may hang
        context = multiprocessing.get_context("spawn")
        # One thread each: there is a process for each processor.
        own = ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,))
    try:
        yield own
    finally:
        own.shutdown(wait=True, cancel_futures=True)


def _spread(executor: Executor, tasks: list[Task], count: _Count, room: Room, *, most: int) -> None:
    """Have all tasks done, some of them handed out at once. The first error ends it, when what was begun has ended."""
    left = iter(tasks)
    running: set[Future[PartReport]] = set()
    try:
        while True:
            for task in left:
                room.begin(task.number)
                running.add(executor.submit(convert_part, task))
                if len(running) >= most:
                    break
            if not running:
                return
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                count.add(future.result())
    except BrokenExecutor as error:
        raise ReadError(
            f"a worker was lost: {error}",
            remedy="It was killed, for want of memory perhaps. Run it again with fewer workers: it goes on from there.",
        ) from error
    finally:
        for future in running:
            future.cancel()
        wait(running)
