"""`gdsload merge`, `gdsload split` and `gdsload reshard`: shards made of shards."""

from __future__ import annotations

import argparse

from gdsload.conversion.rearrange import merge, reshard, split
from gdsload.tools.cli.convert import add_writing, running, summarise

__all__ = ["add_to"]

_PATH = "a dataset's folder, a folder of safetensors files, or one file"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    parser = commands.add_parser("merge", help="make one dataset of several, one behind the other")
    parser.add_argument("out", metavar="OUT", help="the folder to make")
    parser.add_argument("paths", metavar="PATH", nargs="+", help=_PATH)
    add_writing(parser)
    parser.set_defaults(run=_merge)
    parser = commands.add_parser("split", help="share a dataset's samples out to several new ones")
    parser.add_argument("path", metavar="PATH", help=_PATH)
    parser.add_argument("outs", metavar="OUT", nargs="+", help="the folders to make")
    parser.add_argument(
        "--sizes", nargs="+", type=_size, required=True, metavar="SIZE",
        help="how many samples each gets (9000), or which share of them (0.9); the last one may be left out",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, metavar="N", help="draw who gets which samples (default: in order)")
    add_writing(parser)
    parser.set_defaults(run=_split)
    parser = commands.add_parser("reshard", help="write a dataset anew in shards of another size")
    parser.add_argument("path", metavar="PATH", help=_PATH)
    parser.add_argument("out", metavar="OUT", help="the folder to make")
    add_writing(parser)
    parser.set_defaults(run=_reshard)


def _size(text: str) -> float:
    return int(text) if text.isdecimal() else float(text)


def _merge(chosen: argparse.Namespace) -> int:
    with running(chosen) as how:
        report = merge(chosen.paths, chosen.out, **how)
    summarise(report)
    return 0


def _split(chosen: argparse.Namespace) -> int:
    with running(chosen) as how:
        reports = split(chosen.path, chosen.outs, chosen.sizes, seed=chosen.seed, **how)
    for report in reports:
        summarise(report)
    return 0


def _reshard(chosen: argparse.Namespace) -> int:
    with running(chosen) as how:
        report = reshard(chosen.path, chosen.out, **how)
    summarise(report)
    return 0
