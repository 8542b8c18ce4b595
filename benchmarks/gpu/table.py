"""Render a record as markdown.

python -m benchmarks.gpu.table benchmarks/results/gpu.json --write benchmarks/gpu/README.md
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.table import main

__all__ = ["render"]


def render(record: dict[str, Any]) -> str:
    """The tables of a record."""
    *_, run = record["runs"]
    machine, data = run["machine"], run["data"]
    dates = ", ".join(dict.fromkeys(each["date"][:10] for each in record["runs"]))
    lines = [
        f"{machine['gpu']}, {machine['cpu']}, {machine['cores']} cores, {machine['ram_bytes'] / 2**30:.0f} GiB RAM,",
        f"Linux {machine['kernel']}; torch {run['versions']['torch']}; {dates}.",
        f"{data['bytes'] / 2**30:.0f} GiB of rows of {data['row_bytes']} bytes in {data['shards']} shards.",
        "Median (quartiles) of interleaved trials; every byte compared before the first one.",
        "",
    ]
    for part, title, limit in (("hot", "Out of the page cache", "P"), ("cold", "From the drive", "D")):
        lines += [f"### {title}", "", f"| path | GB/s | of {limit} | CPU seconds a GB | bytes by path, by counters |"]
        lines += ["| --- | --- | --- | --- | --- |", *_rates(record, part, limit), ""]
    lines += ["### Beside compute on the default stream", ""]
    lines += ["| load | alone | products | both | both to the longer one |", "| --- | --- | --- | --- | --- |"]
    lines += [*_overlaps(record), "", "### Where a batch's memory comes from", ""]
    lines += [
        "| choice | until all batches are there | device memory at most |",
        "| --- | --- | --- |",
        *_owned(record),
    ]
    return "\n".join(lines) + "\n"


def _rates(record: dict[str, Any], part: str, limit: str) -> Iterator[str]:
    for entry in record[part]:
        if "failed" in entry:
            yield f"| {entry['title']} | failed: {entry['failed'][:80]} | | | |"
            continue
        found = record["ratios"].get(f"{part} {entry['name']} / {limit}")
        share = f"{found['median']:.3f} ({found['q1']:.3f}–{found['q3']:.3f})" if found else "1"
        cpu = statistics.median(trial["cpu_s_per_gb"] for trial in entry["trials"])
        paths = ", ".join(sorted({path for trial in entry["trials"] for path in trial["paths"]}))
        yield f"| {entry['title']} | {_spread(entry['gb_s'])} | {share} | {cpu:.3f} | {paths} |"


def _overlaps(record: dict[str, Any]) -> Iterator[str]:
    for entry in record["overlap"]:
        if "failed" in entry:
            yield f"| {entry['title']} | failed: {entry['failed'][:80]} | | | |"
            continue
        times = (
            statistics.median(trial[key] for trial in entry["trials"]) for key in ("load_s", "compute_s", "both_s")
        )
        columns = [entry["title"], *(f"{time:.3f} s" for time in times), _spread(entry["over_longer"])]
        yield f"| {' | '.join(columns)} |"


def _owned(record: dict[str, Any]) -> Iterator[str]:
    for entry in record["ownership"]:
        peak = max(trial["peak_bytes"] for trial in entry["trials"]) / 2**20
        yield f"| {entry['name']} | {_spread(entry['seconds'])} s | {peak:.0f} MiB |"


def _spread(found: dict[str, float]) -> str:
    return f"{found['median']:.3g} ({found['q1']:.3g}–{found['q3']:.3g})"


if __name__ == "__main__":
    sys.exit(main(prog="python -m benchmarks.gpu.table", rendering=render))
