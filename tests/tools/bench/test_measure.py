"""A whole measurement, and its record."""

import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import pytest

import gdsload
from gdsload.errors import BackendUnavailableError, DiskFullError, OptionError, ReadError
from gdsload.loader.loader import DataLoader
from gdsload.system.drive_rate import DriveRate
from gdsload.tools.bench import bench_plan, made, make_dataset, make_plan, plan_text, rows, run_bench
from gdsload.tools.bench import cache_state as cache
from gdsload.tools.bench import measure as run
from gdsload.tools.cli import Terminated


@pytest.fixture(autouse=True)
def known_limits(monkeypatch):
    """Limits of the machine take seconds to measure, and change nothing here."""
    monkeypatch.setattr(run, "drive_limit", lambda *_: (None, "it was not measured"))
    monkeypatch.setattr(run, "memory_limit", lambda _: {"gb_per_s": 1e6})


@pytest.mark.parametrize(
    ("turns", "signal", "name"),
    [(0, KeyboardInterrupt, "Ctrl-C"), (3, KeyboardInterrupt, "Ctrl-C"), (3, Terminated, "SIGTERM")],
)
def test_a_signal_gives_what_was_measured(planned, turns, signal, name):
    def progress(what, _done, _of):
        if f"turn {turns + 1} of 5" in what:
            raise signal

    record = run_bench(planned(cold=False), progress=progress)
    assert record["stopped"] == f"by {name} after {turns} of 5 turns"
    assert sum(len(row["turns"]) for row in record["hot"]["rows"]) == turns
    assert record["cold"] is None


def test_no_round_begins_after_the_budget(planned):
    record = run_bench(planned(cold=False, turns=50, seconds=None, budget_s=0.5))
    own, control, by_hand = (len(row["turns"]) for row in record["hot"]["rows"])
    assert by_hand == -(-own // 3)
    assert own == control < 50  # whole rounds
    assert any("the budget of 0.5 s was over" in note for note in record["conditions"]["notes"])


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no /dev/shm here")
def test_cold_is_refused_where_files_are_in_memory_alone(bench_data, planned):
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gdsload-bench-") as folder:
        plan = planned(shutil.copytree(bench_data, f"{folder}/shards"), turns=1)
        if bench_plan.describe(plan)["file_system"] != "tmpfs":
            pytest.skip("/dev/shm is no tmpfs here")
        record = run_bench(plan)
    assert record["cold"]["state"].startswith("not cold: ")
    assert "tmpfs" in record["cold"]["state"]
    assert record["cold"]["rows"] == []
    assert record["hot"]["state"] == "hot"


def test_a_mapped_file_is_not_cold(planned, drops):
    """The negative control of the check."""
    plan = planned(turns=1, hot=False)
    with DataLoader(plan.path, 64, device="cpu") as loader:
        assert len(list(loader)) == 11
        record = run_bench(plan)
        assert record["cold"]["state"].startswith("not cold: ")
        assert record["cold"]["rows"] == []
    record = run_bench(plan)
    assert (record["cold"]["state"], record["hot"]) == ("cold", None)


def test_the_process_that_maps_a_file_is_named(planned):
    plan = planned()
    code = (
        "import mmap, sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, prot=1); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code, plan.files[0]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as mapping:
        assert mapping.stdout.read(1) == b"1"
        assert cache.who_maps(plan.files).startswith(f"pid {mapping.pid} ")
        mapping.communicate(b"\n")
    assert not cache.who_maps(plan.files)


@pytest.mark.parametrize(
    ("module", "name", "answer", "said"),
    [
        (cache, "resident_share", 0.0, "does not report a page that was just read"),
        (cache.os, "access", False, "only to users who may write to it"),
    ],
)
def test_who_cannot_see_pages_is_not_believed(planned, monkeypatch, module, name, answer, said):
    monkeypatch.setattr(module, name, lambda *_: answer)
    monkeypatch.setattr(cache.os, "geteuid", lambda: -1)
    record = run_bench(planned(turns=1))
    for state in ("cold", "hot"):
        assert record[state]["state"].startswith(f"not {state}: ")
        assert said in record[state]["state"]
        assert record[state]["rows"] == []


def test_hot_is_refused_where_memory_is_too_small_but_for_what_is_there(planned, monkeypatch):
    real, more = bench_plan.describe, {"fits_memory": False, "memory_bytes": 1000}
    monkeypatch.setattr(bench_plan, "describe", lambda plan: real(plan) | more)
    plan = planned(turns=1, cold=False)
    assert "1000 B of memory are available" in run_bench(plan)["hot"]["state"]
    more["file_system"] = "tmpfs"
    assert run_bench(plan)["hot"]["state"] == "hot"


def test_hot_is_refused_where_the_page_cache_takes_too_long_to_fill(planned, drops, monkeypatch):
    slow = DriveRate(1.0, 4096, 4, 4, None, None, 1e-6)
    monkeypatch.setattr(run, "drive_limit", lambda *_: (slow, ""))
    plan = planned(turns=1, cold=False)
    with monkeypatch.context() as patch:
        patch.setattr(run, "look", lambda files: cache.Residency(10, 5))
        assert "pass a larger --budget" in run_bench(plan)["hot"]["state"]
    cache.fill(plan.files)
    assert run_bench(plan)["hot"]["state"] == "hot"


def test_of_many_pages_some_are_looked_at(planned, drops, monkeypatch):
    plan = planned()
    monkeypatch.setattr(cache, "_MOST_PAGES", 128)
    monkeypatch.setattr(cache, "_DRAWN_PAGES", 128)
    assert cache.look(plan.files) == cache.Residency(128, 0)
    assert cache.fill(plan.files[:1]).hot
    assert 0 < cache.look(plan.files).share < 1
    assert cache.fill(plan.files) == cache.Residency(128, 128)


OTHER_BYTES = "has other bytes than ShardDataset reads"
WRONG = {
    "a byte of the last samples": (lambda batches: [batch["image"][-1, -1, -1:].add_(1) for batch in batches], OTHER_BYTES),
    "a sample has the text of another": (lambda batches: batches[0]["text"].reverse(), OTHER_BYTES),
    "the first batch comes twice": (lambda batches: batches.insert(0, dict(batches[0])), OTHER_BYTES),
    "a sample is missing": (
        lambda batches: batches[0].update(image=batches[0]["image"][:2]), "a batch has 2 samples instead of 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", WRONG)
def test_wrong_bytes_end_it(planned, monkeypatch, how):
    change, match = WRONG[how]

    class Wrong(DataLoader):
        def __iter__(self):
            batches = list(super().__iter__())
            change(batches)
            return (batch for batch in batches)

    monkeypatch.setattr(rows, "DataLoader", Wrong)
    with pytest.raises(ReadError, match=match):
        run_bench(planned(batch_size=3, shuffle="full"))


def test_rounds_begin_with_the_next_row_and_each_third_has_all(planned):
    plan = planned()
    own, hand = rows.LoaderRow(plan, "host"), rows.Row(plan, "read", "")
    control = rows.ControlRow(own)
    found = [[row.name for row in some] for some in run.rounds([own, control, hand], 5)]
    assert found == [
        ["host", "control", "read"], ["control", "host"], ["host", "control"], ["host", "control", "read"],
        ["host", "control"],
    ]  # fmt: skip


def test_a_bench_without_a_backend_is_refused(planned):
    with pytest.raises(BackendUnavailableError, match=r"bounce: .*needs a CUDA device"):
        run_bench(planned(backends=("bounce",)))


@pytest.mark.parametrize("budget_s", [1, 60, 3600])
def test_the_plan_keeps_to_its_budget(planned, budget_s):
    plan = planned(seconds=None, budget_s=budget_s, turns=9)
    assert 0 < plan.turns * 2 * (plan.turn_s + plan.hot_turn_s) < budget_s
    assert "9 turns of " in plan_text(plan)
    assert plan.ramp_s <= plan.turn_s
    assert plan.turn_s == 3 * plan.hot_turn_s
    assert plan.hot_turn_s > 0.1 or budget_s == 1


@pytest.mark.parametrize(("gb_per_s", "factor"), [(1e-6, 2), (1e6, 1)])
def test_turns_are_longer_where_the_drive_is_slow(planned, monkeypatch, gb_per_s, factor):
    monkeypatch.setattr(run, "drive_limit", lambda *_: (DriveRate(gb_per_s, 4096, 4, 4, None, None, 1.0), ""))
    plan = planned(turns=1, seconds=None, budget_s=1, cold=False)
    assert run_bench(plan)["conditions"]["turn_s"] == pytest.approx(factor * plan.turn_s)


def test_batches_of_small_samples(tmp_path):
    for name, samples in (("one", 1), ("tokens", 100_000)):
        with gdsload.ShardWriter(tmp_path / name) as writer:
            writer.write_batch({"tokens": np.zeros(samples, "uint16")})
        plan = make_plan(str(tmp_path / name), device="cpu")
        assert (plan.batch_size, plan.sample_bytes) == (min(samples, 65536), 2)  # and no part of the file's header


def test_bad_options_are_refused(bench_data):
    for option, match in ({"budget_s": 0}, "budget"), ({"seconds": -1}, "seconds"), ({"turns": 0}, "turns"):
        with pytest.raises(OptionError, match=match):
            make_plan(bench_data, device="cpu", **option)


def test_a_dataset_is_made(tmp_path, monkeypatch):
    path = make_dataset(tmp_path / "new", 10_000, 300)
    found = gdsload.ShardDataset(path)
    assert (len(found), found.schema["x"].shape) == (33, (300,))
    assert len(np.unique(found[7]["x"])) > 30
    with pytest.raises(OptionError, match="has no row of 300"):
        make_dataset(tmp_path, 299, 300)
    monkeypatch.setattr(made.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 100))
    with pytest.raises(DiskFullError, match="and 100 B are free"):
        make_dataset(tmp_path / "other", 1000, 300)
