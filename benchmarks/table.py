"""Renders a record as the markdown that README.md contains.

To print it, or to put it in its place::

    python -m benchmarks.table benchmarks/results/cpu.json
    python -m benchmarks.table benchmarks/results/cpu.json --write benchmarks/README.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["embed", "main", "percent", "render", "short"]


def render(record: dict[str, Any]) -> str:
    """The conditions, and a table for each order of samples."""
    parts = [_conditions(record)]
    for mode, heading in (("shuffled", "Shuffled"), ("sequential", "In order")):
        parts.append(f"### {heading}: samples/s, median (quartiles)")
        parts.append(_table(record, mode))
        ratios = _ratios(record, mode)
        if ratios:
            parts.append(ratios)
    parts.append(_cores(record))
    failures = _failures(record)
    if failures:
        parts.append(failures)
    return "\n\n".join(parts) + "\n"


def embed(text: str, rendered: str, mark: str = "table") -> str:
    """A document with the text between its two marks of a name replaced.

    Raises:
        ValueError: if a mark is missing.
    """
    opening, closing = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    head, begin, rest = text.partition(opening)
    _, end, tail = rest.partition(closing)
    if not begin or not end:
        raise ValueError(f"the document lacks {opening} or {closing}")
    return f"{head}{opening}\n{rendered}{closing}{tail}"


def _conditions(record: dict[str, Any]) -> str:
    machine, protocol, versions = record["machine"], record["protocol"], record["versions"]
    entries = [entry for workload in record["workloads"] for entries in workload["modes"].values() for entry in entries]
    least = min((entry["cache"]["least_resident"] for entry in entries if "cache" in entry), default=0.0)
    busy = max(
        (cores for workload in record["workloads"] for cores in workload["busy_cores_before_rounds"]),
        default=0.0,
    )
    ram = f"{machine['ram_bytes'] / 2**30:.0f} GiB RAM"
    sentences = [
        f"{machine['cpu']}, {machine['cores']} cores, {ram}, Linux {machine['kernel']};",
        f"Python {versions['python']}, torch {versions['torch']}, numpy {versions['numpy']}; {record['date'][:10]}.",
        f"{protocol['rounds']} rounds of {protocol['seconds']:g} s for each contender, interleaved.",
        f"Page cache before every trial: {percent(least)} of the pages resident, or more (mincore).",
        f"Cores busy before a round: {busy:.2f} at most.",
        "Every number: after all bytes of an epoch had been compared with the source.",
    ]
    if record["small"]:
        sentences.append("**A smoke test: its numbers mean nothing.**")
    return "\n".join(sentences)


def _table(record: dict[str, Any], mode: str) -> str:
    workloads = record["workloads"]
    cells: dict[str, list[str]] = {}
    about: dict[str, dict[str, Any]] = {}
    for column, workload in enumerate(workloads):
        for entry in workload["modes"][mode]:
            row = cells.setdefault(entry["name"], ["–"] * len(workloads))
            row[column] = "failed" if "failed" in entry else _rate(entry, mode)
            about[entry["name"]] = entry | about.get(entry["name"], {})
    header = ["contender", *(workload["title"] for workload in workloads)]
    if mode == "shuffled":
        header.append("shuffle")
    rows = [header, ["---"] * len(header)]
    for name, row in cells.items():
        entry = about[name]
        version = f" {entry['version']}" if entry.get("package") else ""
        tail = [entry.get("shuffle", "–")] if mode == "shuffled" else []
        rows.append([f"{entry['title']}{version}", *row, *tail])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _rate(entry: dict[str, Any], mode: str) -> str:
    marks = ", view" if entry["check"]["view_of_file"] else ""
    marks += ", interleaved" if mode == "sequential" and not entry["check"]["in_order"] else ""
    return f"{short(entry['median'])} ({short(entry['q1'])}–{short(entry['q3'])}){marks}"


def short(value: float) -> str:
    """Three digits that count."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if value >= limit * 0.9995:
            scaled = value / limit
            return f"{scaled:.{max(0, 3 - len(str(int(scaled))))}f}{unit}"
    return f"{value:.0f}"


def percent(share: float) -> str:
    """Never rounded up to all."""
    return "100 %" if share == 1 else f"{int(share * 1e4) / 100:g} %"


def _ratios(record: dict[str, Any], mode: str) -> str:
    titles = {"gdsload": "gdsload", "gdsload-block": 'gdsload, `shuffle="block"`,'}
    numpy = "numpy fancy indexing" if mode == "shuffled" else "a copied numpy slice"
    below = {"numpy": numpy, "copy": "contiguous copy"}
    lines = []
    for key in ("gdsload/numpy", "gdsload/copy", "gdsload-block/numpy", "gdsload-block/copy"):
        found = [(workload, workload["ratios"][mode].get(key)) for workload in record["workloads"]]
        texts = [f"{value['median']:.2f} ({value['q1']:.2f}–{value['q3']:.2f})" for _, value in found if value]
        if texts:
            high, _, low = key.partition("/")
            lines.append(f"- {titles[high]} to {below[low]}, round by round: {' · '.join(texts)}")
    return "\n".join(lines)


def _cores(record: dict[str, Any]) -> str:
    """A table of busy cores, of the whole machine as kernel and workers count, and of times to the first batch."""
    rows: dict[str, list[str]] = {}
    titles: dict[str, str] = {}
    for column, workload in enumerate(record["workloads"]):
        for entry in workload["modes"]["shuffled"]:
            if "failed" not in entry:
                cells = rows.setdefault(entry["name"], ["–"] * len(record["workloads"]))
                cells[column] = f"{entry['busy_cores']:.1f}, {entry['first_batch_s']:.2g} s"
                titles[entry["name"]] = entry["title"]
    header = ["contender", *(workload["title"] for workload in record["workloads"])]
    table = [header, ["---"] * len(header), *([titles[name], *cells] for name, cells in rows.items())]
    lines = ["| " + " | ".join(row) + " |" for row in table]
    return "### Shuffled: cores busy, and time to the first batch\n\n" + "\n".join(lines)


def _failures(record: dict[str, Any]) -> str:
    found: dict[str, list[str]] = {}
    for workload in record["workloads"]:
        for mode, entries in workload["modes"].items():
            for entry in entries:
                if "failed" in entry:
                    failed = entry["failed"]
                    text = f"{entry['title']}, {failed['stage']}: {' '.join(failed['reason'].split())}"
                    found.setdefault(text, []).append(f"{workload['name']} {mode}")
    lines = [f"- {text} ({', '.join(where)})" for text, where in found.items()]
    return "### Failed\n\n" + "\n".join(lines) if lines else ""


def main(
    arguments: list[str] | None = None,
    *,
    prog: str = "python -m benchmarks.table",
    rendering: Callable[[dict[str, Any]], str] = render,
) -> int:
    """Print the rendering of a record, or put it into a document."""
    parser = argparse.ArgumentParser(prog=prog, description="render a record as markdown")
    parser.add_argument("record", type=Path)
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace the table in this document")
    parser.add_argument("--mark", default="table", help="what its place there is called (default: %(default)s)")
    options = parser.parse_args(arguments)
    rendered = rendering(json.loads(options.record.read_text(encoding="utf-8")))
    if options.write is None:
        sys.stdout.write(rendered)
    else:
        text = options.write.read_text(encoding="utf-8")
        options.write.write_text(embed(text, rendered, options.mark), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
