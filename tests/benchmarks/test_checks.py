"""Benchmarks compare all bytes before they measure: a wrong byte gets no number."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gdsload
from benchmarks.contenders.base import Contender, Job
from benchmarks.convert.data import SMALL as CONVERTED
from benchmarks.convert.data import make
from benchmarks.convert.writers import Arrow, Copy, GdsloadAlone
from benchmarks.gpu import cold_start, cold_trial, ddp, ranks, shapes
from benchmarks.gpu.free_drive import __main__ as free_drive
from benchmarks.gpu.free_drive import trials
from benchmarks.gpu.free_drive.drives import Clock, simulated
from benchmarks.gpu.suite import trial
from benchmarks.gpu.suite.cases import Rows
from benchmarks.gpu.suite.data import Stored, row_hashes
from benchmarks.images import jpegs
from benchmarks.record import pruned
from benchmarks.residency import measure
from benchmarks.worker import check, compare
from benchmarks.workloads import SMALL, Workload, generate, hash_rows

CPU = torch.device("cpu")


class Wrong(Contender):
    """Forgets a row, hands out another twice, and alters a third."""

    title = "wrong"
    host = False

    def batches(self, *, endless):
        rows = np.array(self.open_source())
        rows[1], rows[5] = rows[0], rows[5] ^ 1
        yield from map(torch.from_numpy, np.split(rows, self.job.samples // self.job.batch_size))


class WrongInMemory(Wrong):
    def batches(self, *, endless):
        return (batch.numpy() for batch in super().batches(endless=endless))


def test_a_contender_that_is_wrong_is_found_on_the_cpu(tmp_path):
    workload = Workload("tiny", (3, 2), "uint16", 4, 2)
    generate(workload, tmp_path / "rows.npy")
    job = Job(tmp_path, tmp_path / "rows.npy", (3, 2), "uint16", 8, 4, "full", CPU, 1)
    found = check(WrongInMemory(job), np.load(tmp_path / "rows.hashes.npy"))
    assert (found["missing"], found["repeated"], found["foreign"], found["in_order"]) == (2, 1, 1, False)


@pytest.fixture
def stored(tmp_path):
    found = Stored(Rows("tiny", (3, 8), 40), tmp_path / "tiny")
    found.write()
    return found


@pytest.fixture
def job(stored, tmp_path):
    return Job(tmp_path, stored.files[0], (3, 8), "uint8", 40, 8, "sequential", CPU, 1)


def test_a_contender_that_is_wrong_is_found_in_the_suite(stored, job):
    found = trial.check(Wrong(job), stored.hashes)
    assert (found["missing"], found["repeated"], found["foreign"]) == (2, 1, 1)


def test_a_cold_trial_is_an_epoch_and_its_first_batch_counts(job):
    found = trial.cold_trial(Wrong(job), 10)
    assert (found["whole_epoch"], found["bytes"]) == (True, 40 * 24)
    part = found["gb_s_after_first"] * (found["seconds"] - found["first_batch_s"]) * 1e9
    assert part == pytest.approx(32 * 24)


def test_rows_that_repeat_are_told_from_rows_that_repeat_in_the_data():
    same = compare(np.array([3, 1, 1]), np.array([1, 3, 1]))
    assert same == {"samples": 3, "missing": 0, "repeated": 1, "foreign": 0}
    assert compare(np.array([3, 1, 1]), np.array([1, 3, 3])) == same
    assert compare(np.array([3, 1, 2]), np.array([1, 3, 4])) == {**same, "missing": 1, "repeated": 0, "foreign": 1}


@given(st.integers(0, 2**32), st.integers(0, 4), st.integers(0, 63), st.integers(1, 255))
def test_a_byte_that_differs_shows_in_the_hash_of_its_row_alone(seed, row, column, change):
    rows = np.random.default_rng(seed).integers(0, 256, (5, 64), np.uint8)
    before = row_hashes(torch.from_numpy(rows.copy()))
    rows[row, column] ^= change
    differs = before != row_hashes(torch.from_numpy(rows).view(5, 4, 16))
    assert differs.tolist() == [number == row for number in range(5)]


def test_the_data_are_the_same_in_every_run(tmp_path):
    for name in ("a", "b"):
        generate(SMALL[1], tmp_path / f"{name}.npy")
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    assert len(np.unique(np.load(tmp_path / "a.hashes.npy"))) == SMALL[1].samples  # so a hash names a row


def test_residency_is_asked_of_the_kernel(tmp_path):
    holes, written = tmp_path / "holes", tmp_path / "written"
    with open(holes, "wb") as file:
        file.truncate(2**20)  # never read, so nothing of it is in the page cache
    written.write_bytes(bytes(2**20))
    assert [measure(some).fraction for some in ([holes], [written], [holes, written], [])] == [0, 1, 0.5, 1]


def test_runs_that_nothing_is_of_any_more_go():
    runs = [{"date": day} for day in ("first", "second", "third")]
    record = {"format": 1, "runs": runs, "cases": [{"name": "a", "run": 2}], "measures": [{"name": "b", "run": 0}]}
    found = pruned(record, ("cases", "measures"))
    assert [run["date"] for run in found["runs"]] == ["first", "third"]
    assert (found["cases"][0], found["measures"][0]) == ({"name": "a", "run": 1}, {"name": "b", "run": 0})


@pytest.mark.parametrize(
    ("samples", "kind"), [(CONVERTED[0], Copy), (CONVERTED[2], Arrow), (CONVERTED[2], GdsloadAlone)]
)
def test_rows_are_compared_whatever_has_converted_them(tmp_path, samples, kind):
    make(samples, tmp_path / samples.file_name)
    expected = np.load(tmp_path / "rows.hashes.npy")
    writer = kind(tmp_path / samples.file_name, samples)
    writer.write(tmp_path / "out")
    rows = np.concatenate(list(writer.rows(tmp_path / "out")))
    assert (rows.nbytes, compare(hash_rows(rows), expected)["missing"]) == (samples.nbytes, 0)
    rows.view(np.uint8).reshape(len(rows), -1)[3, 0] ^= 1
    found = compare(hash_rows(rows), expected)
    assert (found["missing"], found["foreign"]) == (1, 1)


@pytest.mark.parametrize("row_bytes", [(64, 64), (40, 300)], ids=["equal", "ragged"])
def test_a_wrong_byte_of_a_cold_start_is_found(tmp_path, row_bytes):
    cold_start.write(cold_start.Case("small", row_bytes, 4, "full"), tmp_path, 4096)
    order = {"shards": str(tmp_path / "shards"), "rows": str(tmp_path / "rows.bin"), "form": "gdsload", "device": "cpu"}
    order |= {"bounds": str(tmp_path / "bounds.npy"), "batch": 4, "shuffle": "full", "decoded": False}
    files = [str(file) for file in (tmp_path / "shards").glob("*.safetensors")]
    rows = cold_trial.check(order, files)["rows"]
    assert rows == 4096 * 2 // sum(row_bytes)
    last = bytearray((tmp_path / "rows.bin").read_bytes())
    last[-1] ^= 1
    (tmp_path / "rows.bin").write_bytes(last)
    with pytest.raises(RuntimeError, match=f"row {rows - 1} has other bytes"):
        cold_trial.check(order, files)


@pytest.mark.parametrize("wrong", ["another number", "another image"])
def test_a_wrong_jpeg_is_found(tmp_path, monkeypatch, wrong):
    for module in (cold_start, cold_trial):
        monkeypatch.setattr(module, "DIFFERENT", 8)
    case = cold_start.Case("small", (57_000, 57_000), 4, "block", decoded=True)
    order = {"shards": str(tmp_path / "wrong"), "form": "gdsload", "device": "cpu", "op": "check", **asdict(case)}
    images = jpegs(5)
    with gdsload.ShardWriter(tmp_path / "wrong", {"x": gdsload.Field("image"), "n": gdsload.Field("int64")}) as writer:
        for number in range(5):
            writer.write({"x": images[number and number - 1], "n": number or 7 * (wrong == "another number")})
    with pytest.raises(RuntimeError, match="each once|same pixels"):
        cold_trial.check(order, list(map(str, (tmp_path / "wrong").glob("*.safetensors"))))


@pytest.mark.parametrize("name", ["tokens-offsets", "tokens-padded", "tokens-jagged", "two-fields", "rows-4k-windows"])
def test_a_wrong_byte_of_a_shape_is_found(tmp_path, monkeypatch, name):
    (case,) = (case for case in shapes.CASES if case.name == name)
    shapes.KINDS[case.kind].write(tmp_path / case.kind, 2**18)
    shapes.compare(case, tmp_path, CPU)

    def spoiled(batch):
        values = batch["x"][0] if isinstance(batch["x"], tuple) else batch["x"]
        values = values.values() if values.is_nested else values
        values.view(torch.uint8).view(-1)[0] ^= 1
        return batch

    real = shapes.Case.open
    monkeypatch.setattr(shapes.Case, "open", lambda *args, **more: real(*args, device_transform=spoiled, **more))
    with pytest.raises(RuntimeError, match=f"{name}: a batch is not what the files hold"):
        shapes.compare(case, tmp_path, CPU)


def test_wrong_bytes_of_a_simulated_drive_are_found(tmp_path, monkeypatch):
    clock, out = Clock(), tmp_path / "free.json"
    monkeypatch.setattr(trials, "real", lambda *_, **__: simulated(None, clock, CPU))  # reads nothing
    options = ["--small", "--device", "cpu", "--rounds", "1", "--cases", "host-images-full", "--out", str(out)]
    assert free_drive.main(options) == 1
    (entry,) = json.loads(out.read_text(encoding="utf-8"))["cases"]
    assert (entry["failed"]["stage"], entry["trials"]) == ("check", [])
    assert "a batch is not what the files hold" in entry["failed"]["reason"]


def test_ranks_that_miss_a_sample_or_fail_end_the_run(tmp_path):
    with pytest.raises(RuntimeError, match="an epoch of 3 samples had 3, 2 different ones"):
        ddp.check_union([{"seen": [0, 1], "samples": 3}, {"seen": [1], "samples": 3}])
    fails = pytest.raises(RuntimeError, match="there is no dataset here")
    with ranks.started(ranks.Rank, tmp_path, "cpu", 1) as started, fails:
        started.tell("open", ranks.CASES[0], 0.01)
