"""Each benchmark runs small on a CPU: it prints its table, and its record has a row for each case, with numbers."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import multiprocessing
import threading
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from benchmarks.gpu import ranks


class Run(NamedTuple):
    """A benchmark, its options, the key of its rows in the record, and their names in order."""

    module: str
    options: str
    rows: str
    names: tuple


SAMPLERS = (
    "RandomSampler", "WeightedRandomSampler", "BatchSampler", "a tensor", "a function", "a mixture",
)  # fmt: skip
SHAPES = (
    "images-32-of-8-ranks", "rows-4k-windows", "rows-4k-gather", "tokens-offsets", "tokens-padded", "tokens-jagged",
    "files", "scalars",
)  # fmt: skip
FOLDERS = (
    "gdsload, kept encoded", "gdsload, the middle decoded once", "gdsload, decoded once, cropped anew",
    "torch's loader, Pillow in workers",
    *["torch's loader, ImageFolder in workers"] * bool(importlib.util.find_spec("torchvision")), "the steps alone",
)  # fmt: skip
SHORT = "--rounds 2 --seconds-per-trial 0.01 --device cpu"
ROUNDS = "--rounds 2"
RANKS = ("plain copies", "plain reads", "full, batch 256")
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
]  # fmt: skip


def values_of(record, key):
    """What a key has, wherever it is in a record."""
    if isinstance(record, dict):
        yield from (value for name, value in record.items() if name == key)
    if isinstance(record, dict | list):
        for value in record.values() if isinstance(record, dict) else record:
            yield from values_of(value, key)


def named(rows):
    """The rows of a record by their names."""
    if isinstance(rows, dict):
        return rows
    return {next(row[key] for key in ("name", "batch") if key in row): row for row in rows}


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
def test_a_benchmark_runs_small_and_records_its_rows(run, tmp_path, capsys, monkeypatch):
    module, out = importlib.import_module(f"benchmarks.{run.module}"), tmp_path / "record.json"
    if run.module == "gpu.training":
        monkeypatch.setattr(module, "link", lambda *_: {"gb_s": 10.0})  # which takes seconds
    assert module.main([*run.options.split(), "--out", str(out)]) == 0
    record, text = json.loads(out.read_text(encoding="utf-8")), capsys.readouterr().out
    rows = named(record[run.rows])
    assert tuple(rows) == run.names
    for name, row in rows.items():
        assert str(row.get("title", name)) in text
        medians = list(values_of(row, "median"))
        assert max(medians) > 0
        assert all(math.isfinite(median) and median >= 0 for median in medians)
        assert all(nbytes > 0 for nbytes in values_of(row, "host"))
    if hasattr(module, "render"):
        assert text.rstrip("\n") == module.render(record).rstrip("\n")
    assert str(tmp_path) not in json.dumps(record)  # a record is published: no paths of the machine
    assert list(tmp_path.iterdir()) == [out]
