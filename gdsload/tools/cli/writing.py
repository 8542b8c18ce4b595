"""The parts that all commands that write datasets share: options, a bar for the progress, and the summary."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from gdsload.loader.described import field_rows
from gdsload.system.units import counted, format_bytes
from gdsload.tools.cli.terminal import Bar, elapsed, plain, say, say_wrapped
from gdsload.tools.cli.usage import add_list

if TYPE_CHECKING:
    from gdsload.conversion.clusters import Cluster
    from gdsload.conversion.keywords import RearrangeKeywords
    from gdsload.conversion.runner import ConvertReport
    from gdsload.errors import Skipped

_FIELDS = 8


def add_writing(parser: argparse.ArgumentParser) -> None:
    """Add the options of all commands that write datasets."""
    shards = parser.add_argument_group("shards")
    shards.add_argument(
        "--shard-bytes", default="256MiB", metavar="SIZE", help="about how large a shard gets (default: %(default)s)"
    )
    shards.add_argument(
        "--shuffle-seed", type=int, metavar="N", help="write the samples in a random order (default: in their own)"
    )
    add_list(
        shards, "--pack-fields", metavar="NAME,...",
        help='store these fields together, or "auto": those of a few bytes (default: what is already, or auto)',
    )  # fmt: skip
    shards.add_argument(
        "--no-pack-fields", dest="pack_fields", action="store_const", const=[], help="store each field by itself"
    )
    shards.add_argument(
        "--spread-over", action="append", default=[], metavar="DIR",
        help="put the shards into folders in DIR, and links to them into OUT; once for each drive",
    )  # fmt: skip
    work = parser.add_argument_group("how it is done")
    work.add_argument("--workers", type=int, metavar="N", help="how many at once (default: one for each processor)")
    cluster = work.add_mutually_exclusive_group()
    cluster.add_argument("--dask", metavar="ADDRESS", help="let a Dask cluster do it, whose machines share the files")
    cluster.add_argument("--ray", metavar="ADDRESS", help="let a Ray cluster do it")
    work.add_argument("--overwrite", action="store_true", help="replace a dataset that is there")
    work.add_argument("--restart", action="store_true", help="throw away what another, interrupted run left")
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--json", action="store_true", help="print the report as JSON, for scripts")
    shown.add_argument("--quiet", action="store_true", help="print nothing but errors")


@contextmanager
def run_with_bar(chosen: argparse.Namespace) -> Iterator[RearrangeKeywords]:
    """Yield the options of the run, and show a progress bar until it ends. Sets `chosen.began`, the start time."""
    bar = Bar(sys.stderr, hidden=chosen.quiet)
    bar.say("starting…")
    with closing(bar), _cluster(chosen) as executor:
        # Libraries whose import Ctrl-C or SIGTERM interrupts fail with another error, or abort the process.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            import gdsload.conversion.rearrange  # noqa: F401 - which takes a second, for torch
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

        bar.say("looking at the source…")
        chosen.began = time.monotonic()

        def show(samples: int, nbytes: int, parts: float, of: int) -> None:
            if samples or parts:
                bar.show(parts, of, samples=samples, nbytes=nbytes)
            else:
                bar.say(f"starting on {counted(of, 'part')}…")

        yield {
            "shard_bytes": chosen.shard_bytes,
            "shuffle_seed": chosen.shuffle_seed,
            # A single field that is called so is packed by `auto,auto`; there is little to gain by it.
            "pack_fields": "auto" if chosen.pack_fields == ["auto"] else chosen.pack_fields,
            "workers": executor.workers if executor and chosen.workers is None else chosen.workers,
            "executor": executor,
            "overwrite": chosen.overwrite,
            "spread_over": chosen.spread_over,
            "restart": chosen.restart,
            "progress": show,
        }


def _cluster(chosen: argparse.Namespace) -> AbstractContextManager[Cluster | None]:
    from gdsload.conversion.clusters import dask_executor, ray_executor

    if chosen.dask is not None:
        return dask_executor(chosen.dask)
    return nullcontext() if chosen.ray is None else ray_executor(chosen.ray)


def summarise(chosen: argparse.Namespace, reports: Sequence[ConvertReport]) -> None:
    """Show the result: in words, as JSON, or not at all."""
    if chosen.json:
        trees = [as_tree(report, chosen.typed) for report in reports]
        say(json.dumps(trees[0] if len(trees) == 1 else {"ok": True, "datasets": trees}, indent=1))
        return
    if chosen.quiet:
        return
    for report in reports:
        _show(report, time.monotonic() - chosen.began if len(reports) == 1 else None)
        show_notes(report.notes, chosen.typed)
        if report.resumed:
            was = "part was" if report.resumed == 1 else "parts were"
            say(f"{report.resumed} {was} there from an interrupted run")
    if len(reports) == 1:
        place = shlex.quote(plain(_short(reports[0].path)))
        say(f"next: gdsload inspect {place} --html card.html\n      gdsload bench {place}")


def _show(report: ConvertReport, seconds: float | None) -> None:
    """Show a new dataset: its size, the time of the conversion if known, and its fields."""
    from gdsload.shards.catalog import open_catalog

    found = open_catalog(report.path)
    size = f"{format_bytes(report.nbytes)} in {counted(report.shards, 'shard')}"
    words = [counted(report.samples, "sample"), size]
    if seconds is not None:
        words.append(elapsed(seconds))
        if not report.resumed:
            rate = report.samples / max(seconds, 1e-3)
            words.append(f"{rate:.0f} samples/s" if rate >= 100 else f"{rate:.2g} samples/s")
    say_wrapped(f"{_short(report.path)}: {', '.join(words)}", rest="  ")
    rows = field_rows(found.schema, found.metadata)
    fields = [f"{name} {kind}{''.join(f' ({one})' for one in classes if one)}" for name, kind, _, *classes in rows]
    more = [f"{len(fields) - _FIELDS} more"] if len(fields) > _FIELDS else []
    say_wrapped(" · ".join([*fields[:_FIELDS], *more]), first="  ", rest="  ")


def _short(path: str) -> str:
    """A path relative to the current folder, if it is inside."""
    here = os.path.relpath(path)
    return path if here.startswith(os.pardir) else here


def show_notes(notes: Sequence[str], typed: Callable[[str], str]) -> None:
    """Show the notes on a source; `typed` writes options as they are typed."""
    for note in notes:
        say_wrapped(f"note: {typed(note)}", rest="      ")


def as_tree(report: ConvertReport, typed: Callable[[str], str]) -> dict[str, Any]:
    """A report, as JSON takes it; `typed` writes options as they are typed."""
    return {
        "ok": True,
        "path": report.path,
        "samples": report.samples,
        "shards": report.shards,
        "bytes": report.nbytes,
        "resumed_parts": report.resumed,
        "notes": [typed(note) for note in report.notes],
        "skipped": listed(report.skipped, typed),
    }


def listed(skipped: Sequence[Skipped], typed: Callable[[str], str]) -> list[dict[str, str]]:
    """Skipped samples, as JSON takes them."""
    return [{"key": one.key, "reason": typed(one.reason)} for one in skipped]
