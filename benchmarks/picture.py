"""The picture of the README, out of the records: a cold start and hot files, in GB/s into GPU memory.

python -m benchmarks.picture            says which files differ from the records
python -m benchmarks.picture --write    writes them
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.panels import THEMES, Bar, Panel, Picture, draw

__all__ = ["main", "pictures"]

RESULTS = Path(__file__).parent / "results"
COLD, HOT, CASE = "cold-start-gpu", "gpu-loaders", "images-full"
_COLD = {"gdsload": "gdsload", "spdl": "SPDL", "torch": "torch DataLoader"}
_HOT = {"gdsload": "gdsload", "spdl": "SPDL", "kvikio": "kvikio by hand", "torch-batches": "torch DataLoader"}
_KINDS = {"gdsload": "ours", "torch": "torch", "torch-batches": "torch"}


def _record(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return record


def _bar(name: str, title: str, found: dict[str, float]) -> Bar:
    return Bar(title, found["median"], found["q1"], found["q3"], _KINDS.get(name, "peer"))


def _cold() -> tuple[Panel, dict[str, Any]]:
    """Epoch 1 of a new process, and its record. The limit is the best rate of O_DIRECT reads in any of its cases."""
    record = _record(COLD)
    forms = next(case["forms"] for case in record["cases"] if case["name"] == CASE)
    drive = max(trial["gb_s"] for case in record["cases"] for trial in case["trials"]["drive"])
    bars = [_bar(name, title, forms[name]["gb_s"][0]) for name, title in _COLD.items() if name in forms]
    return Panel("Cold start", "epoch 1 of a new process", "GB/s", bars, ("drive", drive)), record


def _hot() -> tuple[Panel, dict[str, Any]]:
    """Files in the page cache, and the run in the record. The limit is the rate of copies out of pinned memory."""
    record = _record(HOT)
    case = next(case for case in record["cases"] if case["name"] == CASE)
    rates = {entry["name"]: entry["gb_s"] for entry in case["entries"] if "gb_s" in entry}
    bars = [_bar(name, title, rates[name]) for name, title in _HOT.items() if name in rates]
    limit = ("PCIe link", rates["P"]["median"])
    return Panel("Hot", "files in the page cache", "GB/s", bars, limit), record["runs"][case["run"]]


def pictures() -> dict[str, str]:
    """Every SVG file by its name: for wide and narrow pages, light and dark."""
    (cold, start), (hot, run) = _cold(), _hot()
    gpus = sorted({one["machine"]["gpu"] for one in (start, run)})
    footer = (
        f"Images of 150 KB (3×224×224 uint8), full shuffle, batches of 256 in GPU memory. "
        f"{', '.join(gpus)}, {run['machine']['cores']} cores, virtual drive; "
        f"cold {start['date'][:10]}, hot {run['date'][:10]}. Medians; torch in its best form, with {run['workers']} workers."
    )
    found: dict[str, str] = {}
    for suffix, width, columns in (("", 860, 2), ("-narrow", 400, 1)):
        picture = Picture("GB/s into GPU memory: gdsload and other loaders", (cold, hot), footer, width, columns, 30)
        found |= {f"loading{suffix}-{theme}.svg": draw(picture, theme) for theme in THEMES}
    return found


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or name those that differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture", description="the picture of the README")
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
