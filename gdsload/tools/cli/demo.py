"""`gdsload demo`: the whole way from data to a trained network."""

from __future__ import annotations

import argparse

from gdsload.tools.digits import run_demo

__all__ = ["add_to"]


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo", help="convert scikit-learn's digits to shards, train a small network from them, and show how it went"
    )
    parser.add_argument("--epochs", type=int, default=30, metavar="N", help="epochs to train (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of split, order and weights (default: 0)"
    )
    parser.add_argument("--device", default=None, help="where to train (default: the accelerator, or the CPU)")
    parser.add_argument(
        "--keep", default=None, metavar="FOLDER", help="leave the shards in FOLDER, which must not exist"
    )
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    result = run_demo(epochs=chosen.epochs, seed=chosen.seed, device=chosen.device, keep=chosen.keep)
    print(result)
    return 0 if result.accuracy > 0.95 else 1
