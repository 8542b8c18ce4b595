"""`gdsload verify PATH`: every byte of a dataset against its checksum."""

from __future__ import annotations

import argparse
import sys

from gdsload.dataset import ShardDataset
from gdsload.units import format_bytes

__all__ = ["add_to"]


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("verify", help="compare every byte of a dataset with its checksum")
    parser.add_argument("path", metavar="PATH", help="a dataset's folder, a folder of safetensors files, or one file")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    dataset = ShardDataset(chosen.path)
    shown = sys.stderr.isatty()
    try:
        report = dataset.verify(progress=_show if shown else None)
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
    print(f"{report.shards} shards, {format_bytes(report.checked_bytes)} as they were written")
    if report.unchecked_bytes:
        print(f"{format_bytes(report.unchecked_bytes)} have no checksums: gdsload did not write them")
    return 0


def _show(done: int, of: int) -> None:
    sys.stderr.write(f"\r\x1b[K{format_bytes(done)} of {format_bytes(of)}")
    sys.stderr.flush()
