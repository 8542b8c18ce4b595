"""`gdsload convert SOURCE OUT`: a dataset as it lies on disk, made into shards."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any

from gdsload.conversion.allowance import DEFAULT_ALLOWANCE
from gdsload.conversion.clusters import ClusterExecutor, dask_executor, ray_executor
from gdsload.conversion.keywords import ConvertKeywords, RearrangeKeywords
from gdsload.conversion.recognise import KINDS
from gdsload.conversion.runner import ConvertReport, convert, plan
from gdsload.errors import ConversionError, OptionError, Skipped, WriteError
from gdsload.system.units import format_bytes
from gdsload.tools.cli.terminal import Bar, ended_by_signals, say

__all__ = ["add_to", "add_writing", "running", "summarise"]

_SHOWN = 10


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("convert", help="make shards of a dataset as it lies on disk")
    parser.add_argument("source", metavar="SOURCE", help="what is converted: a file or folder")
    parser.add_argument("out", metavar="OUT", help="the folder to make")
    parser.add_argument("--kind", choices=list(KINDS), help="what SOURCE is, if that cannot be recognised")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of that kind")
    parser.add_argument(
        "--keep-encoded", action="store_true", help="keep images as the files that they are: JPEG, PNG or WebP"
    )
    parser.add_argument("--fields", nargs="+", metavar="NAME", help="keep these fields only")
    parser.add_argument(
        "--fill", action="append", default=[], metavar="NAME=VALUE", help="what stands for a missing value of a field"
    )
    parser.add_argument("--cast", action="append", default=[], metavar="NAME=TYPE", help="cast a field")
    parser.add_argument("--ragged", nargs="+", default=[], metavar="NAME", help="fields whose first dimension varies")
    parser.add_argument("--fixed", nargs="+", default=[], metavar="NAME", help="lists that are all of one length")
    parser.add_argument("--map", metavar="MODULE:FUNCTION", help="gets each sample as a dict, returns what is written")
    parser.add_argument("--pack", metavar="FIELD:LENGTH", help="cut the tokens of all documents into blocks")
    parser.add_argument("--eos", type=int, metavar="ID", help="with --pack: a token to put behind each document")
    parser.add_argument("--pad", type=int, metavar="ID", help="with --pack: fill the last block, else it is left out")
    parser.add_argument("--on-error", choices=("stop", "skip"), default="stop", help="what a bad sample does")
    parser.add_argument(
        "--max-skipped", default=DEFAULT_ALLOWANCE, metavar="SHARE",
        help="with --on-error skip: how many at most, 5%% or 20; more is a failure (default: 1%%)",
    )  # fmt: skip
    parser.add_argument("--report", metavar="FILE", help="where skipped samples are listed, one JSON object a line")
    add_writing(parser)
    parser.add_argument("--dry-run", action="store_true", help="print schema, counts and sizes, and write nothing")
    parser.set_defaults(run=_run)


def add_writing(parser: argparse.ArgumentParser) -> None:
    """Add the options of all commands that write datasets."""
    parser.add_argument("--shard-bytes", default="256MiB", metavar="SIZE", help="about how large a shard gets")
    parser.add_argument("--shuffle-seed", type=int, metavar="N", help="write the samples in a random order")
    parser.add_argument(
        "--pack-fields", nargs="*", metavar="NAME",
        help="store these fields together, or none; without it those of a few bytes, or what is already",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, metavar="N", help="how many at once (default: one for each processor)")
    cluster = parser.add_mutually_exclusive_group()
    cluster.add_argument("--dask", metavar="ADDRESS", help="let a Dask cluster do it, whose machines share the files")
    cluster.add_argument("--ray", metavar="ADDRESS", help="let a Ray cluster do it")
    parser.add_argument(
        "--spread-over", action="append", default=[], metavar="DIR",
        help="put the shards into folders in DIR, and links to them into OUT; once for each drive",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace a dataset that is there")
    parser.add_argument("--restart", action="store_true", help="throw away what another, interrupted run left")


@contextmanager
def running(chosen: argparse.Namespace) -> Iterator[RearrangeKeywords]:
    """What these options say of the run, with a bar while it lasts, which SIGTERM ends as Ctrl-C does."""
    bar = Bar(sys.stderr)

    with ended_by_signals() as again, closing(bar), _cluster(chosen) as executor:

        def show(samples: int, nbytes: int, parts: int, of: int) -> None:
            again()
            bar.show(parts, of, samples=samples, nbytes=nbytes)

        yield {
            "shard_bytes": chosen.shard_bytes,
            "shuffle_seed": chosen.shuffle_seed,
            "pack_fields": chosen.pack_fields,
            "workers": executor.workers if executor and chosen.workers is None else chosen.workers,
            "executor": executor,
            "overwrite": chosen.overwrite,
            "spread_over": chosen.spread_over,
            "restart": chosen.restart,
            "progress": show,
        }


def _cluster(chosen: argparse.Namespace) -> AbstractContextManager[ClusterExecutor | None]:
    if chosen.dask is not None:
        return dask_executor(chosen.dask)
    return nullcontext() if chosen.ray is None else ray_executor(chosen.ray)


def summarise(report: ConvertReport) -> None:
    """Print what came of it."""
    print(f"{report.path}: {report.samples} samples in {report.shards} shards, {format_bytes(report.nbytes)}")
    for note in report.notes:
        say(f"note: {note}")
    if report.resumed:
        print(f"{report.resumed} parts were there from an interrupted run")


def _run(chosen: argparse.Namespace) -> int:
    given = {name: _value(text) for name, text in map(_pair, chosen.option)}
    if chosen.fill:
        given["fill"] = {name: _value(text) for name, text in map(_pair, chosen.fill)}
    options: ConvertKeywords = {
        "kind": chosen.kind,
        "source_options": given | ({"keep_encoded": True} if chosen.keep_encoded else {}),
        "fields": chosen.fields,
        "casts": dict(map(_pair, chosen.cast)),
        "ragged": chosen.ragged,
        "fixed": chosen.fixed,
        "map": chosen.map,
        "on_error": chosen.on_error,
        "max_skipped": chosen.max_skipped,
        "pack": _packing(chosen),
        "shard_bytes": chosen.shard_bytes,
    }
    if chosen.dry_run:
        found = plan(chosen.source, **options)
        print(f"{found.kind}, {len(found.parts)} parts")
        print(f"samples: {found.samples if found.samples >= 0 else 'known when they are read'}")
        print(f"size: {_about(found.nbytes)}")
        if found.images is not None:
            print(f"  images as the files that they are (--keep-encoded): {_about(found.images.encoded)}")
            print(f"  images decoded: {_about(found.images.decoded)}")
        for note in found.notes:
            say(f"note: {note}")
        for name, field in found.schema.items():
            print(f"  {name}: {field}")
        return 0
    _check_report(chosen.report)
    try:
        with running(chosen) as how:
            report = convert(chosen.source, chosen.out, **{**options, **how})
    except ConversionError as error:
        _tell(error.skipped, chosen.report)
        raise
    summarise(report)
    _tell(report.skipped, chosen.report)
    return 0


def _about(nbytes: int) -> str:
    return f"about {format_bytes(nbytes)}" if nbytes >= 0 else "known when they are read"


def _check_report(report: str | None) -> None:
    """Refuse a report that cannot be written before hours of work whose skipped samples it would list."""
    if report is None:
        return
    folder = os.path.dirname(report) or "."
    if not os.path.isdir(folder) or os.path.isdir(report):
        what = "it is a folder" if os.path.isdir(report) else "there is no such folder"
    elif not os.access(report if os.path.exists(report) else folder, os.W_OK):
        what = "permission denied"
    else:
        return
    raise WriteError(f"the report cannot be written: {what}", file=report)


def _tell(skipped: tuple[Skipped, ...], report: str | None) -> None:
    """Name the skipped samples: some on the screen, all in the report."""
    if skipped:
        print(f"{len(skipped)} samples were skipped{f', all listed in {report}' if report else ''}:")
        for one in skipped[:_SHOWN]:
            print(f"  {one.key}: {one.reason}")
        if len(skipped) > _SHOWN:
            print(f"  and {len(skipped) - _SHOWN} more{'' if report else '; --report FILE lists them all'}")
    if report is not None:
        try:
            with open(report, "w", encoding="utf-8") as file:
                file.writelines(json.dumps({"key": one.key, "reason": one.reason}) + "\n" for one in skipped)
        except OSError as error:
            raise WriteError(f"the report cannot be written: {error.strerror}", file=report) from error


def _packing(chosen: argparse.Namespace) -> dict[str, Any] | None:
    if chosen.pack is None:
        if chosen.eos is not None or chosen.pad is not None:
            raise OptionError("--eos and --pad are for --pack")
        return None
    field, _, length = chosen.pack.rpartition(":")
    if not field or not length.isdecimal():
        raise OptionError(f"--pack is {chosen.pack!r}, not FIELD:LENGTH")
    return {"field": field, "length": int(length), "eos": chosen.eos, "pad": chosen.pad}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise OptionError(f"{text!r} is not NAME=VALUE")
    return name, value


def _value(text: str) -> Any:
    """A value as JSON writes it, or else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
