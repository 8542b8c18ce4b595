"""The record of a run: conditions, every trial, and what follows from them."""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from gdsload.tools.bench.turns import spread

__all__ = [
    "faults",
    "head",
    "keep",
    "machine",
    "merged",
    "pruned",
    "public",
    "publish",
    "ratio",
    "save",
    "spread",
    "summarise",
    "versions",
]

_PACKAGES = ("numpy", "torch", "xxhash")
_CACHE = "all files were written just before, and read once: they are in the page cache"


def machine(device: torch.device | None = None) -> dict[str, Any]:
    """The machine of a measurement: the processor, and the device if it is a GPU."""
    on_gpu = device is not None and device.type == "cuda"
    gpu = {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda} if on_gpu else {}
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "ram_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        **gpu,
    }


def versions() -> dict[str, str]:
    """Of what all contenders share; each contender names its own."""
    found = {"python": platform.python_version()}
    return found | {name: importlib.metadata.version(name) for name in _PACKAGES}


def public(arguments: list[str]) -> list[str]:
    """The command line without paths: those of this machine help nobody."""
    return [
        f"{argument.partition('=')[0]}=..." if os.sep in argument and "=" in argument else os.path.basename(argument)
        for argument in arguments
    ]


def head(module: str, arguments: list[str] | None, device: torch.device) -> dict[str, Any]:
    """The head of a record: the date, the command, the machine, and the versions.

    Args:
        module: the module that was run.
        arguments: its arguments; None: those of this process.
        device: the device.
    """
    return {
        "format": 1,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": ["python", "-m", module, *public(arguments or sys.argv[1:])],
        "machine": machine(device),
        "versions": versions(),
    }


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Of two contenders, round by round: what slows a whole round down falls out."""
    return spread([high / low for high, low in zip(above, below, strict=True)])


def save(record: dict[str, Any], path: Path) -> None:
    """Write a record, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def publish(
    begin: dict[str, Any],
    options: argparse.Namespace,
    render: Callable[[dict[str, Any]], str],
    **found: Any,
) -> int:
    """Write the record of cases out of the page cache, and print its table.

    Args:
        begin: what `head` says.
        options: the command line; of it `rounds`, `bytes` and `out`.
        render: makes the table of a record.
        found: what came of the cases, and under which further conditions.

    Returns:
        The exit status of the command: 0.
    """
    record = {**begin, "rounds": options.rounds, "bytes": options.bytes, "cache": _CACHE, **found}
    save(record, options.out)
    print(render(record), end="")
    return 0


def keep(begin: dict[str, Any], options: argparse.Namespace, cases: list[dict[str, Any]]) -> None:
    """Write the record of some cases, if the command line says where.

    Args:
        begin: what `head` gives.
        options: the command line; all of it but `out` are the conditions.
        cases: what was measured.
    """
    if options.out is not None:
        conditions = {name: value for name, value in vars(options).items() if name != "out"}
        save({**begin, "conditions": conditions, "cases": cases}, options.out)


def merged(before: list[dict[str, Any]], now: list[dict[str, Any]], run: int) -> list[dict[str, Any]]:
    """The entries of a record, with what run `run` has found in the places of what it had by the same names."""
    found = {entry["name"]: entry for entry in before}
    found |= {entry["name"]: {"run": run, **entry} for entry in now}
    return list(found.values())


def pruned(record: dict[str, Any], parts: tuple[str, ...]) -> dict[str, Any]:
    """A record without the runs that no entry is of any more, their numbers in the entries put right."""
    used = sorted({entry["run"] for part in parts for entry in record[part]})
    number = {run: place for place, run in enumerate(used)}
    entries = {part: [{**entry, "run": number[entry["run"]]} for entry in record[part]] for part in parts}
    return {**record, "runs": [record["runs"][run] for run in used], **entries}


def faults(check: dict[str, Any]) -> str:
    """The faults in an epoch's bytes, as compared with its source; empty if there are none."""
    counts = ", ".join(f"{check[key]} {key}" for key in ("missing", "repeated", "foreign") if check[key])
    return f"the epoch is not the source's: {counts}" if counts else ""


def summarise(entry: dict[str, Any]) -> None:
    """Add a contender's median and quartiles to its trials, and judge its bytes."""
    entry.update(spread([trial["rate"] for trial in entry["trials"]]))
    entry["busy_cores"] = statistics.median(trial["busy_cores"] for trial in entry["trials"])
    entry["first_batch_s"] = statistics.median(trial["first_batch_s"] for trial in entry["trials"])


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
