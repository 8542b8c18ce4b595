"""`gdsload bench PATH`: how fast a dataset reaches the device, straight and by way of RAM."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from gdsload.backends.names import BACKEND_CHOICES, SUMMARIES
from gdsload.system.units import counted, format_bytes
from gdsload.tools.cli.terminal import Bar, plain, say, table, terminal_width, wrapped
from gdsload.tools.cli.usage import Commands, Parser, add_list, as_count, as_seconds, meant

_HEADINGS = ("", "GB/s", "quartiles", "first batch", "waited")
_WIDTH = 80
_EXAMPLES = """
gdsload bench shards/
gdsload bench shards/ --shuffle full --backends auto,bounce --seconds 5
gdsload bench shards/ --json > record.json
"""


def add_to(commands: Commands[Parser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench", help="measure SSD→VRAM beside SSD→RAM→VRAM, cold and hot", usage="gdsload bench PATH [options]",
        description="Measure how fast a dataset reaches the device, straight and by way of RAM.", example=_EXAMPLES,
    )  # fmt: skip
    parser.add_argument("path", metavar="PATH", help="a dataset's folder, a folder of safetensors files, or one file")
    parser.add_argument("--json", action="store_true", help="print the record: conditions, and every trial")
    parser.add_argument(
        "--batch-size", type=as_count, default=None, metavar="N", help="samples of a batch (default: about 16 MiB)"
    )
    parser.add_argument(
        "--shuffle", choices=("none", "full", "block"), default="none",
        help="the order of samples (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--device", default=None, help="where batches go (default: the accelerator, or the CPU)")
    parser.add_argument(
        "--trials", type=as_count, default=5, metavar="N", help="timed runs of each contender (default: %(default)s)"
    )
    ways = "; ".join(f"{name}: {summary}" for name, summary in SUMMARIES.items())
    add_list(
        parser, "--backends", one=_backend, metavar="NAME,...",
        help=f"one contender each (default: auto). {ways}",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=as_seconds, metavar="S", help="end a trial after S seconds (default: the epoch's)"
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--cold-only", action="store_true", help="only with the shards out of the page cache")
    only.add_argument("--hot-only", action="store_true", help="only with the shards in the page cache")
    parser.set_defaults(run=_run, names={"backend": "--backends"})


def _backend(text: str) -> str:
    if text not in BACKEND_CHOICES:
        raise argparse.ArgumentTypeError(
            f"there is no backend {text!r}. {meant(text, BACKEND_CHOICES)}There are {', '.join(BACKEND_CHOICES)}"
        )
    return text


def _run(chosen: argparse.Namespace) -> int:
    with closing(Bar(sys.stderr)) as bar:
        bar.say("looking at the dataset…")
        from gdsload.tools.bench import make_plan, run_bench

        plan = make_plan(
            chosen.path,
            batch_size=chosen.batch_size,
            shuffle=False if chosen.shuffle == "none" else chosen.shuffle,
            device=chosen.device,
            backends=tuple(chosen.backends or ["auto"]),
            trials=chosen.trials,
            seconds=chosen.seconds,
        )
        record = run_bench(
            plan, cold=not chosen.hot_only, hot=not chosen.cold_only,
            progress=lambda what, done, of: bar.show(done, of, what=what),
        )  # fmt: skip
    say(json.dumps(record, indent=1) if chosen.json else render_text(record, terminal_width(sys.stdout) or _WIDTH))
    return 0


def render_text(record: dict[str, Any], width: int = _WIDTH) -> str:
    """The record for people: conditions, then a table for each state of the cache, in lines of at most that width."""
    lines = [*_conditions(record, width), *_contenders(record, width)]
    for name in ("cold", "hot"):
        found = record[name]
        if found is None:
            continue
        lines.append("")
        if not found["contenders"]:
            lines += wrapped(plain(found["state"]), width, rest="  ")
            continue
        lines += wrapped(f"{name} ({found['checked']})", width, rest="  ")
        lines += table([_HEADINGS, *map(_figures, found["contenders"])])
        for entry in found["contenders"]:
            lines += wrapped(plain(_path(entry)), width, first="  ", rest="    ")
        lines += wrapped(f"warning: {found['warning']}", width, rest="  ") if found["warning"] else []
    return "\n".join([*lines, *_notes(record, width)])


def _notes(record: dict[str, Any], width: int) -> Iterator[str]:
    yield ""
    for note in record["conditions"]["notes"]:
        yield from wrapped(plain(note), width, first="- ", rest="  ")


def _conditions(record: dict[str, Any], width: int) -> Iterator[str]:
    """Lines about the dataset, the batches, the trials and the machine."""
    dataset, given, machine = record["dataset"], record["conditions"], record["machine"]
    bounds = [f"{counted(given['trials'], 'trial')}, interleaved"]
    if given["seconds"] is not None:
        bounds.append(f"at most {given['seconds']:g} s each")
    size = f"{counted(dataset['samples'], 'sample')}, {format_bytes(dataset['bytes'])}"
    where = f"{counted(dataset['shards'], 'shard')}, {dataset['file_system']}"
    cores = f"{counted(machine['cores'], 'core')}, {format_bytes(machine['ram_bytes'])}, Linux {machine['kernel']}"
    rows = {
        "dataset": f"{dataset['path']}: {size}, {where}",
        "batches": f"{counted(given['batch_size'], 'sample')}, shuffle {given['shuffle']}, to {given['device']}",
        "trials": ", ".join(bounds),
        "machine": f"{machine['cpu']}, {cores}, GPU: {machine['gpu'] or 'none'}",
        "versions": ", ".join(f"{name} {version}" for name, version in record["versions"].items()),
    }
    for name, text in rows.items():
        yield from wrapped(plain(text), width, first=f"{name:<11}", rest=" " * 11)


def _contenders(record: dict[str, Any], width: int) -> Iterator[str]:
    for contender, checked in zip(record["contenders"], record["verified"], strict=True):
        size = f"{counted(checked['samples'], 'sample')}, {format_bytes(checked['bytes'])}"
        text = f"{contender['way']}; {size}, compared with ShardDataset and equal"
        yield from wrapped(plain(text), width, first=f"{contender['name']:<14} ", rest=" " * 15)


def _figures(entry: dict[str, Any]) -> tuple[str, ...]:
    """A contender's cells: name, GB/s and their spread, first batch, share of time spent waiting."""
    rate = entry["gb_per_s"]
    return (
        plain(entry["contender"]),
        _figure(rate["median"]),
        f"{_figure(rate['q1'])} to {_figure(rate['q3'])}",
        _time(entry["first_batch_s"]["median"]),
        f"{entry['wait_share']['median']:.0%}",
    )


def _figure(number: float) -> str:
    """A number with three significant digits and no exponent."""
    return f"{number:.0f}" if number >= 1000 else f"{number:.3g}" if number >= 1e-4 or not number else f"{number:.7f}"


def _time(seconds: float) -> str:
    return f"{_figure(seconds)} s" if seconds >= 1 else f"{_figure(seconds * 1000)} ms"


def _path(entry: dict[str, Any]) -> str:
    """A line about a contender's backend: the bytes by path, from counters, and the reason for the backend."""
    paths, last = entry["bytes_by_path"], entry["trials"][-1]
    total = sum(paths.values())
    shares = ", ".join(f"{path} {count / total:.1%}" for path, count in paths.items() if count) or "nothing moved"
    copied = f", then {format_bytes(entry['copied_bytes'])} copied by the consumer" if entry["copied_bytes"] else ""
    moved = f"{shares} of {format_bytes(total)}{copied}" if total else shares
    return f"{entry['contender']}: {moved}; backend {last['backend']}: {last['reason']}"
