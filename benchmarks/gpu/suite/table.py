"""Render a record of the loaders as markdown, and as a chart beside it.

python -m benchmarks.gpu.suite.table benchmarks/results/gpu-loaders.json --write benchmarks/gpu/README.md
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.gpu.suite.chart import chart
from benchmarks.panels import THEMES
from benchmarks.table import embed, short
from gdsload.tools.bench.turns import spread

__all__ = ["MARK", "main", "render"]

MARK = "loaders"
"""Name of the marks between which the tables stand."""
_CHART = (
    "<picture>\n"
    '<source media="(prefers-color-scheme: dark)" srcset="../results/gpu-loaders-dark.svg">\n'
    '<img alt="GB/s of each contender in each case" src="../results/gpu-loaders-light.svg">\n'
    "</picture>"
)
_BYTES = 2**20


def render(record: dict[str, Any]) -> str:
    """The conditions, a table for each case, and what was measured besides."""
    parts = [_conditions(record), _CHART]
    for case in record["cases"]:
        parts += [f"#### {case['title']}", _case(case)]
    if record["cases"]:
        parts += ["#### Processor time", _cpu(record)]
    if steps := _steps(record):
        parts += ["#### Training steps", steps]
    if others := _measures(record):
        parts += ["#### Besides rates", others]
    if notes := "\n".join(_failures(record)):
        parts += ["#### Without a number", notes]
    return "\n\n".join(parts) + "\n"


def _conditions(record: dict[str, Any]) -> str:
    lines = []
    for run in record["runs"]:
        machine, versions = run["machine"], run["versions"]
        gpu, ram = machine.get("gpu", "no GPU"), machine["ram_bytes"] / 2**30
        lines += [
            f"{gpu}, {machine['cpu']}, {machine['cores']} cores, {ram:.0f} GiB RAM, Linux {machine['kernel']};",
            f"Python {versions['python']}, torch {versions['torch']}, numpy {versions['numpy']}; {run['date'][:16]}.",
            f"At most {run['rounds']} interleaved rounds, {run['seconds']:g} s of each contender in each;",
            f"{run['bytes']} of rows of each kind; {run['workers']} workers for each that uses workers.",
        ]
        if run["small"]:
            lines.append("**A smoke test: its numbers mean nothing.**")
    if len(record["runs"]) > 1:
        lines.append("Several calls made this record; no ratio is taken between two of them.")
    lines.append("Medians (quartiles). Every number of a loader: after the bytes of an epoch had been compared.")
    return "\n".join(lines)


def _case(case: dict[str, Any]) -> str:
    limit = case["limit"]
    header = ["contender", "GB/s", "samples/s", f"of {limit}", "gdsload to it", "order", "trials"]
    if case["cold"]:
        header.append("GB/s after the first batch, and when that came")
    rows = []
    for entry in case["entries"]:
        name = entry["name"]
        if "gb_s" not in entry:
            rows.append([_title(entry), _short_reason(entry), *["–"] * (len(header) - 2)])
            continue
        samples = short(entry["samples_s"]["median"]) if entry["checked"] else "–"
        of_limit = _ratio(case, f"{name}/{limit}")
        against = "–" if CONTENDERS[name].ours else _best_of_ours(case, name)
        order = "–" if not entry["checked"] else _order(case, entry)
        count = str(len(entry["trials"]))
        rows.append([_title(entry), _spread(entry["gb_s"]), samples, of_limit, against, order, count])
        if case["cold"]:
            later, first_s = entry["gb_s_after_first"]["median"], entry["first_batch_s"]["median"]
            rows[-1].append(f"{later:.3g}, {first_s:.2g} s" if entry["checked"] else "–")
    return _markdown(header, rows)


def _order(case: dict[str, Any], entry: dict[str, Any]) -> str:
    if case["order"] == "sequential":
        return "in order" if entry["check"]["in_order"] else "interleaved"
    return str(entry["shuffle"] or case["order"])


def _best_of_ours(case: dict[str, Any], name: str) -> str:
    """The plain loader, not the faster of several."""
    return _ratio(case, f"gdsload/{name}")


def _cpu(record: dict[str, Any]) -> str:
    """Of each contender in each case, since it is a by-product of every trial."""
    found: dict[str, dict[str, str]] = {}
    titles: dict[str, str] = {}
    for case in record["cases"]:
        for entry in case["entries"]:
            if "cpu_s_per_gb" in entry:
                titles[entry["name"]] = entry["title"]
                found.setdefault(entry["name"], {})[case["name"]] = f"{entry['cpu_s_per_gb']['median']:.3f}"
    names = [case["name"] for case in record["cases"]]
    rows = [[titles[name], *(cells.get(case, "–") for case in names)] for name, cells in found.items()]
    text = "Seconds, user and system, of the process and all that descend from it, for each GB; medians.\n\n"
    return text + _markdown(["contender", *names], rows)


def _steps(record: dict[str, Any]) -> str:
    """A table of the cost of loading to a training step, beside that of copies by hand."""
    rows = []
    for measure in filter(_is_step, record["measures"]):
        trials = measure["trials"]
        lengths = [
            _spread(spread([trial["compute_s"] / trial[key] for trial in trials])) for key in ("load_s", "copies_s")
        ]
        ratios = [_spread(measure["numbers"][key]) for key in ("over_longer", "by_hand_over_longer")]
        rows.append([measure["title"], lengths[0], ratios[0], lengths[1], ratios[1], str(len(trials))])
    header = [
        "what",
        "step, of the load",
        "both, over the longer",
        "by hand: step, of the copies",
        "both, over the longer",
    ]
    return _markdown([*header, "trials"], rows) if rows else ""


def _is_step(measure: dict[str, Any]) -> bool:
    return "by_hand_over_longer" in measure.get("numbers", {})


def _measures(record: dict[str, Any]) -> str:
    rows = []
    for measure in itertools.filterfalse(_is_step, record["measures"]):
        for key, value in measure.get("numbers", {}).items():
            if key.endswith(("_range", "_last")):
                what = {"range": "most less least from the third epoch on", "last": "after the last epoch"}
                name, _, kind = key.rpartition("_")
                text = f"{value['median'] / _BYTES:.1f} MiB"
                rows.append([measure["title"], f"{name.replace('_', ' ')}, {what[kind]}", text])
            elif key != "resident":
                rows.append([measure["title"], key.replace("_", " "), _spread(value)])
    return _markdown(["what", "number", "median (quartiles)"], rows) if rows else ""


def _failures(record: dict[str, Any]) -> Iterator[str]:
    """With the reason, each once: a peer that is absent or fails is not left out in silence."""
    where: dict[str, list[str]] = {}
    for case in record["cases"]:
        for entry in case["entries"]:
            if "failed" in entry:
                failed = entry["failed"]
                reason = f": {' '.join(failed['reason'].split())}" if failed["stage"] != "not installed" else ""
                where.setdefault(f"{entry['title']}, {failed['stage']}{reason}", []).append(case["name"])
    for measure in record["measures"]:
        if "failed" in measure:
            where.setdefault(f"{measure['title']}: {measure['failed']['reason']}", []).append(measure["name"])
    yield from (f"- {text} ({', '.join(cases)})" for text, cases in where.items())


def _short_reason(entry: dict[str, Any]) -> str:
    return str(entry["failed"]["stage"]) + (" failed" if entry["failed"]["stage"] != "not installed" else "")


def _title(entry: dict[str, Any]) -> str:
    return f"{entry['title']} {entry['version']}" if entry.get("package") else str(entry["title"])


def _ratio(case: dict[str, Any], key: str) -> str:
    found = case["ratios"].get(key)
    return _spread(found) if found else "–"


def _spread(found: dict[str, float]) -> str:
    return f"{_digits(found['median'])} ({_digits(found['q1'])}–{_digits(found['q3'])})"


def _digits(value: float) -> str:
    return short(value) if value >= 1000 else f"{value:.3g}"


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows])


def main(arguments: list[str] | None = None) -> int:
    """Print the tables, or put them into a document; and draw the charts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.suite.table", description="render a record")
    parser.add_argument("record", type=Path)
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="replace the tables in this document, draw the charts"
    )
    options = parser.parse_args(arguments)
    record = json.loads(options.record.read_text(encoding="utf-8"))
    rendered = render(record)
    if options.write is None:
        sys.stdout.write(rendered)
    else:
        options.write.write_text(embed(options.write.read_text(encoding="utf-8"), rendered, MARK), encoding="utf-8")
        for theme in THEMES:
            path = options.record.with_name(f"{options.record.stem}-{theme}.svg")
            path.write_text(chart(record, theme), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
