"""`gdsload bench PATH`: how fast a dataset reaches the device, straight and by way of RAM."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from gdsload.backends.registry import BACKENDS
from gdsload.backends.request import BACKEND_CHOICES
from gdsload.system.units import format_bytes, parse_bytes
from gdsload.tools.bench import make_plan, run_bench
from gdsload.tools.cli.terminal import plain, say

__all__ = ["add_to", "add_what", "aligned", "as_seconds", "conditions", "figures", "render_text", "what_of"]

_HEADINGS = ("", "GB/s", "quartiles", "first batch", "waited", "path by counters")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("bench", help="measure SSD→VRAM beside SSD→RAM→VRAM, cold and hot")
    add_what(parser)
    ways = "; ".join(f"{name}: {row.summary}" for name, row in BACKENDS.items())
    parser.add_argument(
        "--backends", nargs="+", choices=BACKEND_CHOICES, default=["auto"],
        help=f"one contender each (default: auto). {ways}",
    )  # fmt: skip
    parser.add_argument("--seconds", type=as_seconds, default=None, metavar="S", help="end a trial after S seconds")
    parser.add_argument(
        "--max-bytes", type=_size, default=None, metavar="SIZE", help='end a trial after SIZE of samples ("4GiB")'
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--cold-only", action="store_true", help="only with the shards out of the page cache")
    only.add_argument("--hot-only", action="store_true", help="only with the shards in the page cache")
    parser.set_defaults(run=_run)


def add_what(parser: argparse.ArgumentParser) -> None:
    """Add what every measurement has to be told; `what_of` reads it."""
    parser.add_argument("path", metavar="PATH", help="a dataset's folder, a folder of safetensors files, or one file")
    parser.add_argument("--json", action="store_true", help="print the record: conditions, and every trial")
    parser.add_argument(
        "--batch-size", type=_count, default=None, metavar="N", help="samples of a batch (default: about 16 MiB)"
    )
    parser.add_argument("--shuffle", choices=("none", "full", "block"), default="none", help="(default: %(default)s)")
    parser.add_argument("--device", default=None, help="where batches go (default: the accelerator, or the CPU)")
    parser.add_argument(
        "--trials", type=_count, default=5, metavar="N", help="timed runs of each contender (default: %(default)s)"
    )


def what_of(chosen: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `make_plan`, from those that `add_what` added."""
    return {
        "path": chosen.path,
        "batch_size": chosen.batch_size,
        "shuffle": False if chosen.shuffle == "none" else chosen.shuffle,
        "device": chosen.device,
        "trials": chosen.trials,
        "seconds": chosen.seconds,
    }


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def as_seconds(text: str) -> float:
    """A time that a trial can take."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no time")
    return number


def _size(text: str) -> int:
    return parse_bytes(text, "--max-bytes", at_least=1)


def _run(chosen: argparse.Namespace) -> int:
    plan = make_plan(**what_of(chosen), backends=tuple(chosen.backends), max_bytes=chosen.max_bytes)
    record = run_bench(plan, cold=not chosen.hot_only, hot=not chosen.cold_only)
    say(json.dumps(record, indent=1) if chosen.json else render_text(record))
    return 0


def render_text(record: dict[str, Any]) -> str:
    """The record for people: conditions, then a table for each state of the cache."""
    lines = [*conditions(record), *_contenders(record)]
    for name in ("cold", "hot"):
        found = record[name]
        if found is None:
            continue
        lines.append("")
        if not found["contenders"]:
            lines.append(found["state"])
            continue
        lines += [
            f"{name} ({found['checked']})",
            *aligned([_HEADINGS, *((*figures(entry), _paths(entry)) for entry in found["contenders"])]),
        ]
        lines += map(_why, found["contenders"])
        lines += [f"warning: {found['warning']}"] if found["warning"] else []
    lines += ["", *(f"- {note}" for note in record["conditions"]["notes"])]
    return "\n".join(map(plain, lines))


def conditions(record: dict[str, Any]) -> Iterator[str]:
    """What was measured on what, and how."""
    dataset, given, machine = record["dataset"], record["conditions"], record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    bounds = [f"{given['trials']} trials, interleaved"]
    if given["seconds"] is not None:
        bounds.append(f"at most {given['seconds']:g} s each")
    if given["max_bytes"] is not None:
        bounds.append(f"at most {format_bytes(given['max_bytes'])} each")
    size = f"{dataset['samples']} samples, {format_bytes(dataset['bytes'])}, {dataset['shards']} shards"
    yield f"dataset    {dataset['path']}: {size}, {dataset['file_system']}"
    yield f"batches    {given['batch_size']} samples, shuffle {given['shuffle']}, to {given['device']}"
    yield f"trials     {', '.join(bounds)}"
    cores = f"{machine['cores']} cores, {format_bytes(machine['ram_bytes'])}, Linux {machine['kernel']}"
    yield f"machine    {machine['cpu']}, {cores}, GPU: {machine['gpu'] or 'none'}"
    yield f"versions   {versions}"


def _contenders(record: dict[str, Any]) -> Iterator[str]:
    for contender, checked in zip(record["contenders"], record["verified"], strict=True):
        equal = f"{checked['samples']} samples, {format_bytes(checked['bytes'])}, compared with ShardDataset and equal"
        yield f"{contender['name']:<15}{contender['way']}; {equal}"


def figures(entry: dict[str, Any]) -> tuple[str, ...]:
    """A contender's cells: name, GB/s and their spread, first batch, share of time that it was waited for."""
    rate = entry["gb_per_s"]
    return (
        entry["contender"],
        f"{rate['median']:.3g}",
        f"{rate['q1']:.3g} to {rate['q3']:.3g}",
        f"{entry['first_batch_s']['median'] * 1000:.3g} ms",
        f"{entry['wait_share']['median']:.0%}",
    )


def _why(entry: dict[str, Any]) -> str:
    last = entry["trials"][-1]
    return f"{entry['contender']}: backend {last['backend']}; {last['reason']}"


def _paths(entry: dict[str, Any]) -> str:
    paths = entry["bytes_by_path"]
    total = sum(paths.values())
    shares = ", ".join(f"{path} {count / total:.1%}" for path, count in paths.items() if count) or "nothing moved"
    copied = f", then {format_bytes(entry['copied_bytes'])} copied by the consumer" if entry["copied_bytes"] else ""
    return f"{shares} of {format_bytes(total)}{copied}" if total else shares


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of cells as lines, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
