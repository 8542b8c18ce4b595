"""Pictures of the records: the one of the README, and small multiples of cold starts and of the loaders on a CPU.

    python -m benchmarks.picture            says which files differ from the records
    python -m benchmarks.picture --write    writes them

`benchmarks.gpu.suite.table` draws that of the loaders on a GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.panels import THEMES, Bar, Panel, Picture, draw

__all__ = ["main", "pictures"]

RESULTS = Path(__file__).parent / "results"
_CASE = "images-full"
_COLD = {"gdsload": "gdsload", "spdl": "SPDL", "torch": "torch DataLoader"}
_HOT = {"gdsload": "gdsload", "spdl": "SPDL", "kvikio": "kvikio by hand", "torch-batches": "torch DataLoader"}
_CPU = {
    "gdsload": "gdsload, full shuffle",
    "gdsload-block": "gdsload, blocks",
    "copy": "one thread's copy",
    "numpy": "numpy indexing",
    "torch-batched-w0": "torch, by batches",
    "torch-batched-w2": "the same, 2 workers",
    "torch-w0": "torch, by samples",
    "torch-w2": "the same, 2 workers",
    "spdl": "SPDL, 2 threads",
    "grain": "Grain, 2 threads",
    "grain-processes": "Grain, 2 processes",
    "datasets": "HF datasets",
    "webdataset": "WebDataset",
    "mosaicml": "MosaicML streaming",
    "litdata": "LitData",
}
_ROWS = {
    "images-in-order": "150 KB in order",
    "images-full": "150 KB, full shuffle",
    "images-block": "150 KB by blocks",
    "rows-4k-block": "4 KiB by blocks",
    "volumes-full": "32 MiB, full shuffle",
    "ragged-full": "20 to 200 KB, ragged, full shuffle",
}


def _record(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return record


def _bar(name: str, title: str, found: dict[str, float], unit: float = 1) -> Bar:
    kind = {"gdsload": "ours", "torch": "torch"}.get(name.partition("-")[0], "peer")
    return Bar(title, found["median"] / unit, found["q1"] / unit, found["q3"] / unit, kind)


def _host(*runs: dict[str, Any]) -> str:
    machine = runs[0]["machine"]
    gpus = sorted({run["machine"]["gpu"] for run in runs if "gpu" in run["machine"]})
    return f"{', '.join(gpus or [machine['cpu']])}, {machine['cores']} cores"


def _cold(record: dict[str, Any], case: dict[str, Any], title: str) -> Panel:
    """Epoch 1 of a case. The limit is the best rate of O_DIRECT reads in any case of the record."""
    forms = case["forms"]
    drive = max(trial["gb_s"] for each in record["cases"] for trial in each["trials"]["drive"])
    bars = [_bar(name, label, forms[name]["gb_s"][0]) for name, label in _COLD.items() if name in forms]
    return Panel(title, "epoch 1 of a new process", "GB/s", bars, ("drive", drive))


def _hot(case: dict[str, Any]) -> Panel:
    """Files in the page cache. The limit is the rate of copies out of pinned memory."""
    rates = {entry["name"]: entry["gb_s"] for entry in case["entries"] if "gb_s" in entry}
    bars = [_bar(name, title, rates[name]) for name, title in _HOT.items() if name in rates]
    return Panel("Hot", "files in the page cache", "GB/s", bars, ("PCIe link", rates["P"]["median"]))


def _loading() -> Iterator[tuple[str, Picture]]:
    """The picture of the README, for wide and for narrow pages."""
    start, loaders = _record("cold-start-gpu"), _record("gpu-loaders")
    cold, hot = (next(one for one in each["cases"] if one["name"] == _CASE) for each in (start, loaders))
    run = loaders["runs"][hot["run"]]
    panels = (_cold(start, cold, "Cold start"), _hot(hot))
    footer = (
        f"Images of 150 KB (3×224×224 uint8), full shuffle, batches of 256 in GPU memory. {_host(start, run)}, virtual "
        f"drive; cold {start['date'][:10]}, hot {run['date'][:10]}. Medians; torch in its best form, with "
        f"{run['workers']} workers."
    )
    for name, width, columns in (("loading", 860, 2), ("loading-narrow", 400, 1)):
        yield name, Picture("GB/s into GPU memory: gdsload and other loaders", panels, footer, width, columns, 30)


def _cold_starts() -> Picture:
    records = [_record("cold-start-gpu"), _record("cold-start-rows-gpu")]
    panels = [_cold(record, case, _ROWS[case["name"]]) for record in records for case in record["cases"]]
    workers = records[0]["conditions"]["workers"]
    footer = (
        f"{_host(*records)}, virtual drive; {records[0]['date'][:10]}. Medians, lines are quartiles. The first epoch "
        f"from its first iter on, into GPU memory, of files that were dropped from the page cache. torch reads rows by "
        f"preadv in {workers} workers, and shuffles fully where gdsload shuffles by blocks. The drive's line is the "
        f"best rate at which O_DIRECT read in sequence in the record."
    )
    return Picture("GB/s of a first epoch, by case and loader", panels, footer, 860, 2)


def _on_a_cpu() -> Picture:
    record = _record("cpu")
    panels = []
    for workload in record["workloads"]:
        found = {entry["name"]: entry for entry in workload["modes"]["shuffled"] if "median" in entry}
        bars = [_bar(name, title, found[name], 1000) for name, title in _CPU.items() if name in found]
        panels.append(Panel(workload["title"], "shuffled, files in the page cache", "k samples/s", bars, None))
    footer = (
        f"{_host(record)}; {record['date'][:10]}. Medians, lines are quartiles. A batch is complete in CPU memory. The "
        f"copy shuffles nothing and writes over its last batch: a reference, no loader."
    )
    return Picture("Thousands of samples a second on a CPU, by workload and loader", panels, footer, 860, 2)


def pictures() -> dict[str, str]:
    """Every SVG file by its name, light and dark."""
    drawn = [*_loading(), ("cold-start-gpu", _cold_starts()), ("cpu", _on_a_cpu())]
    return {f"{name}-{theme}.svg": draw(picture, theme) for name, picture in drawn for theme in THEMES}


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or name those that differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture", description="pictures of the records")
    parser.add_argument("--write", action="store_true", help="write the files")
    write = parser.parse_args(arguments).write
    stale = 0
    for name, svg in pictures().items():
        path = RESULTS / name
        if write:
            path.write_text(svg, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != svg:
            print(f"{path} is not the picture of the records")
            stale = 1
    return stale


if __name__ == "__main__":
    raise SystemExit(main())
