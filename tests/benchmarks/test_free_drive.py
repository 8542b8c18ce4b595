"""The simulated drive: the model is what it says it is."""

import json
import threading
import time
from contextlib import ExitStack
from dataclasses import astuple

import numpy as np
import pytest
import torch

import gdsload
from benchmarks.gpu.free_drive import __main__ as free_drive
from benchmarks.gpu.free_drive.cases import SMALL, cases_of
from benchmarks.gpu.free_drive.drives import Clock, Speed, Timeline, parse_speed, simulated


@pytest.fixture(scope="module")
def clock():
    return Clock()


def test_speeds():
    assert parse_speed("free") is None
    for text, numbers in {"25GB/s,80us,256": (25e9, 80e-6, 256), "800MB/s, 0.1ms, 1": (8e8, 1e-4, 1)}.items():
        assert astuple(parse_speed(text)) == pytest.approx(numbers)


@pytest.mark.parametrize(
    "text", ["fast", "25GB/s", "25,80us,256", "25GB/s,80us,many", "0GB/s,80us,256", "25GB/s,-1us,2"]
)
def test_what_is_no_speed(text):
    with pytest.raises(ValueError, match="is neither 'free' nor as '25GB/s,80us,256'|is no drive's speed"):
        parse_speed(text)


@pytest.mark.parametrize("depth", [1, 3, 32])
def test_ends_of_groups_and_of_reads_one_by_one_are_those_of_the_model(depth):
    random, speed = np.random.default_rng(depth), Speed(1e9, 1e-4, depth)
    groups, reads = Timeline(speed), Timeline(speed)
    ends, at, last, now = [0.0] * depth, 0, 0.0, 0.0
    for _ in range(50):
        now += random.random() * 1e-2
        sizes = random.integers(1, 2**18, random.integers(1, 100))
        for nbytes in sizes.tolist():
            last = max(max(now, ends[at]) + speed.latency_s, last) + nbytes / speed.bytes_s
            ends[at], at = last, (at + 1) % depth
            one = reads.one(now, nbytes)
        assert groups.many(now, sizes) == pytest.approx(last, abs=1e-9)
        assert one == pytest.approx(last, abs=1e-9)


@pytest.mark.parametrize(
    ("speed", "nbytes", "reads_s"),
    [(Speed(4e9, 1e-4, 10**4), 4000, 1e6), (Speed(1e12, 1e-4, 100), 4096, 1e6), (Speed(1e9, 0, 1), 10**6, 1e3)],
)
def test_bandwidth_or_latency_is_the_limit(speed, nbytes, reads_s):
    assert 10**5 / Timeline(speed).many(0.0, np.full(10**5, nbytes)) == pytest.approx(reads_s, rel=0.02)


def test_no_group_waits_for_nothing():
    assert Timeline(Speed(1e9, 1e-4, 4)).many(5.0, np.zeros(0, np.int64)) == 5.0


def test_the_clock_waits_and_takes_no_processor_for_it(clock):
    began, cpu = time.perf_counter(), time.thread_time()
    clock.wait(began + 0.1)
    assert time.perf_counter() - began >= 0.1 - clock.late_s
    assert time.thread_time() - cpu < 0.05
    clock.wait(began)
    assert set(clock.measured) == {"20 us", "80 us", "200 us", "1000 us"}


def test_threads_share_the_drive(clock):
    reader = simulated(Speed(1e9, 1e-3, 8), clock, torch.device("meta")).files.made_reader()
    sizes = np.full(10, 10**6)  # 10 ms

    def read():
        assert reader.read(sizes, sizes, sizes, sizes).tolist() == sizes.tolist()

    began, threads = time.perf_counter(), [threading.Thread(target=read) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.perf_counter() - began >= 0.05


@pytest.mark.parametrize("kind", SMALL, ids=lambda kind: kind.name)
def test_holes_are_a_dataset_that_takes_no_disk(kind, tmp_path):
    samples = kind.write_holes(tmp_path / "holes", 2**26)
    dataset = gdsload.ShardDataset(tmp_path / "holes")
    assert len(dataset) == samples
    assert dataset.num_bytes > 0.9 * 2**26
    assert sum(path.stat().st_blocks * 512 for path in (tmp_path / "holes").iterdir()) < dataset.num_bytes / 10
    sizes = dataset.sample_bytes(range(100))
    assert (len(set(sizes.tolist())) > 1) == (kind.lengths is not None)
    assert not any(dataset[index]["x"].any() for index in (0, samples - 1))


class Stopped:
    """A clock that nobody waits for; notes until when somebody would have."""

    def wait(self, until):
        self.until = until


@pytest.mark.parametrize(("drives", "takes_s"), [(1, 20), (2, 10), (4, 5)])
def test_several_drives_read_at_the_same_time(tmp_path, drives, takes_s):
    """20 reads of a gigabyte at 1 GB/s, of 4 shards."""
    clock, sizes = Stopped(), np.full(20, 10**9)
    reader = simulated(Speed(1e9, 0, 64), clock, torch.device("meta"), drives).files.made_reader()
    with ExitStack() as stack:
        files = [stack.enter_context(open(tmp_path / f"shard-{number:05}.safetensors", "wb")) for number in range(4)]
        fds, began = np.array([file.fileno() for file in files] * 5), time.perf_counter()
        reader.read(fds, sizes, sizes, sizes)
    assert clock.until - began == pytest.approx(takes_s, abs=1)


def test_no_rate_is_beyond_the_drives(tmp_path):
    out = tmp_path / "free.json"
    options = ["--small", "--device", "cpu", "--rounds", "1", "--drive", "20MB/s,0us,256", "--seconds-per-trial", "0.1"]
    assert free_drive.main([*options, "--cases", "host-rows-4k-full", "host-volumes-full", "--out", str(out)]) == 0
    rates = [entry["gb_s"]["median"] for entry in json.loads(out.read_text(encoding="utf-8"))["cases"]]
    assert len(rates) == 2
    assert max(rates) < 0.0202


@pytest.mark.cuda
def test_a_small_run_on_a_gpu(tmp_path, capsys):
    out = tmp_path / "free.json"
    options = ["--small", "--device", "cuda", "--rounds", "1", "--drive", "20GB/s,50us,256"]
    assert free_drive.main([*options, "--out", str(out)]) == 0, capsys.readouterr().err
    record = json.loads(out.read_text(encoding="utf-8"))
    paths = {entry["name"]: set(entry["trials"][0]["simulated_bytes_by_path"]) for entry in record["cases"]}
    assert list(paths) == [case.name for case in cases_of(("gds", "bounce"), SMALL)]
    for name, found in paths.items():
        known = {"gds-unknown"} if name.startswith("gds") else {"bounce-direct", "bounce-buffered"}
        assert found <= known  # no counter of cuFile's knows of them
