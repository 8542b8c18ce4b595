"""`gdsload demo`: the whole way from data to a trained network."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from gdsload.tools.cli.terminal import Bar, say, say_wrapped
from gdsload.tools.cli.usage import Commands, Parser

_ENOUGH = 0.95


def add_to(commands: Commands[Parser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo", help="convert, train a small network and show how it went", usage="gdsload demo [options]",
        description="Convert scikit-learn's digits to shards, train a small network from them, and show how it went.\n"
        "The exit code is 1 if it reads less than 95 % of the held-out digits.",
        example="gdsload demo\ngdsload demo --epochs 10 --keep digits/",
    )  # fmt: skip
    parser.add_argument("--epochs", type=int, default=30, metavar="N", help="epochs to train (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of split, order and weights (default: 0)"
    )
    parser.add_argument("--device", default=None, help="where to train (default: the accelerator, or the CPU)")
    parser.add_argument(
        "--keep", metavar="FOLDER", help="leave the shards in FOLDER, which must not exist (default: none)"
    )
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    with closing(Bar(sys.stderr)) as bar:
        bar.say("starting…")
        from gdsload.tools.digits import run_demo

        bar.say("converting the digits…")
        result = run_demo(
            epochs=chosen.epochs, seed=chosen.seed, device=chosen.device, keep=chosen.keep,
            progress=lambda done, of: bar.show(done, of, what=f"epoch {done} of {of}"),
        )  # fmt: skip
    for line in str(result).splitlines():
        say_wrapped(line, rest=" " * 13)
    if result.accuracy > _ENOUGH:
        return 0
    say(f"too little: the demo is to read more than {_ENOUGH:.0%}; 30 epochs do, as a rule", sys.stderr)
    return 1
