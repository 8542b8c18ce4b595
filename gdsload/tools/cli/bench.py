"""`gdsload bench PATH`: how fast a dataset reaches the device, straight and by way of RAM."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from typing import Any

from gdsload.backends.names import BACKEND_CHOICES, SUMMARIES
from gdsload.tools.cli.terminal import Bar, plain, say, table, terminal_width, wrapped
from gdsload.tools.cli.usage import Commands, Parser, add_list, as_count, as_seconds, meant

_HEADINGS = ("", "GB/s", "quartiles", "of limit", "CPU-s/GB")
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
        "--shuffle", choices=("none", "full", "block"),
        help="the order of samples (default: the one that suits the dataset)",
    )  # fmt: skip
    parser.add_argument("--device", default=None, help="where batches go (default: the accelerator, or the CPU)")
    parser.add_argument(
        "--turns", type=as_count, default=9, metavar="N", help="turns of each row (default: %(default)s)"
    )
    parser.add_argument(
        "--budget", type=as_seconds, default=120, metavar="S", help="seconds in all (default: %(default)s)"
    )
    ways = "; ".join(f"{name}: {summary}" for name, summary in SUMMARIES.items())
    add_list(
        parser, "--backends", one=_backend, metavar="NAME,...",
        help=f"what is tried (default: all that could be of use). {ways}",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=as_seconds, metavar="S", help="seconds of each turn (default: what the budget has)"
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
        from gdsload.tools.bench import make_plan, plan_text, run_bench

        plan = make_plan(
            chosen.path,
            batch_size=chosen.batch_size,
            shuffle={None: True, "none": False}.get(chosen.shuffle, chosen.shuffle),
            device=chosen.device,
            backends=tuple(chosen.backends) if chosen.backends else None,
            turns=chosen.turns, budget_s=chosen.budget, seconds=chosen.seconds,
            cold=not chosen.hot_only, hot=not chosen.cold_only,
        )  # fmt: skip
        bar.say(plan_text(plan))
        record = run_bench(plan, progress=lambda what, done, of: bar.show(done, of, what=what))
    say(json.dumps(record, indent=1) if chosen.json else render_text(record, terminal_width(sys.stdout) or _WIDTH))
    return 130 if record["stopped"] else 0


def render_text(record: dict[str, Any], width: int = _WIDTH) -> str:
    """The record for people: a table for each state of the cache, in lines of at most that width."""
    lines: list[str] = []
    for name in ("cold", "hot"):
        found = record[name]
        if found is None:
            continue
        lines += wrapped(plain(f"{found['state']} ({found['checked']})"), width, rest="  ")
        lines += table([_HEADINGS, *map(_figures, found["rows"])]) if found["rows"] else []
        for row in found["rows"]:
            lines += wrapped(f"warning: {row['name']}: {row['warning']}", width, rest="  ") if row["warning"] else []
    for note in record["conditions"]["notes"]:
        lines += wrapped(plain(note), width, first="- ", rest="  ")
    return "\n".join(lines)


def _figures(row: dict[str, Any]) -> tuple[str, ...]:
    rate, share = row["gb_per_s"], row["share_of_limit"]
    return (
        plain(row["name"]),
        _figure(rate["median"]),
        f"{_figure(rate['q1'])} to {_figure(rate['q3'])}",
        "" if share is None else f"{share:.0%}",
        "" if row["cpu_s_per_gb"] is None else _figure(row["cpu_s_per_gb"]),
    )


def _figure(number: float) -> str:
    """A number with three significant digits and no exponent."""
    return f"{number:.0f}" if number >= 1000 else f"{number:.3g}" if number >= 1e-4 or not number else f"{number:.7f}"
