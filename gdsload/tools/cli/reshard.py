"""`gdsload merge`, `gdsload split` and `gdsload reshard`: shards made of shards."""

from __future__ import annotations

import argparse

from gdsload.tools.cli.usage import Commands, Parser, add_list
from gdsload.tools.cli.writing import NAMES, add_writing, run_with_bar, summarise

_PATH = "a dataset's folder, a folder of safetensors files, or one file"


def add_to(commands: Commands[Parser]) -> None:
    """Add the commands."""
    parser = commands.add_parser(
        "merge", help="make one dataset of several, one after the other", usage="gdsload merge OUT PATH... [options]",
        description="Make one dataset of several, one after the other.",
        example="gdsload merge all/ january/ february/",
    )  # fmt: skip
    parser.add_argument("out", metavar="OUT", help="the folder to make")
    parser.add_argument("paths", metavar="PATH", nargs="+", help=_PATH)
    add_writing(parser)
    parser.set_defaults(run=_run, names=NAMES)
    parser = commands.add_parser(
        "split", help="share a dataset's samples out to several new ones",
        usage="gdsload split PATH OUT... --sizes SIZE,... [options]",
        description="Share a dataset's samples out to several new ones.",
        example="gdsload split all/ train/ validation/ --sizes 0.9,0.1 --seed 1",
    )  # fmt: skip
    parser.add_argument("path", metavar="PATH", help=_PATH)
    parser.add_argument("outs", metavar="OUT", nargs="+", help="the folders to make")
    add_list(
        parser, "--sizes", one=_size, required=True, metavar="SIZE,...",
        help="how many samples each gets (9000), or which share of them (0.9); the last one may be left out",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, metavar="N", help="draw the samples of each (default: in order)")
    add_writing(parser)
    parser.set_defaults(run=_run, names=NAMES)
    parser = commands.add_parser(
        "reshard", help="write a dataset again in shards of another size", usage="gdsload reshard PATH OUT [options]",
        description="Write a dataset again in shards of another size.",
        example="gdsload reshard all/ smaller/ --shard-bytes 64MiB",
    )  # fmt: skip
    parser.add_argument("path", metavar="PATH", help=_PATH)
    parser.add_argument("out", metavar="OUT", help="the folder to make")
    add_writing(parser)
    parser.set_defaults(run=_run, names=NAMES)


def _size(text: str) -> float:
    return int(text) if text.isdecimal() else float(text)


def _run(chosen: argparse.Namespace) -> int:
    with run_with_bar(chosen) as how:
        from gdsload.conversion.rearrange import merge, reshard, split

        if chosen.command == "merge":
            reports = [merge(chosen.paths, chosen.out, **how)]
        elif chosen.command == "split":
            reports = list(split(chosen.path, chosen.outs, chosen.sizes, seed=chosen.seed, **how))
        else:
            reports = [reshard(chosen.path, chosen.out, **how)]
    summarise(chosen, reports)
    return 0
