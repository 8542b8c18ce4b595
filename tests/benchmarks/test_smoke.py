"""The benchmark runs, and its record has the shape that the table and the readers of the record expect."""

import json
import venv
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import cpu, table
from benchmarks.contenders.base import Contender, Job
from benchmarks.residency import measure
from benchmarks.worker import check, compare
from benchmarks.workloads import SMALL, Workload, generate

FOLDER = Path(cpu.__file__).parent
NO_RECORD = "No record yet.\n"
CONTENDERS = ["copy", "numpy", "gdsload", "torch-batches"]


@pytest.fixture(scope="module")
def record(tmp_path_factory, contenders_here):
    folder = tmp_path_factory.mktemp("bench")
    options = ["--small", "--workloads", "thumbnails", "--work-dir", str(folder), "--contenders", *CONTENDERS]
    with contenders_here():
        assert cpu.main([*options, "--out", str(folder / "cpu.json")]) == 0
    assert [path.name for path in folder.iterdir()] == ["cpu.json"]  # a gigabyte each: nothing may stay behind
    return json.loads((folder / "cpu.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_contender_has_its_trials_and_its_bytes_are_right(record):
    (workload,) = record["workloads"]
    names = {mode: [entry["name"] for entry in entries] for mode, entries in workload["modes"].items()}
    assert names["shuffled"] == CONTENDERS
    assert names["sequential"] == CONTENDERS
    for mode, entries in workload["modes"].items():
        for entry in entries:
            assert "failed" not in entry
            assert len(entry["trials"]) == record["protocol"]["rounds"]
            assert all(trial["samples"] > 0 and trial["rate"] > 0 for trial in entry["trials"])
            assert entry["q1"] <= entry["median"] <= entry["q3"]
            checked = entry["check"]
            assert checked["samples"] == workload["samples"]
            assert checked["missing"] == checked["repeated"] == checked["foreign"] == 0
            assert checked["in_order"] == (mode == "sequential" or entry["name"] == "copy")
            assert entry["cache"]["least_resident"] == 1
            assert entry["version"]


@pytest.mark.slow
def test_the_record_states_its_conditions(record):
    assert {"cpu", "cores", "ram_bytes", "kernel"} <= record["machine"].keys()
    assert {"python", "numpy", "torch"} <= record["versions"].keys()
    assert record["small"]
    assert record["workloads"][0]["ratios"]["shuffled"].keys() >= {"gdsload/numpy", "gdsload/copy"}
    assert len(record["workloads"][0]["busy_cores_before_rounds"]) == record["protocol"]["rounds"]
    assert "/" not in "".join(record["command"])  # a record is published: no paths of the machine


@pytest.mark.slow
def test_the_record_renders(record):
    text = table.render(record)
    assert "numbers mean nothing" in text
    assert text.count("| numpy fancy indexing |") == 3


@pytest.mark.slow
def test_a_peer_that_is_absent_is_a_row_not_a_gap(tmp_path):
    """In processes of their own, as contenders run."""
    venv.create(tmp_path / "bare", symlinks=True)
    out, bare = tmp_path / "cpu.json", tmp_path / "bare/bin/python"
    options = ["--small", "--workloads", "tokens", "--rounds", "1", "--contenders", "copy", "webdataset"]
    assert cpu.main([*options, "--python", f"webdataset={bare}", "--out", str(out)]) == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    found = {entry["name"]: entry for entry in record["workloads"][0]["modes"]["shuffled"]}
    assert found["webdataset"]["failed"]["stage"] == "import"
    assert "failed" not in found["copy"]
    assert "No module named" in table.render(record)


class Wrong(Contender):
    """Forgets a row, hands out another twice, and alters a third."""

    title = "wrong"

    def batches(self, *, endless):
        rows = np.array(self.open_source())
        rows[1], rows[5] = rows[0], rows[5] ^ 1
        yield from np.split(rows, self.job.samples // self.job.batch_size)


def test_the_check_finds_what_is_wrong(tmp_path):
    workload = Workload("tiny", (3, 2), "uint16", 4, 2)
    generate(workload, tmp_path / "rows.npy")
    expected = np.load(tmp_path / "rows.hashes.npy")
    job = Job(tmp_path, tmp_path / "rows.npy", (3, 2), "uint16", 8, 4, "full", torch.device("cpu"), 1)
    found = check(Wrong(job), expected)
    assert (found["missing"], found["repeated"], found["foreign"]) == (2, 1, 1)
    assert not found["in_order"]


def test_rows_that_repeat_are_told_from_rows_that_repeat_in_the_data():
    same = compare(np.array([3, 1, 1]), np.array([1, 3, 1]))
    assert same == {"samples": 3, "missing": 0, "repeated": 1, "foreign": 0}
    assert compare(np.array([3, 1, 1]), np.array([1, 3, 3])) == same
    assert compare(np.array([3, 1, 2]), np.array([1, 3, 4])) == {**same, "missing": 1, "repeated": 0, "foreign": 1}


def test_the_data_are_the_same_in_every_run(tmp_path):
    workload = SMALL[1]
    for name in ("a", "b"):
        generate(workload, tmp_path / f"{name}.npy")
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    assert len(np.unique(np.load(tmp_path / "a.hashes.npy"))) == workload.samples  # so a hash names a row


def test_residency_is_asked_of_the_kernel(tmp_path):
    holes, written = tmp_path / "holes", tmp_path / "written"
    with open(holes, "wb") as file:
        file.truncate(2**20)  # never read, so nothing of it is in the page cache
    written.write_bytes(bytes(2**20))
    assert measure([holes]).fraction == 0
    assert measure([written]).fraction == 1
    assert measure([holes, written]).fraction == 0.5
    assert measure([]).fraction == 1


def test_the_readme_shows_the_record():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    record = FOLDER / "results/cpu.json"
    rendered = table.render(json.loads(record.read_text(encoding="utf-8"))) if record.exists() else NO_RECORD
    assert table.embed(text, rendered) == text, (
        "run: python -m benchmarks.table benchmarks/results/cpu.json --write benchmarks/README.md"
    )
