"""Puts the tables of some records into the README beside this.

python -m benchmarks.gpu.tables --write
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu import ddp, ranks, shapes, training
from benchmarks.gpu.free_drive import __main__ as free_drive
from benchmarks.table import embed

__all__ = ["README", "TABLES", "main", "with_tables"]

README, _RESULTS = Path(__file__).with_name("README.md"), Path(__file__).parents[1] / "results"
TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "gpu-shapes": shapes.render,
    "gpu-images-long": shapes.render,
    "gpu-volumes-long": shapes.render,
    "gpu-training": training.render,
    "gpu-ranks": ranks.render,
    "gpu-ddp": ddp.render,
    "free-drive": free_drive.render,
    "two-drives-cpu": free_drive.render,
}
"""How each record is rendered; its name is also that of the marks around its table."""


def with_tables(text: str) -> str:
    """A document with the tables of today's records."""
    for name, render in TABLES.items():
        record = json.loads((_RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        text = embed(text, render(record), name)
    return text


def main(arguments: list[str] | None = None) -> int:
    """Print the README with its tables, or write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.tables", description="tables of records")
    parser.add_argument("--write", action="store_true", help="write the README")
    options = parser.parse_args(arguments)
    text = with_tables(README.read_text(encoding="utf-8"))
    if options.write:
        README.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
