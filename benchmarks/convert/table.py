"""Render a record as markdown.

python -m benchmarks.convert.table benchmarks/results/convert.json --write benchmarks/convert/README.md
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.table import main, percent

__all__ = ["render"]

_RATIOS = {
    "gdsload/copy": "gdsload to a plain copy",
    "gdsload/gdsload-w1": "two workers to one",
    "gdsload/arrow": "gdsload to Arrow",
    "gdsload/pandas": "gdsload to pandas",
    "gdsload/litdata": "gdsload to LitData",
    "gdsload/mosaicml": "gdsload to MosaicML",
}


def render(record: dict[str, Any]) -> str:
    """The tables of a record."""
    machine, versions = record["machine"], record["versions"]
    entries = [entry for workload in record["workloads"] for entry in workload["entries"]]
    least = min((entry.get("least_resident", 1.0) for entry in entries), default=0.0)
    busy = max((cores for workload in record["workloads"] for cores in workload["busy_cores_before_rounds"]), default=0)
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['ram_bytes'] / 2**30:.0f} GiB RAM,",
        f"Linux {machine['kernel']};",
        f"Python {versions['python']}, torch {versions['torch']}, numpy {versions['numpy']}; {record['date'][:10]}.",
        f"{record['rounds']} rounds, interleaved; source in the page cache: {percent(least)} of it, or more (mincore).",
        f"Cores busy before a round: {busy:.2f} at most.",
        "Every number: after all samples had been read back and compared.",
    ]
    if record["small"]:
        lines.append("**A smoke test: its numbers mean nothing.**")
    for workload in record["workloads"]:
        lines += ["", f"### {workload['title']}, {workload['nbytes'] / 2**20:.0f} MiB", ""]
        lines += ["| contender | MB/s, median (quartiles) | seconds | of them syncing | cores busy |"]
        lines += ["| --- | --- | --- | --- | --- |", *_rows(workload)]
        found = [(title, workload["ratios"][key]) for key, title in _RATIOS.items() if key in workload["ratios"]]
        lines += ["", *(f"- {title}, round by round: {_spread(one)}" for title, one in found)]
        failed = [entry for entry in workload["entries"] if "failed" in entry]
        lines += [f"- {one['title']} failed: {' '.join(one['failed']['reason'].split())[:200]}" for one in failed]
    return "\n".join(lines) + "\n"


def _rows(workload: dict[str, Any]) -> Iterator[str]:
    for entry in workload["entries"]:
        version = f" {entry['version']}" if entry.get("package") else ""
        if "failed" in entry:
            yield f"| {entry['title']}{version} | failed | | | |"
            continue
        seconds, syncing, busy = (
            statistics.median(trial[key] for trial in entry["trials"]) for key in ("seconds", "sync_s", "busy_cores")
        )
        columns = [f"{entry['title']}{version}", _spread(entry["mb_s"])]
        yield f"| {' | '.join(columns)} | {seconds:.2f} | {syncing:.2f} | {busy:.1f} |"


def _spread(found: dict[str, float]) -> str:
    return f"{found['median']:.3g} ({found['q1']:.3g}–{found['q3']:.3g})"


if __name__ == "__main__":
    sys.exit(main(prog="python -m benchmarks.convert.table", rendering=render))
