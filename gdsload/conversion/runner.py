"""A conversion: tasks done by workers, and the dataset combined from their results.

A task is a run of parts that fill one shard, or some, so that shards have the size asked for, whatever parts a source
has.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Unpack, cast, get_type_hints

from gdsload.conversion.allowance import DEFAULT_ALLOWANCE, Allowance
from gdsload.conversion.combine import publish, put_in_order, shuffle_into
from gdsload.conversion.conversion_options import ConvertOptions
from gdsload.conversion.infer import looked_over
from gdsload.conversion.keywords import AllKeywords, ConvertKeywords, Progress, choose, divided
from gdsload.conversion.option_types import check_types, shows_options
from gdsload.conversion.packing import PackedSource, Packing
from gdsload.conversion.part import PartTask
from gdsload.conversion.provenance import metadata_of, notes_of
from gdsload.conversion.recognise import source_for
from gdsload.conversion.sizes import Room, bytes_of_shards, estimated_bytes, gathered, part_bytes
from gdsload.conversion.source import (
    OfDocuments,
    Part,
    Source,
    SourceSnapshot,
    may_crash,
    path_of,
    refuse_inside,
    taking,
)
from gdsload.conversion.spread import CONVERSION, do_all, first_reader
from gdsload.conversion.staging import PartReport, StagingFolder, part_report
from gdsload.errors import DiskFullError, FormatError, OptionError, ReadError, Skipped
from gdsload.order.checks import check_whole
from gdsload.shards.format.schema import Schema
from gdsload.shards.format.stored import packed_by
from gdsload.shards.publish import Publication
from gdsload.shards.shard_folders import check_targets, turned
from gdsload.shards.status import naming, read_error
from gdsload.system.crew import refuse_in_import
from gdsload.system.names import check_names
from gdsload.system.paths import absolute
from gdsload.system.units import counted

Place = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """The result that a conversion would have.

    Attributes:
        kind: the kind of the source, in words.
        schema: the fields of the result.
        parts: the parts of the source.
        notes: what should be known of the result: units, what was left out, what looks like a mistake.
    """

    kind: str
    schema: Schema
    parts: list[Part]
    notes: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Number of samples, or -1 if that is only known once they are read."""
        return _sum([part.samples for part in self.parts])

    @property
    def nbytes(self) -> int:
        """About how many bytes the samples will have, or -1."""
        return _sum([part_bytes(part, self.schema) for part in self.parts])


def _sum(numbers: list[int]) -> int:
    """Their sum, or -1 if one is -1: not known."""
    return -1 if -1 in numbers else sum(numbers)


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """The result of a conversion.

    Attributes:
        path: where the dataset is.
        samples: its number of samples.
        shards: its number of shards.
        nbytes: bytes of its shards.
        skipped: every sample that was left out, and why.
        resumed: parts that an earlier, interrupted run had finished.
        notes: what should be known of the result: units, what was left out, what looks like a mistake.
    """

    path: str
    samples: int
    shards: int
    nbytes: int
    skipped: tuple[Skipped, ...]
    resumed: int
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Count:
    """The progress of a conversion: the parts written so far, and how much of the source was skipped."""

    tasks: Sequence[Sequence[Part]]
    allowance: Allowance
    progress: Progress
    passes: int
    done: dict[int, PartReport] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)

    @property
    def source_samples(self) -> int:
        """Number of samples of the source, which may be documents that blocks are made of; or -1."""
        parts = [part for parts in self.tasks for part in parts]
        return _sum([part.made_of if part.made_of >= 0 else part.samples for part in parts])

    def begin(self, stage: StagingFolder) -> None:
        """Count what an interrupted run has finished, and say how far that is."""
        for number in range(len(self.tasks)):
            if (report := part_report(stage.folder, number)) is not None:
                self.add(report)
        self.tell()

    def add(self, report: PartReport) -> None:
        self.done[report.number] = report
        self.begun.pop(report.number, None)
        if report.skipped and self.source_samples >= 0:  # then it is known at once whether they are too many
            self.check()
        self.tell()

    def note(self, number: int, samples: int) -> None:
        """A part that is under way has so many samples by now."""
        if number not in self.done:
            self.begun[number] = samples
            self.tell()

    def tell(self) -> None:
        """Report the progress; a part under way counts by its samples, as far as it is known how many it will have."""
        (samples, nbytes), parts = self.written(), float(len(self.done))
        for number, made in self.begun.items():
            expected = [part.samples for part in self.tasks[number]]
            share = min(made / sum(expected), 1.0) if min(expected) >= 0 < sum(expected) else 0.0
            size = sum(max(part.nbytes, 0) for part in self.tasks[number])
            samples, nbytes, parts = samples + made, nbytes + round(size * share), parts + share
        self.progress(samples, nbytes, parts, len(self.tasks) * self.passes)

    def skipped(self) -> tuple[Skipped, ...]:
        """All that were skipped, in order."""
        return tuple(one for number in sorted(self.done) for one in self.done[number].skipped)

    def notes(self) -> tuple[str, ...]:
        """Notes for users on the samples written."""
        clipped: Counter[str] = Counter()
        for report in self.done.values():
            clipped.update(report.clipped)
        return tuple(
            f"{counted(number, 'value')} of {name!r} {'was' if number == 1 else 'were'} clipped"
            for name, number in sorted(clipped.items())
        )

    def check(self) -> None:
        """Refuse more bad samples than are allowed."""
        if skipped := self.skipped():
            known = self.source_samples
            self.allowance.check(skipped, known if known >= 0 else self.written()[0] + len(skipped))

    def again(self, samples: int) -> None:
        """So many samples have been written in their new order, too; in parts, as if they had any."""
        (first, nbytes), parts = self.written(), len(self.tasks)
        second = [whole * samples // max(first, 1) for whole in (nbytes, parts)]
        self.progress(first + samples, nbytes + second[0], parts + second[1], parts * self.passes)

    def written(self) -> tuple[int, int]:
        """Samples and bytes of the parts that are done."""
        reports = self.done.values()
        return sum(one.samples for one in reports), sum(one.nbytes for one in reports)


def plan(source: Any, **options: Unpack[AllKeywords]) -> ConversionPlan:
    """The plan of a conversion with these arguments, of which nothing is written; raises as `convert`."""
    given, chosen, found = _checked(source, options)
    with first_reader(_read_apart(source, found, given)) as call:
        _, schema, parts, notes = call(looked_over, found, _schema_of(given), chosen)
    return ConversionPlan(found.kind, schema, parts, notes)


@shows_options
def convert(source: Any, out: Place, **options: Unpack[AllKeywords]) -> ConvertReport:
    """Make a dataset of shards from a source, in parallel. An interrupted conversion can be continued.

    The result has the same bytes for any number of workers. It appears at `out` whole, at the end. Ctrl-C ends the
    conversion at once; the next call with the same arguments continues after the parts that are finished.

    Args:
        source: a path, whose kind is recognised, or a `Source`.
        out: the folder to make.
        **options: `kind`: what the source is, if that cannot be recognised. `source_options`: keywords of that kind;
            they may as well be given here: ``size=224`` is ``source_options={"size": 224}``. `gdsload convert
            --help-source KIND` says which ones a kind has.
            `schema`: the fields (default: worked out from the first samples). `fields`: the names of those
            to take, in this order; errors in others are ignored then. `map`: ``"package.module:function"``, which gets
            each sample as a dict of these fields and returns the sample to be written.
            `casts`: field names to element types that they are cast to; ``"uint8:clip"`` clips and counts what that
            does not hold. `ragged`: names of fields whose first dimension varies. `fixed`: names of lists that are all
            of one length, that of the first samples.
            `shard_bytes`: about how large a shard gets. `shuffle_seed`: write the samples in a random order, the same
            for the same seed (default: in that of the source). `pack`: ``{"field": name, "length": n}``: cut the tokens
            of all documents into blocks of `n`, with ``"eos": id`` a token after each document, with ``"pad": id`` the
            last block filled up rather than left out, with ``"dtype": "int64"`` documents that are bytes; the guide
            says which fields blocks have. `pack_fields`: which fields are stored together, as `ShardWriter` has it
            (default: ``"auto"``, so scalars are). `on_error`:
            ``"stop"``, or ``"skip"``: leave samples out that cannot be converted, and report each. `max_skipped`: how
            many of them at most, as a share, ``"5%"`` or 0.05, or a number (default: ``"1%"``, which of fewer than 100
            samples is none). `workers`: how many processes, or threads where they do as well (default: one for each
            processor; 1: this one, but for LMDB and MATLAB, whose libraries may crash). Processes import the script
            only if the source is defined in it, which then needs ``if __name__ == "__main__":``. `executor`: any
            `concurrent.futures.Executor`, for instance a cluster's, over a file system that all share. `overwrite`:
            replace a dataset that is at `out`, unless other files are
            with it. `spread_over`: folders, one on each drive, over which the shards are spread: see `ShardWriter`.
            `metadata`: metadata of the dataset, beside that of its source (`ShardDataset.metadata`).
            `restart`: throw away what an interrupted conversion with other arguments has left. `progress`:
            called with samples, bytes, finished parts and parts; a part under way counts by the share of its samples.

    Raises:
        FormatError: if the source is not recognised, is damaged, or ends the process that looks at it first.
        ConversionError: if a sample cannot be converted, or too many of them; in `skipped` are those left out.
        FileChangedError: if a file of the source has changed meanwhile.
        ReadError: if a worker was lost; the next run goes on from there.
        DiskFullError: if there is no room, which is looked at before the first part; likewise.
        WriteError: if the disk fails; likewise.
        OptionError: if an argument cannot be used, `out` is in the folder of the source, or another conversion to it
            was interrupted.
        DatasetExistsError: if there is something at `out` that must not be replaced.
    """
    refuse_in_import(CONVERSION)
    place = source if isinstance(source, str | os.PathLike) else out
    with naming(read_error, "the conversion failed", os.fspath(place)):
        return _convert(source, out, options)


def _convert(source: Any, out: Place, options: Mapping[str, Any]) -> ConvertReport:
    given, chosen, found = _checked(source, options)
    path = absolute(out)
    given["spread_over"] = targets = check_targets(given.get("spread_over"), path)
    refuse_inside(found, path, targets)
    publish_check(path, overwrite=given.get("overwrite", False), spread_over=targets)
    schema = _schema_of(given)
    apart = _read_apart(source, found, given)
    with ExitStack() as reading:
        call = reading.enter_context(first_reader(apart))
        look = call(SourceSnapshot, found)
        wanted = {
            "source": look.description,
            # Skipping bad samples does not change parts that have none, or whose bad ones were skipped.
            "options": {name: value for name, value in asdict(chosen).items() if name != "on_error"},
            "schema": None if schema is None else schema.to_json(),
        }
        stage = StagingFolder(path, wanted, restart=given.get("restart", False))
        done, before = False, _folder_at(path)
        try:
            if stage.planned is None:
                look.source, fields, parts, _ = call(looked_over, look.source, schema, chosen)
                stage.keep(fields, gathered(look.source, parts, fields, int(chosen.shard_bytes)))
            reading.close()
            report = _run(look, chosen, stage, path, given, apart=apart is not None)
            done = True
        except KeyboardInterrupt as error:
            done = _folder_at(path) != before  # it struck when the dataset was in its place
            if not done:
                error.add_note(stage.progress())
            raise
        finally:
            stage.close(remove=done)
    return report


def _folder_at(path: str) -> tuple[int, int] | None:
    """The file system and inode of a folder, which a dataset does not share with what it replaces; None: no folder."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _checked(source: Any, options: Mapping[str, Any]) -> tuple[ConvertKeywords, ConvertOptions, Source]:
    """The keywords of a conversion, those that decide its result, and its source."""
    given = divided(source, options)
    Allowance(given.get("max_skipped", DEFAULT_ALLOWANCE))
    _workers(given)  # refuses a number that is none
    return given, choose(given), _source(source, given)


def _workers(options: ConvertKeywords) -> int:
    given = options.get("workers")
    return len(os.sched_getaffinity(0)) if given is None else check_whole(given, "workers", 1)


def _read_apart(source: object, found: Source, options: ConvertKeywords) -> str | None:
    """The path of a source of files that other processes read, from the first look on; else None."""
    here = options.get("workers") == 1 or not isinstance(source, str | os.PathLike) or found.threads
    return path_of(found) if not here or may_crash(found) else None


def _schema_of(options: ConvertKeywords) -> Schema | None:
    given = options.get("schema")
    return given if given is None or isinstance(given, Schema) else Schema(given)


def _run(
    look: SourceSnapshot, chosen: ConvertOptions, stage: StagingFolder, path: str, options: ConvertKeywords, *,
    apart: bool,
) -> ConvertReport:  # fmt: skip
    source = look.source
    schema, tasks = stage.planned or (Schema({}), [])
    stored = packed_by(schema, chosen.pack_fields)
    metadata = metadata_of(source, schema, chosen, options)
    twice = chosen.shuffle_seed is not None
    allowance = Allowance(options.get("max_skipped", DEFAULT_ALLOWANCE))
    count = _Count(tasks, allowance, options.get("progress") or (lambda *_: None), 2 if twice else 1)
    count.begin(stage)
    over = [os.fspath(folder) for folder in options.get("spread_over") or ()]
    resumed = len(count.done)
    how: dict[str, Any] = {"overwrite": options.get("overwrite", False), "spread_over": over, "metadata": metadata}
    left = [
        # A task that makes one shard would put it on the first drive, and so would the next one.
        PartTask(source, parts, number, schema.to_json(), stage.folder, one, turned(over, number))
        for number, parts in enumerate(tasks)
        if number not in count.done
        for one in [replace(chosen, shard_bytes=bytes_of_shards(source, parts, schema, int(chosen.shard_bytes)))]
    ]
    room = Room(path, [estimated_bytes(parts, schema) for parts in tasks], count.done, twice, over)
    try:
        try:
            room.check()
            do_all(left, _workers(options), options.get("executor"), count.add, count.note, apart=apart)
        except (FormatError, ReadError):
            look.check()  # that a file changed is what is wrong with it then
            raise
        look.check()
        count.check()
        if twice:
            room.check_again()
            ordered = put_in_order(stage.folder, stored, len(tasks), over)
            shuffle_into(path, ordered, chosen, progress=count.again, **how)
        else:
            publish(path, stage.folder, stored, len(tasks), **how)
    except DiskFullError as error:
        raise room.explain(error) from error
    sizes = [entry.stat().st_size for entry in os.scandir(path) if entry.name.endswith(".safetensors")]
    notes = (*notes_of(source), *count.notes())
    return ConvertReport(path, count.written()[0], len(sizes), sum(sizes), count.skipped(), resumed, notes)


def _source(source: object, options: ConvertKeywords) -> Source:
    """The source that is meant; a path by its full name, as a cluster's workers have other working folders."""
    if isinstance(source, str | os.PathLike) and os.path.exists(source):
        source = absolute(source)
    found, pack = source_for(source, options.get("kind"), options.get("source_options")), options.get("pack")
    if pack is None:
        if options.get("shuffle_seed") is not None and isinstance(found, OfDocuments):
            found.check_shuffle()
        return taking(found, options.get("fields"))
    check_names("pack", pack, Packing.__dataclass_fields__)
    if missing := [name for name in ("field", "length") if name not in pack]:
        remedy = 'Pass {"field": name, "length": n}, say: which field has the tokens, and how many a block gets.'
        raise OptionError(f"is {dict(pack)!r:.200}: missing is {missing[0]!r}", option="pack", remedy=remedy)
    check_types(get_type_hints(Packing), pack)
    packing = Packing(**pack)
    return cast("Source", PackedSource(taking(found, (packing.field,)), packing))


def publish_check(path: str, *, overwrite: bool, spread_over: Sequence[str] = ()) -> None:
    """Refuse at once a result that could not be published in the end."""
    Publication(path, overwrite=overwrite, spread_over=spread_over).abandon()
