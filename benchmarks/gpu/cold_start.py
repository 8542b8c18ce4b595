"""The first three epochs of a fresh process from files that are not in the page cache, with default options.

    python -m benchmarks.gpu.cold_start --work-dir /mnt/nvme --out cold-start.json
    python -m benchmarks.gpu.cold_start --device cpu --bytes 1GiB --cases images-full --forms gdsload torch

Each trial is a new process. The loader is made, the files are dropped from the page cache and the kernel is asked
whether they are gone; then three epochs are timed from the first `iter` on, the first batch apart. In the same round
are measured D, the files in sequence with O_DIRECT, and the hot rate: in the first form's process, the third epoch of
another loader of gdsload over files that were read whole before. Beside them are torch's loader with workers and SPDL,
if it is installed; each of their workers reads rows by `preadv`, from one file that holds the same rows. They have no
block shuffle: there, they shuffle fully. Before the rounds, every byte of two epochs of gdsload is compared, the first
one cold. JPEGs are decoded, by gdsload alone: their rates are of encoded bytes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gdsload
from benchmarks.folders import existing_folder
from benchmarks.gpu.cold_trial import DIFFERENT, EPOCHS, FORMS, GDSLOAD
from benchmarks.gpu.limits import DirectReads
from benchmarks.images import jpegs
from benchmarks.record import head, keep, ratio, spread
from benchmarks.workloads import SEED
from gdsload.system.units import parse_bytes
from gdsload.tools.bench.cache_state import drop

__all__ = ["CASES", "Case", "main", "write"]

_CHUNK_BYTES = 2**26
_TRIAL_S = 900


@dataclass(frozen=True, slots=True)
class Case:
    """One load.

    Attributes:
        name: its key in the record.
        row_bytes: the least and the most bytes of a row.
        batch: rows of a batch.
        shuffle: the order.
        decoded: whether the rows are JPEGs, which are decoded: about as many bytes each, as `benchmarks.images` has
            them.
    """

    name: str
    row_bytes: tuple[int, int]
    batch: int
    shuffle: bool | str
    decoded: bool = False

    @property
    def ragged(self) -> bool:
        """True if rows differ in length."""
        return self.row_bytes[0] != self.row_bytes[1]

    @property
    def rows(self) -> str:
        """The folder of its rows."""
        return "-".join(map(str, self.row_bytes))


_IMAGE = 3 * 224 * 224
CASES = (
    Case("images-in-order", (_IMAGE, _IMAGE), 256, False),
    Case("images-full", (_IMAGE, _IMAGE), 256, "full"),
    Case("images-block", (_IMAGE, _IMAGE), 256, "block"),
    Case("rows-4k-block", (4096, 4096), 2048, "block"),
    Case("volumes-full", (2**25, 2**25), 4, "full"),
    Case("ragged-full", (20_000, 200_000), 256, "full"),
    Case("jpegs-block", (57_000, 57_000), 256, "block", decoded=True),
)


def write(case: Case, folder: Path, nbytes: int) -> None:
    """Write seeded random rows, each of which begins with its number: as shards, and one after the other.

    JPEGs are in shards alone.
    """
    if case.decoded:
        with gdsload.ShardWriter(folder / "shards", {"x": gdsload.Field("image"), "n": gdsload.Field("int64")}) as out:
            images = jpegs(DIFFERENT)
            for number in range(round(nbytes / np.mean([len(image) for image in images]))):
                out.write({"x": images[number % DIFFERENT], "n": number})
        return
    random = np.random.default_rng([SEED, *case.row_bytes])
    count = max(round(nbytes / (sum(case.row_bytes) / 2)), 8)
    sizes = random.integers(*case.row_bytes, count, endpoint=True)
    bounds = np.append(0, np.cumsum(sizes))
    np.save(folder / "bounds.npy", bounds)
    each = max(_CHUNK_BYTES // max(case.row_bytes), 1)
    fields = {"x": gdsload.Field("uint8", (None,) if case.ragged else (case.row_bytes[0],))}
    with open(folder / "rows.bin", "wb") as file, gdsload.ShardWriter(folder / "shards", fields) as writer:
        for low in range(0, count, each):
            here = bounds[low : low + each + 1] - bounds[low]
            values = np.frombuffer(random.bytes(int(here[-1])), np.uint8).copy()
            places = here[:-1, None] + np.arange(8)
            values[places] = np.arange(low, low + len(places)).view(np.uint8).reshape(-1, 8)
            file.write(values.data)
            writer.write_batch({"x": (values, here) if case.ragged else values.reshape(len(places), -1)})
        file.flush()
        os.fsync(file.fileno())


def _run(order: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """A trial in a new process.

    Raises:
        RuntimeError: if it fails.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        answer = Path(folder, "answer.json")
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu.cold_trial"],
            input=json.dumps({**order, "answer": str(answer)}),
            stderr=subprocess.PIPE,
            text=True,
            timeout=_TRIAL_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{order['op']} of {order['form']} failed:\n{done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return found


def _case(case: Case, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All forms of one case, in turns."""
    files = {"shards": str(folder / "shards"), "rows": str(folder / "rows.bin"), "bounds": str(folder / "bounds.npy")}
    order = {**asdict(case), **files, "device": options.device, "workers": options.workers}
    _run({**order, "op": "check", "form": "gdsload"}, folder)
    forms = [form for form in options.forms if form in GDSLOAD or not case.decoded]
    trials: dict[str, list[dict[str, Any]]] = {name: [] for name in ("drive", *forms)}
    for _ in range(options.rounds):
        trials["drive"].append(_drive(folder / "shards"))
        for form in forms:
            trials[form].append(_run({**order, "op": "epochs", "form": form, "hot": form == forms[0]}, folder))
    rows = (folder / "shards").glob("*.safetensors") if case.decoded else [folder / "rows.bin"]
    nbytes = sum(file.stat().st_size for file in rows)
    return {"name": case.name, "bytes": nbytes, "trials": trials, **_ratios(trials, nbytes)}


def _drive(shards: Path) -> dict[str, float]:
    """D: the files in sequence, around the page cache, by twelve threads."""
    files = sorted(shards.glob("*.safetensors"))
    reads = DirectReads(files, pinned=False)
    drop(list(map(str, files)))
    began = time.perf_counter()
    nbytes = reads.run()
    return {"gb_s": nbytes / (time.perf_counter() - began) / 1e9}


def _ratios(trials: dict[str, list[dict[str, Any]]], nbytes: int) -> dict[str, Any]:
    """Rates of the epochs, to D, to the hot rate and to torch, round by round."""

    def rates(form: str, epoch: int) -> list[float]:
        return [nbytes / each["epoch_s"][epoch] / 1e9 for each in trials[form]]

    drive = [each["gb_s"] for each in trials["drive"]]
    hot = [nbytes / each["hot_s"] / 1e9 for runs in trials.values() for each in runs if "hot_s" in each]
    forms = {}
    for form, runs in trials.items():
        if form == "drive":
            continue
        epochs = [rates(form, epoch) for epoch in range(EPOCHS)]
        forms[form] = {
            "gb_s": [spread(each) for each in epochs],
            "to_drive": [ratio(each, drive) for each in epochs],
            "missing_to_drive": [ratio(_missing(runs, epoch, nbytes), drive) for epoch in range(EPOCHS)],
            "to_hot": [ratio(each, hot) for each in epochs],
            "opened_to_first_batch_s": spread([each["open_s"] + each["first_batch_s"] for each in runs]),
        }
        if "torch" in trials and form in GDSLOAD:
            forms[form]["to_torch"] = [ratio(each, rates("torch", epoch)) for epoch, each in enumerate(epochs)]
    return {"drive_gb_s": spread(drive), "hot_gb_s": spread(hot), "forms": forms}


def _missing(runs: list[dict[str, Any]], epoch: int, nbytes: int) -> list[float]:
    """Rates of what an epoch had to read from the drive: of the first one everything, of others what went around it."""
    missing = [each["paths"][epoch].get("bounce-direct", 0) if epoch else nbytes for each in runs]
    return [some / each["epoch_s"][epoch] / 1e9 for some, each in zip(missing, runs, strict=True)]


def _lines(case: dict[str, Any]) -> list[str]:
    lines = [f"{case['name']}: D {_shown(case['drive_gb_s'])}, hot {_shown(case['hot_gb_s'])} GB/s"]
    for form, found in case["forms"].items():
        epochs = " · ".join(_shown(each) for each in found["gb_s"])
        to = [f"to D {found['to_drive'][0]['median']:.2f}", "of what is missing " + _medians(found["missing_to_drive"])]
        to = to if form == "gdsload-half" else [to[0], "to hot " + _medians(found["to_hot"][1:])]
        if "to_torch" in found:
            to.append("to torch " + _medians(found["to_torch"]))
        first = found["opened_to_first_batch_s"]["median"]
        resident = " · ".join(f"{share:.2f}" for share in case["trials"][form][-1]["resident"])
        lines.append(f"  {form:18} {epochs} GB/s; {'; '.join(to)}; first batch {first:.2f} s; resident {resident}")
    return lines


def _shown(found: dict[str, float]) -> str:
    return f"{found['median']:.2f} ({found['q1']:.2f}-{found['q3']:.2f})"


def _medians(found: list[dict[str, float]]) -> str:
    return " · ".join(f"{each['median']:.2f}" for each in found)


def _measure(options: argparse.Namespace, done: Callable[[list[dict[str, Any]]], None]) -> None:
    """Measure case after case; `done` is called after each, with all so far."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="gdsload-bench-", dir=options.work_dir) as scratch:
        for case in CASES:
            if case.name not in options.cases:
                continue
            folder = Path(scratch, case.rows)
            if not folder.exists():
                folder.mkdir()
                write(case, folder, parse_bytes(options.bytes, "--bytes"))
            found.append(_case(case, folder, options))
            done(found)


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print the lines of each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.cold_start", description="cold starts")
    names = [case.name for case in CASES]
    forms = [form for form in FORMS if form != "spdl" or importlib.util.find_spec("spdl")]
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--bytes", default="4GiB", help="of the rows of a case (default: 4GiB)")
    parser.add_argument("--cases", nargs="+", choices=names, default=names, metavar="CASE", help=", ".join(names))
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=forms, metavar="FORM", help=", ".join(FORMS))
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="of torch and SPDL")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work-dir", type=existing_folder, help="where the data go (default: the temporary folder)")
    parser.add_argument("--out", type=Path, default=None, help="where the JSON record goes (default: nowhere)")
    options = parser.parse_args(arguments)
    begin = head("benchmarks.gpu.cold_start", arguments, torch.device(options.device))
    print(begin["machine"], begin["versions"], sep="\n")
    options.bytes_checked = "two epochs of gdsload, the first one cold, before the rounds"
    shown = argparse.Namespace(**{**vars(options), "work_dir": None})  # which is this machine's

    def done(found: list[dict[str, Any]]) -> None:
        print(*_lines(found[-1]), sep="\n", flush=True)
        keep(begin, shown, found)

    _measure(options, done)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
