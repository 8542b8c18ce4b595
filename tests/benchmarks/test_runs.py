"""Each benchmark runs small on a CPU: it prints its table, and its record has a row for each case, with numbers."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import math
import multiprocessing
import subprocess
import threading
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from benchmarks.gpu import ranks
from benchmarks.gpu.suite import __main__ as suite
from benchmarks.gpu.suite import table


class Run(NamedTuple):
    """A benchmark, its options, the key of its rows in the record, and their names in order."""

    module: str
    options: str
    rows: str
    names: tuple


SAMPLERS = (
    "RandomSampler", "WeightedRandomSampler", "BatchSampler", "a tensor", "a function", "a mixture",
)  # fmt: skip
SHAPES = ("images-32-of-8-ranks", "rows-4k-windows", "rows-4k-gather", "tokens-jagged", "files", "scalars")
FOLDERS = (
    "gdsload, kept encoded", "gdsload, the middle decoded once", "gdsload, decoded once, cropped anew",
    "torch's loader, Pillow in workers",
    *["torch's loader, ImageFolder in workers"] * bool(importlib.util.find_spec("torchvision")), "the steps alone",
)  # fmt: skip
SHORT = "--rounds 2 --seconds-per-trial 0.01 --device cpu"
ROUNDS = "--rounds 2"
RANKS = ("plain copies", "plain reads", "full, batch 256")
CPU = ("copy", "numpy", "gdsload", "torch-batches")
LOADERS = ("step-full", "step-gather-products", "step-gather-graph", "launches", "memory", "first-batch")
DRIVES = ("host-images-block", "host-images-block-2-drives", "host-images-block-2-drives-one-queue")
SWEPT = ("reads ahead", "prefetch", "group bytes", "threads")
RUNS = [
    Run("clips", f"{ROUNDS} --tokens 3000 --length 65 --batches 4 16 --seconds 0.01 --settle-s 0", "cases", (4, 16)),
    Run("clips", f"{ROUNDS} --frames 60 --batches 4 --seconds 0.01 --settle-s 0 --workers 0", "cases", (4,)),
    Run("images", "--rounds 1 --images 12 --batch-size 4 --without-torch", "results",
        ("gdsload", "gdsload-whole", "decoder-kept", "work", "decoder")),
    Run("image_folder", "--images 12 --batch-size 4 --epochs 1", "results", FOLDERS),
    Run("samplers", f"{ROUNDS} --samples 300 --row-bytes 16 --batch-size 64", "samplers", SAMPLERS),
    Run("small_steps", f"{ROUNDS} --rows 16 --batches 1 64 --steps-ms 0.1 --loop-s 0.003 --samples 200", "cases",
        (1, 64)),
    Run("gpu.shapes", f"{SHORT} --bytes 256KiB --cases {' '.join(SHAPES)}", "cases", SHAPES),
    Run("gpu.training", f"{SHORT} --small --bytes 256KiB --cases network-0.5-auto", "cases", ("network-0.5-auto",)),
    # One rank shows as much of the program as two.
    Run("gpu.ranks", f"{SHORT} --bytes 1MiB --world-size 1 --cases full", "cases", RANKS),
    Run("gpu.ddp", f"{SHORT} --small --bytes 24KiB --world-size 1 --cases resnet18", "cases", ("resnet18",)),
    Run("cpu", f"--small --rounds 1 --seconds 0.01 --workloads thumbnails --contenders {' '.join(CPU)}", "workloads.0.modes.shuffled", CPU),
    Run("convert.__main__", "--small --rounds 1 --kinds array --contenders gdsload gdsload-w1",
        "workloads.0.entries", ("gdsload", "gdsload-w1")),
    Run("convert.__main__", "--small --rounds 1 --kinds table --contenders gdsload arrow",
        "workloads.0.entries", ("gdsload", "arrow")),
    Run("gpu.suite.__main__", "--small --device cpu --workers 2 --rounds 2 --only rows-4k-full --peers torch-batches",
        "cases.0.entries", ("P", "gdsload", "gdsload-shards", "torch-batches")),
    Run("gpu.suite.__main__", f"--small --device cpu --workers 2 --rounds 1 --only {' '.join(LOADERS)} --peers",
        "measures", LOADERS),
    Run("sweep", "--small --bytes 1MiB --row-bytes 4096 --rounds 2 --seconds 0.01 --device cpu --states hot",
        "sweeps", SWEPT),
    Run("gpu.cold_start", "--device cpu --bytes 1MiB --rounds 1 --cases images-block --workers 0 --forms gdsload torch",
        "cases.0.forms", ("gdsload", "torch")),
    Run("gpu.free_drive.__main__", "--small --device cpu --rounds 1 --drive 2GB/s,50us,16 --drives 1 2 --one-queue "
        "--sampled --cases host-images-block", "cases", DRIVES),
    Run("published.__main__", "--device cpu --bytes 1MiB --rounds 1 --seconds 0.01 --settle-s 0 --workers 0", "cases",
        ("dlrm", "unet3d", "windows")),
]  # fmt: skip


WITH_FILES = {
    "cpu", "convert.__main__", "gpu.suite.__main__", "sweep", "gpu.cold_start", "gpu.free_drive.__main__",
    "published.__main__",
}  # fmt: skip
"""Those that take a folder for their files, and print a line as they go on."""
TABLES = {
    "cpu": "benchmarks.table", "convert.__main__": "benchmarks.convert.table",
    "gpu.suite.__main__": "benchmarks.gpu.suite.table",
}  # fmt: skip


def trial_here(command, **options):
    """As `subprocess.run`, for a trial of a cold start: to start a process takes longer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO(options["input"]))
        importlib.import_module(command[2]).main()
    return subprocess.CompletedProcess(command, 0)


CHEAP = {
    "gpu.cold_start": {"benchmarks.gpu.cold_start.subprocess": SimpleNamespace(run=trial_here, PIPE=None)},
    "gpu.training": {"benchmarks.gpu.training.link": lambda *_: {"gb_s": 10.0}},
    "gpu.suite.__main__": {"benchmarks.gpu.suite.measures._LAUNCHES_S": 0.02},
}
"""Calls that take seconds, and their replacements."""


def values_of(record, key):
    """The values of a key, wherever it is in a record."""
    if isinstance(record, dict):
        yield from (value for name, value in record.items() if name == key)
    if isinstance(record, dict | list):
        for value in record.values() if isinstance(record, dict) else record:
            yield from values_of(value, key)


def rows_of(record, path):
    """The rows of a record by their names."""
    for key in path.split("."):
        record = record[int(key) if key.isdigit() else key]
    if isinstance(record, dict):
        return record
    return {next(row[key] for key in ("name", "batch", "setting") if key in row): row for row in record}


class RankInAThread(threading.Thread):
    """A process of a rank, without what it takes to start one."""

    def kill(self):
        """It has ended, or the test fails."""


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    """Torch's threads wait for each other, `sync` for all that others write, and a process imports everything."""
    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=RankInAThread)
    monkeypatch.setattr(ranks, "multiprocessing", SimpleNamespace(get_context=lambda _: context))
    monkeypatch.setattr("os.sync", lambda: None)
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.module)
def test_a_benchmark_runs_small_and_records_its_rows(run, tmp_path, capsys, monkeypatch, contenders_here):
    module, out = importlib.import_module(f"benchmarks.{run.module}"), tmp_path / "record.json"
    for name, cheap in CHEAP.get(run.module, {}).items():
        monkeypatch.setattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2], cheap)
    work = ["--work-dir", str(tmp_path)] if run.module in WITH_FILES else []
    with contenders_here():
        assert module.main([*run.options.split(), *work, "--out", str(out)]) == 0
    record, text = json.loads(out.read_text(encoding="utf-8")), capsys.readouterr().out
    rows = rows_of(record, run.rows)
    assert tuple(rows) == run.names
    for name, row in rows.items():
        assert run.module in WITH_FILES or str(row.get("title", name)) in text
        medians = list(values_of(row, "median"))
        assert max(medians) > 0
        assert all(math.isfinite(median) and median >= 0 for median in medians)
        assert all(nbytes > 0 for nbytes in values_of(row, "host"))
    for word in ("failed", "missing", "repeated", "foreign"):
        assert not any(values_of(record, word))
    assert all(resident > 0.99 for resident in values_of(record, "least_resident"))
    assert str(tmp_path) not in json.dumps(record)  # a record is published: no paths of the machine
    assert list(tmp_path.iterdir()) == [out]  # gigabytes each: nothing may be left
    if run.module in TABLES:
        assert "numbers mean nothing" in importlib.import_module(TABLES[run.module]).render(record)
    elif hasattr(module, "render"):
        assert text.rstrip("\n") == module.render(record).rstrip("\n")


@pytest.mark.slow
def test_a_peer_that_is_absent_is_a_row_and_calls_merge(tmp_path, contenders_here):
    out = tmp_path / "record.json"
    options = ["--small", "--device", "cpu", "--workers", "2", "--rounds", "1", "--out", str(out)]
    with contenders_here():
        assert suite.main([*options, "--only", "rows-4k-full", "--peers", "dali"]) == 0
        assert suite.main([*options, "--only", "images-in-order", "--peers", "--merge"]) == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    assert [(case["name"], case["run"]) for case in record["cases"]] == [("images-in-order", 1), ("rows-4k-full", 0)]
    (in_order, shuffled) = ({one["name"]: one for one in case["entries"]} for case in record["cases"])
    assert in_order["gdsload"]["check"]["in_order"]
    assert not shuffled["gdsload"]["check"]["in_order"]
    assert shuffled["dali"]["failed"]["stage"] == "not installed"
    assert "| dali | not installed |" in table.render(record)
