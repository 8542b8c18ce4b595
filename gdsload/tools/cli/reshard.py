"""`gdsload merge`, `gdsload split` and `gdsload reshard`: shards made of shards."""

from __future__ import annotations

import argparse

from gdsload.tools.cli.usage import Commands, Parser, add_list
from gdsload.tools.cli.writing import add_writing, run_with_bar, summarise

_PATH = "a dataset's folder, a folder of safetensors files, or one file"


def add_to(commands: Commands[Parser]) -> None:
    """Add the commands."""
    merging = _add(commands, "merge", "make one dataset of several, one after the other", "OUT PATH... [options]",
                   "merge all/ january/ february/")  # fmt: skip
    merging.add_argument("out", metavar="OUT", help="the folder to make")
    merging.add_argument("paths", metavar="PATH", nargs="+", help=_PATH)
    splitting = _add(commands, "split", "divide a dataset's samples among several new ones",
                     "PATH OUT... --sizes SIZE,... [options]",
                     "split all/ train/ validation/ --sizes 0.9,0.1 --seed 1")  # fmt: skip
    splitting.add_argument("path", metavar="PATH", help=_PATH)
    splitting.add_argument("outs", metavar="OUT", nargs="+", help="the folders to make")
    add_list(
        splitting, "--sizes", required=True, metavar="SIZE,...",
        one=lambda text: int(text) if text.isdecimal() else float(text),
        help="how many samples each gets (9000), or which share of them (0.9); the last one may be left out",
    )  # fmt: skip
    splitting.add_argument("--seed", type=int, metavar="N", help="draw the samples of each (default: in order)")
    again = _add(commands, "reshard", "write a dataset again in shards of another size", "PATH OUT [options]",
                 "reshard all/ smaller/ --shard-bytes 64MiB")  # fmt: skip
    again.add_argument("path", metavar="PATH", help=_PATH)
    again.add_argument("out", metavar="OUT", help="the folder to make")
    for parser in (merging, splitting, again):
        add_writing(parser)
        parser.set_defaults(run=_run)


def _add(commands: Commands[Parser], name: str, said: str, takes: str, example: str) -> Parser:
    return commands.add_parser(
        name, help=said, usage=f"gdsload {name} {takes}", description=f"{said.capitalize()}.",
        example=f"gdsload {example}",
    )  # fmt: skip


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
