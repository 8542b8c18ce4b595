"""`gdsload convert SOURCE OUT`: a dataset as it is on disk, made into shards."""

from __future__ import annotations

import argparse
import json
import re
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from gdsload.conversion.allowance import DEFAULT_ALLOWANCE
from gdsload.conversion.recognise import KINDS
from gdsload.errors import ConversionError, GdsloadError, OptionError, Skipped
from gdsload.system.units import counted, format_bytes
from gdsload.tools.cli.source_options import HelpSource, add_source_options, as_pairs, source_options
from gdsload.tools.cli.terminal import Bar, say, say_wrapped
from gdsload.tools.cli.usage import Commands, Parser, add_list, script_folder
from gdsload.tools.cli.whole_file import refuse_unwritable, write_whole
from gdsload.tools.cli.writing import add_writing, listed, run_with_bar, show_notes, summarise

if TYPE_CHECKING:
    from gdsload.conversion.keywords import ConvertKeywords
    from gdsload.conversion.runner import ConversionPlan

_SHOWN = 10
_PACK = re.compile(r"(?P<field>.+?):(?P<length>[0-9]+)(?::(?P<dtype>u?int[0-9]+))?")
_EXAMPLES = """
gdsload convert photos/ shards/ --size 224 --dry-run
gdsload convert photos/ shards/ --size 224 --on-error skip --report bad.jsonl
gdsload convert corpus.parquet shards/ --pack input_ids:4096 --eos 2
gdsload convert --help-source images
"""


def add_to(commands: Commands[Parser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "convert", help="make shards of a dataset as it is on disk", example=_EXAMPLES,
        usage="gdsload convert SOURCE OUT [options]",
        description="Make shards of a dataset as it is on disk. An interrupted run goes on by the same command.\n"
        "A kind's own options, such as --size 224 or --keep-encoded of images, are listed by --help-source KIND.",
    )  # fmt: skip
    parser.add_argument("source", metavar="SOURCE", help="what is converted: a file or folder, or MODULE:NAME")
    parser.add_argument("out", metavar="OUT", help="the folder to make")
    source = parser.add_argument_group("the source")
    source.add_argument(
        "--kind", choices=list(KINDS), metavar="KIND", help="what SOURCE is (default: its files show it)"
    )
    source.add_argument(
        "--help-source", nargs="?", action=HelpSource, metavar="KIND", help="list a kind's options, or all kinds"
    )
    source.add_argument("--dry-run", action="store_true", help="print schema, counts and sizes, and write nothing")
    _add_samples(parser)
    bad = parser.add_argument_group("bad samples")
    bad.add_argument(
        "--on-error", choices=("stop", "skip"), default="stop", help="what a bad sample does (default: %(default)s)"
    )
    bad.add_argument(
        "--max-skipped", default=DEFAULT_ALLOWANCE, metavar="SHARE",
        help="with --on-error skip: how many at most, 5%% or 20; more is a failure (default: 1%%)",
    )  # fmt: skip
    bad.add_argument("--report", metavar="FILE", help="where skipped samples are listed, one JSON object a line")
    add_writing(parser)
    parser.set_defaults(run=_run, late=add_source_options)


def _add_samples(parser: Parser) -> None:
    samples = parser.add_argument_group("samples")
    add_list(samples, "--fields", metavar="NAME,...", help="keep these fields only (default: all)")
    samples.add_argument(
        "--cast", dest="casts", action="append", type=as_pairs, default=[], metavar="NAME=TYPE,...",
        help="cast fields; what TYPE does not hold is a bad sample, or with TYPE:clip clipped and counted",
    )  # fmt: skip
    add_list(samples, "--ragged", default=[], metavar="NAME,...", help="fields whose first dimension varies")
    add_list(samples, "--fixed", default=[], metavar="NAME,...", help="lists that are all of one length")
    samples.add_argument("--map", metavar="MODULE:FUNCTION", help="gets each sample as a dict, returns what is written")
    samples.add_argument(
        "--pack", metavar="FIELD:LENGTH",
        help="cut the tokens of all documents into blocks; FIELD:LENGTH:int64 if they are bytes of that type",
    )  # fmt: skip
    samples.add_argument("--eos", type=int, metavar="ID", help="with --pack: a token to put after each document")
    samples.add_argument(
        "--pad", type=int, metavar="ID", help="with --pack: fill the last block (default: leave it out)"
    )


def _run(chosen: argparse.Namespace) -> int:
    options = _options(chosen)
    script_folder()
    try:
        return _dry_run(chosen, options) if chosen.dry_run else _convert(chosen, options)
    except GdsloadError as error:
        if chosen.json:
            skipped = error.skipped if isinstance(error, ConversionError) else ()
            tree = {"ok": False, "error": type(error).__name__, "message": chosen.typed(error)}
            say(json.dumps({**tree, "skipped": listed(skipped, chosen.typed)}, indent=1))
        raise


def _options(chosen: argparse.Namespace) -> ConvertKeywords:
    return {
        "kind": chosen.kind,
        "source_options": source_options(chosen),
        "fields": chosen.fields,
        "casts": {name: str(kind) for given in chosen.casts for name, kind in given.items()},
        "ragged": chosen.ragged,
        "fixed": chosen.fixed,
        "map": chosen.map,
        "on_error": chosen.on_error,
        "max_skipped": chosen.max_skipped,
        "pack": _packing(chosen),
        "shard_bytes": chosen.shard_bytes,
    }  # fmt: skip


def _dry_run(chosen: argparse.Namespace, options: ConvertKeywords) -> int:
    with closing(Bar(sys.stderr, hidden=chosen.quiet)) as bar:
        bar.say("starting…")
        from gdsload.conversion.runner import plan

        bar.say("looking at the source…")
        found = plan(chosen.source, **options)
    if chosen.json:
        say(json.dumps(_planned(chosen, found), indent=1, ensure_ascii=False))
        return 0
    say(f"{found.kind}, {counted(len(found.parts), 'part')}")
    say(f"samples: {found.samples if found.samples >= 0 else 'known when they are read'}")
    say(f"size: {f'about {format_bytes(found.nbytes)}' if found.nbytes >= 0 else 'known when they are read'}")
    show_notes(found.notes, chosen.typed)
    for name, field in found.schema.items():
        say(f"  {name}: {field}")
    return 0


def _planned(chosen: argparse.Namespace, found: ConversionPlan) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "parts": len(found.parts),
        "samples": found.samples if found.samples >= 0 else None,
        "bytes": found.nbytes if found.nbytes >= 0 else None,
        "notes": list(map(chosen.typed, found.notes)),
        "schema": found.schema.to_json(),
    }


def _convert(chosen: argparse.Namespace, options: ConvertKeywords) -> int:
    if chosen.report is not None:  # before hours of work
        refuse_unwritable(chosen.report, "report")
    try:
        with run_with_bar(chosen) as how:
            from gdsload.conversion.runner import convert

            both: ConvertKeywords = {**options, **how}
            report = convert(chosen.source, chosen.out, **both)
    except ConversionError as error:
        _write_report(chosen, error.skipped)
        _tell(chosen, error.skipped)
        raise
    _write_report(chosen, report.skipped)  # first: the output may go to a full disk
    summarise(chosen, [report])
    _tell(chosen, report.skipped)
    return 0


def _tell(chosen: argparse.Namespace, skipped: tuple[Skipped, ...]) -> None:
    """Name the first of the skipped samples."""
    report = chosen.report
    if skipped and not (chosen.json or chosen.quiet):
        were = f"{counted(len(skipped), 'sample')} {'was' if len(skipped) == 1 else 'were'} skipped"
        say(f"{were}{f', all listed in {report}' if report else ''}:")
        for one in skipped[:_SHOWN]:
            say_wrapped(f"{one.key}: {chosen.typed(one.reason)}", first="  ", rest="    ")
        if len(skipped) > _SHOWN:
            say(f"  and {len(skipped) - _SHOWN} more{'' if report else '; --report FILE lists them all'}")


def _write_report(chosen: argparse.Namespace, skipped: tuple[Skipped, ...]) -> None:
    if chosen.report is None:
        return
    lines = (json.dumps(one) + "\n" for one in listed(skipped, chosen.typed))
    write_whole(chosen.report, "".join(lines).encode(), "report")


def _packing(chosen: argparse.Namespace) -> dict[str, Any] | None:
    if chosen.pack is None:
        if chosen.eos is not None or chosen.pad is not None:
            raise OptionError("--eos and --pad are for --pack")
        return None
    found = _PACK.fullmatch(chosen.pack)
    if found is None:
        raise OptionError(f"--pack is {chosen.pack!r}, not FIELD:LENGTH")
    kind = {} if found["dtype"] is None else {"dtype": found["dtype"]}
    return {"field": found["field"], "length": int(found["length"]), "eos": chosen.eos, "pad": chosen.pad, **kind}
