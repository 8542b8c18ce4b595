import os
import shutil
import tempfile

import numpy as np
import pytest
import torch

import gdsload
from gdsload.loader.loader import DataLoader
from gdsload.tools.bench import BenchPlan, make_plan, routes, run_bench
from gdsload.tools.bench import cache_state as cache
from gdsload.tools.bench import measure as run

TRIAL_NUMBERS = {"seconds", "gb_per_s", "first_batch_s", "wait_share", "bytes", "samples", "batches", "bytes_by_path"}


def write(path, **more):
    schema = {
        "image": gdsload.Field("uint8", (32, 32)),
        "label": gdsload.Field("int64"),
        "tokens": gdsload.Field("int16", (None,)),
        "text": "str",
        "blob": "bytes",
    } | more
    random = np.random.default_rng(0)
    with gdsload.ShardWriter(path, schema, shard_bytes="256KiB") as writer:
        for number in range(700):
            sample = {
                "image": random.integers(0, 256, (32, 32), np.uint8),
                "label": number,
                "tokens": np.arange(number % 5, dtype=np.int16),
                "text": "é" * (number % 3),
                "blob": bytes(number % 4),
            }
            writer.write(sample | dict.fromkeys(more, number))
    return path


SAMPLE_BYTES = sum(1024 + 8 + 2 * (number % 5) + 2 * (number % 3) + number % 4 for number in range(700))


@pytest.fixture(scope="module", autouse=True)
def no_sync():
    """All is synced, since pages that are not written yet stay in the cache."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write(tmp_path_factory.mktemp("bench") / "shards")


@pytest.fixture
def tmpfs():
    if not os.path.isdir("/dev/shm") or run.describe(make_plan_of("/dev/shm"))["file_system"] != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs here")
    folder = tempfile.mkdtemp(dir="/dev/shm", prefix="gdsload-bench-")
    yield folder
    shutil.rmtree(folder)


def make_plan_of(path):
    schema = gdsload.Schema({"x": "str"})
    return BenchPlan(path, schema, (), 1, 1, "", torch.device("cpu"), 1, False)


@pytest.fixture
def bench(cli):
    return lambda *words, code=0: cli("bench", *words, "--device", "cpu", code=code)


@pytest.fixture
def record_of(bench):
    return lambda *words: bench(*words, "--json").tree


def drops(path):
    """Whether files here can be dropped from the page cache at all."""
    plan = make_plan(str(path), device="cpu")
    return not cache.why_blind(plan.files) and cache.drop(plan.files).cold


def test_the_record_has_conditions_and_all_trials(dataset, record_of):
    record = record_of(dataset, "--batch-size", 64, "--trials", 3, "--shuffle", "full")
    assert {"cpu", "cores", "ram_bytes", "kernel", "gpu"} <= record["machine"].keys()
    assert {"gdsload", "python", "torch", "numpy"} <= record["versions"].keys()
    opened = gdsload.ShardDataset(dataset)
    found = record["dataset"]
    assert (found["samples"], found["bytes"], found["shards"]) == (700, opened.num_bytes, len(opened.shards))
    assert found["digest"] == opened.digest
    conditions = record["conditions"]
    assert (conditions["device"], conditions["batch_size"], conditions["shuffle"]) == ("cpu", 64, "full")
    assert [contender["name"] for contender in record["contenders"]] == ["direct, auto", "by RAM"]
    for checked in record["verified"]:
        assert (checked["samples"], checked["epoch_samples"], checked["whole_epoch"]) == (512, 700, True)
        assert checked["bytes"] > 512 * 1032
    states = [record["hot"], record["cold"]] if drops(dataset) else [record["hot"]]
    for state in states:
        assert state["state"] in ("hot", "cold")
        for entry in state["contenders"]:
            assert len(entry["trials"]) == 3
            assert entry["gb_per_s"]["q1"] <= entry["gb_per_s"]["median"] <= entry["gb_per_s"]["q3"]
            for trial in entry["trials"]:
                assert trial.keys() >= TRIAL_NUMBERS
                assert (trial["bytes"], trial["samples"], trial["batches"]) == (SAMPLE_BYTES, 700, 11)
                assert trial["bytes_by_path"] == {"host": SAMPLE_BYTES}
                assert trial["gb_per_s"] == pytest.approx(SAMPLE_BYTES / trial["seconds"] / 1e9)
                assert 0 < trial["first_batch_s"] <= trial["seconds"]
                assert 0 <= trial["wait_share"] <= 1


def test_without_an_accelerator_nothing_claims_vram(dataset, bench):
    out = bench(dataset, "--trials", "1", "--hot-only").out
    assert "SSD→VRAM" not in out
    assert "SSD→RAM;" in out
    assert "no accelerator: batches of all contenders end in RAM" in out
    assert "host 100.0%" in out
    assert "warning: a trial took" in out  # so little data that the numbers mean nothing
    assert "cold (" not in out


def test_trials_are_counted(dataset):
    told = []
    plan = make_plan(str(dataset), device="cpu", trials=2)
    run_bench(plan, cold=False, progress=lambda *of: told.append(of))
    assert [what for what, _, _ in told if "trial" in what] == [f"hot, trial {n} of 4" for n in range(1, 5)]
    assert told[0] == ("comparing bytes", 0, 4)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    told.clear()
    run_bench(plan, progress=lambda *of: told.append(of))
    assert told[-1] == ("hot, trial 8 of 8", 7, 8)


def test_each_half_can_be_left_out(dataset, record_of):
    assert record_of(dataset, "--trials", 1, "--hot-only")["cold"] is None
    assert record_of(dataset, "--trials", 1, "--cold-only")["hot"] is None


def test_cold_is_refused_where_files_are_in_memory_alone(tmpfs, record_of, bench):
    path = write(os.path.join(tmpfs, "shards"))
    record = record_of(path, "--trials", 1)
    assert record["cold"]["state"].startswith("not cold: ")
    assert "tmpfs" in record["cold"]["state"]
    assert record["cold"]["contenders"] == []
    assert record["hot"]["state"] == "hot"
    out = bench(path, "--trials", "1", "--cold-only").out
    assert "not cold: " in out
    assert "GB/s" not in out


def test_a_mapped_file_is_not_cold(dataset):
    """The negative control of the check."""
    if not drops(dataset):
        pytest.skip("files cannot be dropped from the page cache here")
    plan = make_plan(str(dataset), device="cpu", trials=1)
    assert cache.fill(plan.files).hot
    assert cache.drop(plan.files).cold
    with DataLoader(dataset, 64, device="cpu") as loader:
        assert len(list(loader)) == 11
        assert not cache.drop(plan.files).cold
        record = run_bench(plan, hot=False)
        assert record["cold"]["state"].startswith("not cold: ")
        assert record["cold"]["contenders"] == []
    assert run_bench(plan, hot=False)["cold"]["state"] == "cold"


@pytest.mark.parametrize(
    ("module", "name", "answer", "said"),
    [
        (cache, "_look", cache.Residency(1, 0), "does not see a page that was just read"),
        (cache.os, "access", False, "only to users who may write it"),
    ],
)
def test_who_cannot_see_pages_is_not_believed(dataset, monkeypatch, module, name, answer, said, record_of):
    monkeypatch.setattr(module, name, lambda *_: answer)
    monkeypatch.setattr(cache.os, "geteuid", lambda: -1)
    record = record_of(dataset, "--trials", 1)
    for state in ("cold", "hot"):
        assert record[state]["state"].startswith(f"not {state}: ")
        assert said in record[state]["state"]
        assert record[state]["contenders"] == []


def test_hot_is_refused_where_memory_is_too_small_but_for_what_is_there(dataset, monkeypatch, record_of):
    monkeypatch.setattr(run, "memory_room", lambda tree: 1000)
    state = record_of(dataset, "--trials", 1, "--hot-only")["hot"]
    assert "1000 B of memory are to be had" in state["state"]
    assert state["contenders"] == []
    real = run.describe
    monkeypatch.setattr(run, "describe", lambda plan: real(plan) | {"file_system": "tmpfs"})
    assert record_of(dataset, "--trials", 1, "--hot-only")["hot"]["state"] == "hot"


def altered(batch):
    """A byte of the last sample is another one."""
    batch["image"][-1, -1, -1] ^= 1
    return batch


def swapped(batch):
    """A sample has the text of another."""
    batch["text"].reverse()
    return batch


WRONG = {
    "altered": lambda batches: map(altered, batches),
    "swapped": lambda batches: map(swapped, batches),
    "without the last": lambda batches: batches[:-1],
    "the first twice": lambda batches: [dict(batches[0]), *batches],
}


@pytest.fixture
def spoil(monkeypatch):
    """Has loaders hand out an epoch's batches in that wrong way."""

    def use(how):
        class Wrong(DataLoader):
            def __iter__(self):
                return iter(WRONG[how](list(super().__iter__())))

        monkeypatch.setattr(routes, "DataLoader", Wrong)

    return use


@pytest.mark.parametrize(
    ("how", "match", "shuffle"),
    [
        ("altered", "has other bytes than ShardDataset reads", "none"),
        ("altered", "has other bytes than ShardDataset reads", "block"),
        ("without the last", "did not come in a whole epoch", "full"),
        ("the first twice", "came twice", "full"),
        ("swapped", "has other bytes than ShardDataset reads", "full"),
    ],
)
def test_wrong_bytes_end_it_with_1_and_no_number(dataset, spoil, how, match, shuffle, bench):
    spoil(how)
    out, err = bench(dataset, "--batch-size", "2", "--shuffle", shuffle, code=1)
    assert out == ""
    assert match in err
    assert "nothing was measured" in err


def test_a_field_called_index_is_verified_in_order(tmp_path, spoil, record_of, bench):
    path = write(tmp_path / "d", index=gdsload.Field("int64"))
    record = record_of(path, "--trials", 1, "--shuffle", "full", "--hot-only")
    assert [checked["samples"] for checked in record["verified"]] == [512, 512]
    spoil("altered")
    bench(path, "--batch-size", "2", code=1)


def test_a_trial_can_be_bounded(dataset, record_of):
    record = record_of(dataset, "--trials", 2, "--batch-size", 50, "--hot-only", "--seconds", "0.000001")
    for entry in record["hot"]["contenders"]:
        assert [(trial["whole_epoch"], trial["batches"]) for trial in entry["trials"]] == [(False, 1)] * 2
    assert all(checked["samples"] > 0 for checked in record["verified"])


def test_turns_go_round():
    names = [route.name for _, route in run.turns(routes.make_routes(make_plan_of(".")), 3)]
    assert names == ["direct, auto", "by RAM", "by RAM", "direct, auto", "direct, auto", "by RAM"]


def test_a_backend_that_cannot_be_used_is_refused(dataset, bench):
    out, err = bench(dataset, "--backends", "auto,bounce", code=1)
    assert out == ""
    assert "needs a CUDA device" in err
    assert err.endswith("hint: Pass --device cuda, or leave --backends out.\n")


def test_no_dataset_and_no_samples_are_refused(tmp_path, cli):
    assert "there is no dataset here" in cli("bench", tmp_path / "nothing", code=1).err
    with gdsload.ShardWriter(tmp_path / "empty", {"x": "str"}):
        pass
    assert "nothing to measure" in cli("bench", tmp_path / "empty", code=2).err
