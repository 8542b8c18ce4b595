"""`gdsload bench PATH`: measure whether GDS helps and whether loading is the bottleneck, in two minutes."""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from gdsload.backends.names import BACKEND_CHOICES, SUMMARIES
from gdsload.errors import OptionError
from gdsload.system.units import parse_bytes
from gdsload.tools.cli.faults import show_note
from gdsload.tools.cli.terminal import Bar, page_width, paint, say, terminal_width, wrapped
from gdsload.tools.cli.usage import Commands, Parser, add_list, as_count, as_seconds, meant
from gdsload.tools.cli.whole_file import refuse_unwritable, write_whole

if TYPE_CHECKING:
    from gdsload.tools.bench import BenchPlan

_GDS = ("no", "yes", "unavailable", "worse", "unknown")
_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_ROW_BYTES = 150_000
_KEPT = ("row", "shuffle", "batch_size", "device", "backends", "workers")
"""Options that the commands of `next` have, too: they choose what is measured, and not for how long."""
_EXAMPLES = """
gdsload bench shards/                         does GDS help here?
gdsload bench --make 8GiB /mnt/nvme           the same without a dataset
gdsload bench shards/ --step-ms 38            does such a step wait for data?
gdsload bench shards/ --expect gds=yes        for acceptance tests
gdsload bench shards/ --json --html bench.html > record.json
"""


def add_to(commands: Commands[Parser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench", help="measure whether GDS helps, and whether loading is the bottleneck",
        usage="gdsload bench PATH [options]", example=_EXAMPLES,
        description="Measure the read paths from the drive to the device, cold and hot, compare them\n"
        "with the limits of this machine, and say whether GDS helps.",
    )  # fmt: skip
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="a dataset's folder, a folder of safetensors files, or one file"
    )
    parser.add_argument(
        "--make", nargs=2, metavar=("SIZE", "DIR"), help="generate a dataset of SIZE in DIR, measure it, and remove it"
    )
    parser.add_argument("--row", type=_size, metavar="SIZE", help="bytes of a sample of --make (default: 150KB)")
    _add_measure(parser)
    _add_output(parser)
    parser.set_defaults(run=_run)


def _add_measure(parser: Parser) -> None:
    parser.add_argument(
        "--budget", type=_duration, default="2min", metavar="TIME", help="time limit of the whole run (default: 2min)"
    )
    parser.add_argument(
        "--turns", type=as_count, metavar="N", help="turns of each row; with fewer than 5 no verdict (default: 9)"
    )
    parser.add_argument("--seconds", type=as_seconds, metavar="S", help="length of a turn, regardless of the budget")
    parser.add_argument(
        "--shuffle", choices=("full", "block", "none"), help="the order of samples (default: chosen for the dataset)"
    )
    parser.add_argument(
        "--batch-size", type=as_count, metavar="N", help="samples of a batch (default: about 16 MiB, 65536 at most)"
    )
    parser.add_argument("--device", default=None, help="device of the batches (default: the accelerator, or the CPU)")
    ways = "; ".join(f"{name}: {summary}" for name, summary in SUMMARIES.items())
    add_list(
        parser, "--backends", one=_backend, metavar="NAME,...",
        help=f"backends to measure (default: all that work here). {ways}",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=as_count, metavar="N", help="workers of torch's loader (default: one per core, at most 16)"
    )
    parser.add_argument(
        "--step-ms", type=as_seconds, metavar="MS", help="time of a training step on a batch, in milliseconds"
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--cold-only", action="store_true", help="measure only with the shards out of the page cache")
    only.add_argument("--hot-only", action="store_true", help="measure only with the shards in the page cache")


def _add_output(parser: Parser) -> None:
    parser.add_argument(
        "--expect", action="append", type=_rule, metavar="RULE",
        help="exit with 1 if the rule fails: gds=yes, cold>=10 or hot>=40 (GB/s of backend auto); may be repeated",
    )  # fmt: skip
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print the record: conditions, every turn, the verdict")
    shown.add_argument(
        "--commands", action="store_true", help="only print fio and gdsio commands with the same access pattern"
    )
    parser.add_argument("--html", metavar="FILE", help="also write an HTML page")


def _backend(text: str) -> str:
    if text not in BACKEND_CHOICES:
        raise argparse.ArgumentTypeError(
            f"there is no backend {text!r}. {meant(text, BACKEND_CHOICES)}There are {', '.join(BACKEND_CHOICES)}"
        )
    return text


def _size(text: str) -> int:
    try:
        return parse_bytes(text, "size", at_least=1)
    except OptionError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 8GiB, 150KB or a number of bytes") from None


def _duration(text: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    seconds = float(found[1]) * _UNITS.get(found[2], math.nan) if found else math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write 2min, 90s or 1h")
    return seconds


def _rule(text: str) -> re.Match[str]:
    """A rule that a record has to hold: what GDS has to be, or a state of the page cache and its least GB/s."""
    found = re.fullmatch(rf"(?:gds\s*=\s*({'|'.join(_GDS)})|(cold|hot)\s*>=\s*(\d+(?:\.\d+)?))", text.strip())
    if found is None:
        known = f"write gds={'|'.join(_GDS)}, 'cold>=10' or 'hot>=40' (GB/s)"
        raise argparse.ArgumentTypeError(f"{text!r} is not a rule; {known}")
    return found


def _broken(rule: re.Match[str], record: dict[str, Any]) -> str:
    """A sentence on why a record does not hold a rule; empty if it does."""
    from gdsload.tools.bench.facts import Facts, figure, rate

    if rule[1]:
        found = record["verdict"]
        return "" if found["gds"] == rule[1] else f"{rule[0]}: it is {found['gds']}. {found['sentence']}"
    row = Facts(record).chosen("hot" if rule[2] == "hot" else "cold")
    if row is None:
        return f"{rule[0]}: no row was measured"
    return "" if rate(row) >= float(rule[3]) else f"{rule[0]}: {row['name']} reads {figure(rate(row))} GB/s"


def _run(chosen: argparse.Namespace) -> int:
    _check(chosen)
    with closing(Bar(sys.stderr)) as bar:
        bar.say("starting…")
        with _dataset(chosen, bar) as path:
            from gdsload.tools.bench import plan_text, run_bench

            plan = _plan(chosen, path)
            if chosen.commands:
                bar.close()
                _print_commands(plan)
                return 0
            bar.close()
            for line in wrapped(plan_text(plan), terminal_width(sys.stderr), first="plan       ", rest=" " * 11):
                say(line, sys.stderr)
            record = run_bench(plan, progress=lambda what, done, of: bar.show(done, of, what=what))
    return _show(_judged(record, chosen), chosen)


def _check(chosen: argparse.Namespace) -> None:
    """Refuse what would fail after the measurement, or leaves nothing to measure."""
    if chosen.path is None and chosen.make is None:
        raise OptionError("PATH is missing", remedy="Without a dataset: gdsload bench --make 8GiB DIR")
    if chosen.make is not None:
        if chosen.path is not None or chosen.commands:
            raise OptionError("--make takes no PATH and no --commands: its dataset is removed", remedy="Leave one out.")
        try:
            chosen.make[0] = _size(chosen.make[0])
        except argparse.ArgumentTypeError as error:
            raise OptionError(f"--make: {error}") from None
    if chosen.html is not None:
        refuse_unwritable(chosen.html, "page")


@contextmanager
def _dataset(chosen: argparse.Namespace, bar: Bar) -> Iterator[str]:
    """The path of the dataset; one that is made is removed in the end."""
    if chosen.make is None:
        yield chosen.path
        return
    from gdsload.tools.bench import make_dataset

    size, folder = chosen.make
    bar.say(f"writing the dataset to {folder}…")
    path = make_dataset(folder, size, chosen.row or _ROW_BYTES)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _plan(chosen: argparse.Namespace, path: str) -> BenchPlan:
    from gdsload.tools.bench import make_plan

    return make_plan(
        path, batch_size=chosen.batch_size, shuffle={None: True, "none": False}.get(chosen.shuffle, chosen.shuffle),
        device=chosen.device, backends=tuple(chosen.backends) if chosen.backends else None,
        budget_s=chosen.budget,
        turns=chosen.turns, seconds=chosen.seconds, cold=not chosen.hot_only, hot=not chosen.cold_only,
        workers=chosen.workers, step_ms=chosen.step_ms,
    )  # fmt: skip


def _print_commands(plan: BenchPlan) -> None:
    from gdsload.tools.bench.same_pattern import commands

    found = commands(plan.files, plan.read_bytes, shuffle=plan.shuffle, device=str(plan.device))
    notes = {
        "fio": "O_DIRECT reads into CPU memory; without io_uring: --ioengine=libaio",
        "gdsio": "cuFile into the GPU; -x 2: through CPU memory",
    }
    for name, words in found.items():
        say(f"# {notes[name]}\n{shlex.join(words)}")


def _judged(record: dict[str, Any], chosen: argparse.Namespace) -> dict[str, Any]:
    """The record with its command and its verdict."""
    from gdsload.tools.bench.verdict import verdict

    record["command"] = shlex.join(["gdsload", *chosen.words])
    record["conditions"]["options"] = {
        f"--{name.replace('_', '-')}": ",".join(value) if isinstance(value, list) else str(value)
        for name in _KEPT
        if (value := getattr(chosen, name)) is not None
    }
    if chosen.make is not None:
        record["dataset"]["made_in"] = chosen.make[1]
    return record | {"verdict": verdict(record)}


def _show(record: dict[str, Any], chosen: argparse.Namespace) -> int:
    """Print and write what was asked for; the exit code."""
    from gdsload.tools.bench.page import render_page
    from gdsload.tools.bench.report import render_text

    if chosen.json:
        say(json.dumps(record, indent=1))
    else:
        blocks = "utf" in (sys.stdout.encoding or "utf-8").lower()
        painted = partial(paint, stream=sys.stdout)
        say(render_text(record, page_width(), blocks=blocks, painted=painted))
    if chosen.html is not None:
        write_whole(chosen.html, render_page(record).encode(), "page")
    if record["stopped"]:
        show_note("stopped", record["stopped"])
        return 143 if "SIGTERM" in record["stopped"] else 130
    broken = [why for rule in chosen.expect or () if (why := _broken(rule, record))]
    for why in broken:
        show_note("not met", why)
    return 1 if broken else 0
