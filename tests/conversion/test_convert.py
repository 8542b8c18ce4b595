"""Converting: the same bytes whatever the workers, resumed after any kill, nothing lost in silence."""

import os
import random
import signal
import time
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gdsload
from gdsload.conversion.runner import convert, plan
from gdsload.conversion.source import Item, Part
from gdsload.errors import DiskFullError, FormatError, OptionError, ReadError, SchemaError
from tests.conversion.leisurely import Leisurely
from tests.conversion.reading import content, hidden

ROWS = 1000


def double(sample):
    return {**sample, "x": sample["x"] * 2}


def only_even(sample):
    if int(sample["y"]) % 2:
        raise ValueError("it is odd")
    return sample


def no_mapping(sample):
    return 7


class Numbers:
    """Samples that are their numbers; some of them, or a part, cannot be read."""

    kind = "numbers"
    threads = False

    def __init__(self, count, per_part=10, bad=(), broken=None, ragged=False):
        self.count, self.per_part, self.bad, self.broken, self.ragged = count, per_part, bad, broken, ragged

    def describe(self):
        return {"count": self.count, "bad": list(self.bad)}

    def parts(self, target_bytes):
        return [
            Part(f"from {low}", (low, min(low + self.per_part, self.count)))
            for low in range(0, self.count, self.per_part)
        ]

    def read(self, part):
        for number in range(*part.where):
            if number == self.broken:
                raise FormatError("the archive is damaged")
            yield Item(f"number {number}", partial(self.sample, number))

    def sample(self, number):
        if number in self.bad:
            raise ValueError("no picture")
        return {"n": number, "text": "x" * (number % 3)} | ({"r": np.arange(number % 4)} if self.ragged else {})


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrays")
    random_ = np.random.default_rng(0)
    np.save(folder / "x.npy", random_.integers(0, 1000, (ROWS, 6), dtype=np.int32))
    np.save(folder / "y.npy", np.arange(ROWS))
    return folder


@pytest.mark.parametrize("shard_bytes", [2000, 10_000, "1MiB"])
def test_samples_are_those_of_the_source(arrays, tmp_path, shard_bytes):
    report = convert(arrays, tmp_path / "out", shard_bytes=shard_bytes, workers=1)
    dataset = gdsload.ShardDataset(tmp_path / "out")
    assert (report.samples, len(dataset), report.skipped, report.resumed) == (ROWS, ROWS, (), 0)
    assert (report.shards, report.nbytes) == (len(dataset.shards), dataset.num_bytes)
    x = np.load(arrays / "x.npy")
    for index in (0, 1, 499, ROWS - 1):
        assert np.array_equal(dataset[index]["x"].numpy(), x[index])
        assert int(dataset[index]["y"]) == index
    dataset.verify()
    assert hidden(tmp_path) == []


def test_the_same_bytes_whatever_the_workers(arrays, tmp_path, monkeypatch):
    convert(arrays, tmp_path / "alone", shard_bytes=3000, workers=1)
    convert(arrays, tmp_path / "threads of its own", shard_bytes=3000, workers=2)
    monkeypatch.setattr("gdsload.conversion.sources.arrays.ArraySource.threads", False)
    convert(arrays, tmp_path / "processes", shard_bytes=3000, workers=2)
    with ThreadPoolExecutor(5) as executor:
        convert(arrays, tmp_path / "threads", shard_bytes=3000, executor=executor)
        assert executor.submit(int).result() == 0  # it is the user's, and still open
    for name in ("threads of its own", "processes", "threads"):
        assert content(tmp_path / "alone") == content(tmp_path / name)


def test_a_shuffle_is_a_permutation_that_its_seed_decides(arrays, tmp_path):
    orders = {}
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        convert(arrays, tmp_path / name, shuffle_seed=seed, shard_bytes=5000, workers=1)
        orders[name] = [int(sample["y"]) for sample in gdsload.ShardDataset(tmp_path / name).__getitems__(range(ROWS))]
        assert sorted(orders[name]) == list(range(ROWS))
    assert orders["one"] == orders["again"] != orders["other"] != list(range(ROWS))
    assert content(tmp_path / "one") == content(tmp_path / "again")


def test_map(arrays, tmp_path, converted):
    found = converted(arrays, map=f"{__name__}:double").__getitems__(range(ROWS))
    assert np.array_equal(np.stack([sample["x"].numpy() for sample in found]), 2 * np.load(arrays / "x.npy"))
    with pytest.raises(OptionError, match="map returned int"):
        convert(arrays, tmp_path / "none", map=f"{__name__}:no_mapping", workers=1)


def test_bad_samples_stop_it_and_say_which_and_then_they_can_be_skipped(tmp_path):
    with pytest.raises(ReadError, match=r"number 33 of from 30 cannot be converted: ValueError: no picture"):
        convert(Numbers(100, bad=(33,)), tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()
    report = convert(Numbers(100, bad=(33,)), tmp_path / "out", workers=1, on_error="skip")
    assert (report.resumed, report.samples, len(report.skipped)) == (3, 99, 1)


def test_bad_samples_are_skipped_and_reported(tmp_path, arrays, left_out):
    bad = (0, 33, 34, 99)
    dataset = left_out(Numbers(100, bad=bad), {f"number {number}": "no picture" for number in bad})
    assert dataset.column("n").tolist() == [number for number in range(100) if number not in bad]
    # Also one by one out of a batch.
    how = {"on_error": "skip", "map": f"{__name__}:only_even", "max_skipped": "50%"}
    report = convert(arrays, tmp_path / "even", workers=1, **how)
    assert (report.samples, len(report.skipped)) == (ROWS // 2, ROWS // 2)


def test_a_damaged_source_always_stops(tmp_path):
    with pytest.raises(FormatError, match="archive is damaged"):
        convert(Numbers(100, broken=55), tmp_path / "out", on_error="skip", workers=1)
    assert not (tmp_path / "out").exists()


def test_ragged_fields_are_found_or_named(converted):
    dataset = converted(Numbers(40, ragged=True))
    assert dataset.schema["r"].ragged
    assert [len(sample["r"]) for sample in dataset.__getitems__(range(8))] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert dataset.schema["text"].kind == "str"
    with pytest.raises(SchemaError, match="single number"):
        plan(Numbers(40), ragged=["n"])


def test_plan_writes_nothing(arrays, tmp_path):
    found = plan(arrays, shard_bytes=10_000, workers=1)
    assert (found.samples, found.nbytes, found.kind) == (ROWS, ROWS * 32, "NumPy arrays")
    assert list(found.schema) == ["x", "y"]
    assert os.listdir(tmp_path) == []
    assert plan(Numbers(40)).samples == -1


def test_killed_at_any_moment(arrays, tmp_path):
    """If anything is killed, nothing half-made is readable, and the next run ends with the same bytes."""
    convert(arrays, tmp_path / "whole", shard_bytes=1000, workers=1)
    expected, moments, kills = content(tmp_path / "whole"), random.Random(1), 0
    out = tmp_path / "out"
    for _ in range(12):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                convert(arrays, out, shard_bytes=1000, workers=1, map=None)
                code = 0
            finally:
                os._exit(code)
        time.sleep(moments.random() * 0.12)
        os.kill(child, signal.SIGKILL)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        kills += killed
        if out.exists():
            assert content(out) == expected
            for name in content(out):
                (out / name).unlink()
            out.rmdir()
    assert kills
    report = convert(arrays, out, shard_bytes=1000, workers=1)
    assert report.samples == ROWS
    assert content(out) == expected
    assert hidden(tmp_path) == []


def test_two_at_once_are_refused(tmp_path):
    inner = []

    class Nested(Numbers):
        def read(self, part):
            if not inner:
                inner.append(pytest.raises(OptionError, match="at work"))
                with inner[0]:
                    convert(Numbers(5), tmp_path / "out", workers=1)
            return super().read(part)

    convert(Nested(20), tmp_path / "out", workers=1)
    assert inner


def test_what_is_there_is_not_replaced_unasked(tmp_path):
    convert(Numbers(5), tmp_path / "out", workers=1)
    with pytest.raises(gdsload.DatasetExistsError, match="out"):
        convert(Numbers(6), tmp_path / "out", workers=1)
    assert convert(Numbers(6), tmp_path / "out", workers=1, overwrite=True).samples == 6
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(gdsload.DatasetExistsError, match="mine"):
        convert(Numbers(6), tmp_path / "mine", workers=1, overwrite=True)


def test_a_full_disk_is_seen_beforehand(arrays, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "gdsload.conversion.sizes.shutil.disk_usage", lambda path: SimpleNamespace(free=100, total=10**6)
    )
    said = "no room for the dataset: about 31.25 KiB is still to be written; 100 B are free"
    with pytest.raises(DiskFullError, match=said):
        convert(arrays, tmp_path / "out", workers=1)
    with pytest.raises(DiskFullError, match="about 39.06 KiB is still"):  # it is written twice, and x is halved
        convert(arrays, tmp_path / "half", workers=1, shuffle_seed=1, casts={"x": "float16"})


def test_an_error_waits_for_what_another_executor_has_begun(tmp_path):
    """That of a cluster cancels what it has begun, and does not end it: it would write on beside the next run."""

    class Cluster(Executor):
        def __init__(self):
            self.threads, self.done = ThreadPoolExecutor(4), 0

        def submit(self, function, task):
            found = Future()
            self.threads.submit(self.do, found, function, task)
            return found

        def do(self, found, function, task):
            if task.number == 0:
                found.set_exception(CancelledError("the machine is gone"))
            else:
                time.sleep(0.1)
                function(task)
                self.done += 1
                found.set_result(None)

    cluster = Cluster()
    with pytest.raises(ReadError, match="a worker was lost: the machine is gone"):
        convert(Numbers(50), tmp_path / "out", executor=cluster, workers=1)
    assert cluster.done == 3  # as many as are handed out at once
    cluster.threads.shutdown()
    assert convert(Numbers(50), tmp_path / "out", workers=1).samples == 50


def test_a_shuffle_counts_its_second_pass(arrays, tmp_path, monkeypatch):
    monkeypatch.setattr("gdsload.conversion.combine._BATCH_BYTES", 3200)
    seen, how = [], {"workers": 1, "shard_bytes": 6400, "shuffle_seed": 1}
    convert(arrays, tmp_path / "out", **how, progress=lambda *now: seen.append(now))
    whole = [one for one in seen if one[2] == int(one[2])]
    assert [one[2] for one in whole[:6]] == list(range(6))
    assert whole[5][0] == ROWS
    assert seen[-1] == (2 * ROWS, 2 * whole[5][1], 10, 10)
    assert len(seen) > 10
    assert seen == sorted(seen)


def test_a_shuffle_is_whole_where_torch_distributed_is_initialised(arrays, tmp_path, monkeypatch):
    for name, value in (("is_available", True), ("is_initialized", True), ("get_rank", 1), ("get_world_size", 4)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    convert(arrays, tmp_path / "out", workers=1, shuffle_seed=1)
    monkeypatch.undo()
    assert sorted(int(sample["y"]) for sample in gdsload.ShardDataset(tmp_path / "out")) == list(range(ROWS))


@pytest.mark.parametrize(("workers", "threads"), [(1, False), (2, False), (2, True)])
def test_progress_is_told_within_parts(tmp_path, workers, threads):
    """In this process, in others and in threads: a part may take hours."""
    seen = []
    told = lambda *found: seen.append(found)  # noqa: E731
    convert(Leisurely(threads=threads), tmp_path / "out", workers=workers, progress=told, shard_bytes=640)
    assert seen[0] == (0, 0, 0, 2)
    assert seen[-1][0::2] == (80, 2)
    within = [one for one in seen if 0 < one[2] < 1]
    assert within
    for samples, nbytes, parts, _ in within:
        assert (parts, nbytes) == (pytest.approx(samples / 40), pytest.approx(16 * samples))
