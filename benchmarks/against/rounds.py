"""Trials of a case, by turns: now, before, before, now, and so on, each in a fresh process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.against.cases import Case
from benchmarks.against.trees import Tree
from benchmarks.processes import WorkerError
from benchmarks.record import faults

__all__ = ["run_case"]

_CHECK_S, _TRIAL_S = 600, 120
"""Limits, generous: they are there to end what hangs."""


def run_case(case: Case, trees: Sequence[Tree], rounds: int, scratch: Path) -> dict[str, Any]:
    """Compare the bytes of an epoch, once for each tree, then run the rounds.

    Returns:
        The case's name, unit and trials, by tree; and ``failed``, if something failed in either tree.
    """
    found: dict[str, Any] = {"name": case.name, "unit": case.unit, "trials": {tree.name: [] for tree in trees}}
    os.sync()  # so that no write-back of what was just written falls into a trial
    try:
        for tree in trees:
            if reason := faults(_asked(case, tree, "check", scratch)):
                raise WorkerError(f"{tree.name}, check: {reason}")
        for number in range(rounds):
            for tree in trees if number % 2 == 0 else reversed(trees):
                found["trials"][tree.name].append(_asked(case, tree, "trial", scratch))
            print(f"  {case.name}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    except (WorkerError, RuntimeError) as error:
        found["failed"] = str(error)
    return found


def _asked(case: Case, tree: Tree, op: str, scratch: Path) -> dict[str, Any]:
    """Have one thing done in a fresh process that has imported gdsload from a tree."""
    process = case.process(scratch, tree.packages)
    try:
        process.start()
        imported = process.ask({"op": "imported", "name": "gdsload"}, _TRIAL_S)["file"]
        if imported != str(tree.file):
            raise WorkerError(f"gdsload was imported from {imported}, not from {tree.file}")
        files = process.ask({"op": "files", **case.order}, _TRIAL_S)["files"]
        resident = case.place(files)
        answer = process.ask({"op": op, **case.order}, _CHECK_S if op == "check" else _TRIAL_S)
        return answer | {"resident": resident}
    except WorkerError as error:
        raise WorkerError(f"{tree.name}, {op}: {error}") from None
    finally:
        process.stop()
