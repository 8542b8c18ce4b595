"""Renders a record of published patterns as markdown: ours, theirs, and the caveats.

python -m benchmarks.published.table RECORD --write benchmarks/published/README.md --mark published-gpu
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from benchmarks.published.figures import DLRM, UNET3D, WINDOWS, Published
from benchmarks.table import main, short

__all__ = ["main", "render"]

_PUBLISHED = {"dlrm": DLRM, "unet3d": UNET3D, "windows": WINDOWS}
_TITLES = {
    ("dlrm", "torch"): "torch, rows in one array, a batch a call",
    ("dlrm", "torch-parquet"): "torch, Parquet by pyarrow, in order",
    ("unet3d", "torch"): "torch, a .npz a sample",
    ("windows", "torch"): "torch, HDF5, frame by frame",
}


def render(record: dict[str, Any]) -> str:
    """Conditions, and for each pattern a table of ours, one of theirs, and what to keep in mind."""
    machine, versions, conditions = record["machine"], record["versions"], record["conditions"]
    host = f"{machine.get('gpu', 'no GPU')}, {machine['cpu']}, {machine['cores']} cores"
    run = f"{record['date'][:10]}; {conditions['workers']} workers for torch's loaders"
    compared = f"Medians (quartiles) of {conditions['rounds']} rounds; bytes of some batches were compared before."
    parts = [f"{host}; torch {versions['torch']}; {run}.\n{compared}"]
    for case in record["cases"]:
        published = _PUBLISHED[case["name"]]
        parts += [
            f"#### The access pattern of {published.title}",
            published.pattern,
            "\n".join(_ours(case)),
            "\n".join(_theirs(published)),
        ]
        parts.append("\n".join(f"- {caveat}" for caveat in published.caveats))
    return "\n\n".join(parts) + "\n"


def _ours(case: dict[str, Any]) -> Iterator[str]:
    paced = case["compute_s"] is not None
    header = ["files", "loader", "samples/s", "GB/s", "CPU s a GB", "first batch"]
    header += ["with computation: samples/s", "computing"] if paced else []
    yield f"| {' | '.join(header)} |"
    yield f"|{' --- |' * len(header)}"
    for state in ("hot", "cold"):
        for name, found in case["loaders"].items():
            title = _TITLES.get((case["name"], name), name)
            if "failed" in found:
                yield f"| {title} failed: {found['failed']} |"
            if state not in found:
                continue
            alone = found[state]["alone"]
            row = [state, title, _spread(alone["samples_s"]), _spread(alone["gb_s"])]
            row.append(f"{alone['cpu_s_per_gb']['median']:.3g}")
            row.append(f"{alone['first_batch_s']['median']:.2g} s" if state == "cold" else "")
            if paced:
                steps = found[state]["paced"]
                row += [_spread(steps["samples_s"]), f"{steps['computing']['median']:.1%}"]
            yield f"| {' | '.join(row)} |"
    if "drive_gb_s" in case:
        yield f"\nThe drive, the same files in sequence with O_DIRECT: {_spread(case['drive_gb_s'])} GB/s."


def _theirs(published: Published) -> Iterator[str]:
    yield from wrap(f"Published runs ({published.source}):", 120)
    yield ""
    yield "| setting | samples/s | besides |"
    yield "| --- | --- | --- |"
    for row in (*published.rows, *([published.wanted] if published.wanted else [])):
        yield f"| {row.setting} | {_digits(row.samples_s)} | {row.besides} |"


def _spread(found: dict[str, float]) -> str:
    return f"{_digits(found['median'])} ({_digits(found['q1'])}–{_digits(found['q3'])})"


def _digits(value: float) -> str:
    return short(value) if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main(prog="python -m benchmarks.published.table", rendering=render))
