"""`gdsload inspect PATH`: the contents of a dataset, and its samples."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from gdsload.errors import OptionError
from gdsload.loader.described import HEADINGS, field_rows, table
from gdsload.system.units import counted, format_bytes
from gdsload.tools.cli.samples import facts, lines, metadata_lines
from gdsload.tools.cli.terminal import Bar, plain, say, say_wrapped, terminal_width
from gdsload.tools.cli.usage import Commands, Parser, as_count
from gdsload.tools.cli.whole_file import refuse_unwritable, write_whole

if TYPE_CHECKING:
    from gdsload.shards.catalog import Catalog
    from gdsload.tools.doctor.block import Volume

_PICTURES, _PICKS = 16, ("random", "first", "class")
_EXAMPLES = """
gdsload inspect shards/
gdsload inspect shards/ --html card.html
gdsload inspect shards/ --sample -1
gdsload inspect shards/ --image image --pick class --out sheet.png
"""


def add_to(commands: Commands[Parser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "inspect", help="show a dataset's fields, shards, counts and sizes", example=_EXAMPLES,
        usage="gdsload inspect PATH [options]",
        description="Show a dataset's fields, shards, counts and sizes; or a sample; or images of some samples; "
        "or write the dataset card, an HTML page.",
    )  # fmt: skip
    or_none = partial(as_count, at_least=0)
    parser.add_argument("path", metavar="PATH", help="a dataset's folder, a folder of safetensors files, or one file")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--shards", type=or_none, default=10, metavar="N", help="list at most N shards (default: %(default)s)"
    )
    parser.add_argument(
        "--sample", type=int, metavar="N", help="show this sample; -1 is the last one; with --image: start here"
    )
    form.add_argument("--html", metavar="FILE", help="write the dataset card: fields, classes, lengths, images, texts")
    form.add_argument("--image", metavar="FIELD", help="write a contact sheet of this field")
    parser.add_argument(
        "--pick", choices=_PICKS, help="samples on the sheet: random, the first, or of each class (default: random)"
    )
    parser.add_argument("--count", type=or_none, metavar="N", help=f"images on it (default: {_PICTURES})")
    parser.add_argument(
        "--out", metavar="FILE", help="the file to write; its name sets the format (default: sheet.png)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing FILE")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    for flag in ("pick", "count", "out"):
        if chosen.image is None and getattr(chosen, flag) is not None:
            raise OptionError(f"--{flag} is for a contact sheet", remedy="Pass --image FIELD, too.")
    if chosen.html is not None and chosen.sample is not None:
        raise OptionError("--html takes no --sample, since it shows random samples", remedy="Leave one out.")
    if chosen.image is not None:
        return _sheet(chosen)
    if chosen.html is not None:
        return _card(chosen)
    if chosen.sample is not None:
        return _sample(chosen)
    from gdsload.shards.catalog import open_catalog

    found = open_catalog(chosen.path)
    if chosen.json:
        say(json.dumps(_tree(found), indent=1, ensure_ascii=False))
    else:
        _show(found, chosen.shards)
    return 0


def _sample(chosen: argparse.Namespace) -> int:
    from gdsload.loader.dataset import ShardDataset

    sample = ShardDataset(chosen.path)[chosen.sample]
    if chosen.json:
        say(json.dumps(facts(sample), indent=1))
        return 0
    for line in lines(sample):
        say_wrapped(line, rest="    ")
    return 0


def _show(found: Catalog, shards: int) -> None:
    """Show the dataset, with the names of at most `shards` shards."""
    say(plain(found.path))
    count = f"{counted(found.samples, 'sample')} in {counted(len(found.sources), 'shard')}"
    say(f"{count}, {format_bytes(found.num_bytes)}")
    say(f"digest {found.digest}")
    for names in found.stored.packed:
        say_wrapped(f"stored together: {', '.join(names)}", rest="  ")
    for line in metadata_lines(found.metadata):
        say_wrapped(line, rest="  ")
    say("")
    _print_table([HEADINGS[:3], *field_rows(found.schema, {})])
    say("")
    rows = [("drive", "shards", "size")]
    for volume in _volumes(found.path):
        device = f" ({volume.device})" if volume.device else ""
        rows.append((f"{volume.point}{device}", str(volume.shards), format_bytes(volume.nbytes)))
    _print_table(rows)
    say("")
    rows = [("shard", "samples", "size")]
    rows += [
        (os.path.basename(source.path), str(source.samples), format_bytes(source.file_bytes))
        for source in found.sources[:shards]
    ]
    _print_table(rows)
    if shards < len(found.sources):
        say(f"and {len(found.sources) - shards} more")


def _sheet(chosen: argparse.Namespace) -> int:
    from gdsload.loader.dataset import ShardDataset
    from gdsload.tools.cli.sheet import pick_samples, save_sheet

    out: str = chosen.out or "sheet.png"
    _refuse_out(out, "sheet", chosen)
    how = chosen.pick or ("random" if chosen.sample is None else "first")
    count = _PICTURES if chosen.count is None else chosen.count
    dataset = ShardDataset(chosen.path)
    shown = save_sheet(dataset, chosen.image, pick_samples(dataset, how, count, first=chosen.sample or 0), out)
    which = {
        "random": "random samples",
        "class": "random samples of each class",
        "first": f"samples {shown[0]} to {shown[-1]}",
    }
    say(f"{out}: {counted(len(shown), 'image')}, {which[how]}")
    return 0


def _card(chosen: argparse.Namespace) -> int:
    out: str = chosen.html
    _refuse_out(out, "page", chosen)
    with closing(Bar(sys.stderr)) as bar:
        bar.say("starting…")
        from gdsload.loader.dataset import ShardDataset
        from gdsload.tools.cli.card import make_card

        bar.say("reading samples…")
        page = make_card(ShardDataset(chosen.path)).encode()
    write_whole(out, page, "page")
    say(f"{out}: {format_bytes(len(page))}; open it in a browser")
    return 0


def _refuse_out(out: str, what: str, chosen: argparse.Namespace) -> None:
    if os.path.lexists(out) and not chosen.overwrite:
        raise OptionError("the file already exists", file=out, remedy="Name another one, or pass --overwrite.")
    refuse_unwritable(out, what)


def _tree(found: Catalog) -> dict[str, object]:
    return {
        "path": found.path,
        "samples": found.samples,
        "bytes": found.num_bytes,
        "digest": found.digest,
        "metadata": found.metadata,
        "schema": found.schema.to_json(),
        "packed": [list(names) for names in found.stored.packed],
        "drives": [
            {"mount": volume.point, "device": volume.device, "shards": volume.shards, "bytes": volume.nbytes}
            for volume in _volumes(found.path)
        ],
        "shards": [
            {"file": os.path.basename(source.path), "samples": source.samples, "bytes": source.file_bytes}
            for source in found.sources
        ],
    }


def _volumes(path: str) -> tuple[Volume, ...]:
    from gdsload.tools.doctor.context import locate
    from gdsload.tools.doctor.system import System

    return locate(System(), path).volumes


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table; if the terminal is too narrow, print each row in two lines."""
    lines, width = table(rows), terminal_width(sys.stdout)
    if width is not None and max(map(len, lines)) > width:
        lines = [line for name, *more in rows[1:] for line in (name, f"  {' · '.join(more)}")]
    for line in lines:
        say(plain(line))
