"""The suite of loaders runs on a CPU, too: its record has the shape that the tables and its readers expect."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import table as tables
from benchmarks.contenders import CONTENDERS, load
from benchmarks.contenders.base import Contender, Job, open_rows
from benchmarks.gpu.limits import DirectReads, PinnedCopies
from benchmarks.gpu.suite import __main__ as suite
from benchmarks.gpu.suite import chart, measures, table, trial
from benchmarks.gpu.suite.cases import CASES, MEASURES, Rows, make_rows
from benchmarks.gpu.suite.data import Stored, row_hashes
from benchmarks.record import pruned

FOLDER = Path(table.__file__).parent.parent
NO_RECORD = "No record is committed yet.\n"
PEERS = ["torch-batches", "dali"]
STEPS = ["step-full", "step-gather-products", "step-gather-graph"]
CPU = torch.device("cpu")


def run(out, *options):
    small = ["--small", "--device", "cpu", "--workers", "2", "--out", str(out), "--work-dir", str(out.parent)]
    return suite.main([*small, *options])


@pytest.fixture(scope="module")
def record(tmp_path_factory, contenders_here):
    out = tmp_path_factory.mktemp("suite") / "gpu-loaders.json"
    again = ["first-batch", "images-in-order", "launches", *STEPS]
    with contenders_here(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "_LAUNCHES_S", 0.02)
        assert run(out, "--rounds", "2", "--only", "rows-4k-full", "memory", "--peers", *PEERS) == 0
        assert run(out, "--rounds", "1", "--only", *again, "--peers", "--merge") == 0
    assert [path.name for path in out.parent.iterdir()] == [out.name]  # gigabytes each: nothing may stay behind
    return json.loads(out.read_text(encoding="utf-8"))


def entries_of(record, name):
    (case,) = (case for case in record["cases"] if case["name"] == name)
    return {entry["name"]: entry for entry in case["entries"]}


@pytest.mark.slow
def test_every_contender_has_its_trials_and_its_bytes_are_right(record):
    found = entries_of(record, "rows-4k-full")
    for name in ("P", "gdsload", "gdsload-shards", "torch-batches"):
        entry = found[name]
        assert "failed" not in entry
        assert len(entry["trials"]) == 2
        assert all(each["gb_s"] > 0 and each["resident"] >= 0.999 for each in entry["trials"])
        assert entry["gb_s"]["q1"] <= entry["gb_s"]["median"] <= entry["gb_s"]["q3"]
        if name != "P":
            assert entry["check"]["samples"] == 128
            assert entry["check"]["missing"] == entry["check"]["repeated"] == entry["check"]["foreign"] == 0
            assert not entry["check"]["in_order"]
    assert entries_of(record, "images-in-order")["gdsload"]["check"]["in_order"]


@pytest.mark.slow
def test_a_peer_that_is_absent_is_a_row_not_a_gap(record):
    assert entries_of(record, "rows-4k-full")["dali"]["failed"]["stage"] == "not installed"
    assert "| dali | not installed |" in table.render(record)


@pytest.mark.slow
def test_calls_merge_and_ratios_stay_within_one(record):
    assert [(case["name"], case["run"]) for case in record["cases"]] == [("images-in-order", 1), ("rows-4k-full", 0)]
    of_run = {each["name"]: each["run"] for each in record["measures"]}
    assert of_run == {"memory": 0, "first-batch": 1, "launches": 1, **dict.fromkeys(STEPS, 1)}
    assert [each["rounds"] for each in record["runs"]] == [2, 1]
    ratios = record["cases"][1]["ratios"]
    assert ratios.keys() >= {"gdsload/P", "gdsload/torch-batches", "gdsload-shards/P"}
    assert "torch-batches/P" in ratios
    assert "P/gdsload" not in ratios


def test_runs_that_nothing_is_of_any_more_go():
    runs = [{"date": day} for day in ("first", "second", "third")]
    record = {"format": 1, "runs": runs, "cases": [{"name": "a", "run": 2}], "measures": [{"name": "b", "run": 0}]}
    found = pruned(record, ("cases", "measures"))
    assert [run["date"] for run in found["runs"]] == ["first", "third"]
    assert (found["cases"][0], found["measures"][0]) == ({"name": "a", "run": 1}, {"name": "b", "run": 0})
    assert found["format"] == 1


@pytest.mark.slow
def test_measures_have_their_numbers(record):
    found = {each["name"]: each for each in record["measures"]}
    memory, first = found["memory"], found["first-batch"]
    assert len(memory["trials"]) == 1  # once, not in every round
    assert len(memory["trials"][0]["by_epoch"]["anonymous"]) == 20
    assert memory["numbers"]["anonymous_last"]["median"] > 0
    assert 0 < first["numbers"]["loader_ms"]["median"] <= first["numbers"]["first_batch_ms"]["median"]


@pytest.mark.slow
def test_the_record_renders_and_draws(record):
    text = table.render(record)
    assert "numbers mean nothing" in text
    assert "Several calls" in text
    rates = sum("gb_s" in entry for case in record["cases"] for entry in case["entries"])
    image = ET.fromstring(chart.draw(record))
    assert sum(each.get("height") == "16" for each in image.iter("{http://www.w3.org/2000/svg}rect")) == rates


@pytest.mark.slow
def test_training_steps_and_launches_are_measured(record):
    found = {each["name"]: each["numbers"] for each in record["measures"]}
    assert [name for name in found if name in STEPS] == STEPS
    assert min(found[name]["over_longer"]["median"] for name in STEPS) > 0
    assert min(found["launches"][key]["median"] for key in ("alone_per_s", "paced_gb_s", "full_over_alone")) > 0


@given(st.integers(0, 2**32), st.integers(0, 4), st.integers(0, 63), st.integers(1, 255))
def test_a_byte_that_differs_shows_in_the_hash_of_its_row_alone(seed, row, column, change):
    rows = np.random.default_rng(seed).integers(0, 256, (5, 64), np.uint8)
    before = row_hashes(torch.from_numpy(rows.copy()))
    rows[row, column] ^= change
    differs = before != row_hashes(torch.from_numpy(rows).view(5, 4, 16))
    assert differs.tolist() == [number == row for number in range(5)]


@pytest.fixture
def stored(tmp_path):
    found = Stored(Rows("tiny", (3, 8), 40), tmp_path / "tiny")
    found.write()
    return found


class Wrong(Contender):
    """Forgets a row, hands out another twice, and alters a third."""

    title = "wrong"
    host = False

    def batches(self, *, endless):
        rows = torch.from_numpy(np.array(self.open_source()))
        rows[1], rows[5] = rows[0], rows[5] ^ 1
        yield from rows.split(self.job.batch_size)


@pytest.fixture
def job(stored, tmp_path):
    return Job(tmp_path, stored.files[0], (3, 8), "uint8", 40, 8, "sequential", CPU, 1)


@pytest.mark.parametrize("name", ["gdsload", "safetensors"])
def test_what_a_contender_gives_is_what_was_written(stored, job, name):
    contender = load(name)(replace(job, order="full"))
    found = trial.check(contender, stored.hashes)
    assert (found["samples"], found["missing"], found["repeated"], found["foreign"]) == (40, 0, 0, 0)


def test_the_check_finds_what_is_wrong(stored, job):
    found = trial.check(Wrong(job), stored.hashes)
    assert (found["missing"], found["repeated"], found["foreign"]) == (2, 1, 1)


def test_a_trial_of_bursts_is_of_whole_epochs(job):
    class Bursts(Wrong):
        bursts = True

        def batches(self, *, endless):
            while True:
                yield from super().batches(endless=True)

    found = trial.hot_trial(Bursts(job), 0.001, 0.001)
    assert found["bytes"] % (40 * 24) == 0
    assert found["samples_s"] == pytest.approx(found["gb_s"] * 1e9 / 24)


def test_a_cold_trial_is_an_epoch_and_its_first_batch_counts(job):
    found = trial.cold_trial(Wrong(job), 10)
    assert found["whole_epoch"]
    assert found["bytes"] == 40 * 24
    part = found["gb_s_after_first"] * (found["seconds"] - found["first_batch_s"]) * 1e9
    assert part == pytest.approx(32 * 24)


def test_a_shard_is_mapped_as_its_writer_wrote_it(stored):
    rows = open_rows(stored.files[0])
    assert rows.shape == (40, 3, 8)
    assert row_hashes(torch.from_numpy(np.array(rows))).tolist() == stored.hashes.tolist()


def test_processor_time_counts_a_child_that_lives_and_one_that_has_ended():
    burn = "import time, sys\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"
    before = trial.cpu_s()
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert trial.cpu_s() - before > 0.25
        child.stdin.close()
        child.wait()
        assert trial.cpu_s() - before > 0.25


def test_limits_count_what_they_move(stored):
    assert PinnedCopies(CPU, 1000).run(2500) == 2000
    assert DirectReads(stored.files, pinned=False).run() == sum(path.stat().st_size for path in stored.files)


def test_what_cases_name_exists():
    rows = make_rows(2**30, multiple=16)
    for case in CASES:
        assert case.limit == case.contenders[0]
        assert set(case.contenders) <= CONTENDERS.keys()
        assert rows[case.rows].samples % case.batch_size == 0
    assert {each.rows for each in MEASURES} <= rows.keys()


def test_the_readme_shows_the_record():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    path = FOLDER.parent / "results/gpu-loaders.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    rendered = table.render(record) if record else NO_RECORD
    assert tables.embed(text, rendered, table.MARK) == text, (
        "run: python -m benchmarks.gpu.suite.table benchmarks/results/gpu-loaders.json --write benchmarks/gpu/README.md"
    )
    if record:
        assert path.with_suffix(".svg").read_text(encoding="utf-8") == chart.draw(record)
