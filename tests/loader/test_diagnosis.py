"""The limit of a loop: from made-up evidence, and of real loops."""

import copy
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gdsload import PerSample
from gdsload.engine.stats import LoaderStats
from gdsload.loader.diagnosis import Diagnosis
from gdsload.testing import SlowBackend

STATS = LoaderStats(
    batches=2000, ready=1000, groups=2000, host_wait_s=40, late_s=39, busy_s=76, bytes_by_path={"host": 880 * 10**9}
)
READS = replace(STATS, read_s=70, gather_s=10)
GPU = {"stats": replace(READS, starved_s=10.6, stream_s=76, bytes_by_path={"gds-p2p": 880 * 10**9}), "on_gpu": True}
BOUNCED = replace(GPU["stats"], bytes_by_path={"bounce": 880 * 10**9})
MAPPED = {"stats": replace(GPU["stats"], read_s=0, gather_s=70, bytes_by_path={"mapped": 1}), "on_gpu": True}
SIZES = {"dataset_bytes": 193 * 10**9, "vram_room": 61 * 10**9, "memory_room": 10**12, "sample_bytes": 150_000}
SMALL = {"shuffle": "full", "sample_bytes": 4096}


@pytest.mark.parametrize(
    ("limit", "do", "evidence"),
    [
        ("unknown", "call this again after 20 steps", {"stats": replace(READS, batches=19)}),
        ("model", "nothing: a faster loader", {"stats": replace(READS, host_wait_s=2)}),
        ("model", "nothing: a faster loader", {"stats": replace(READS, starved_s=0.0, stream_s=76)}),
        ("model", "use longer epochs", {"stats": replace(READS, begin_s=39)}),
        ("drive", "spread the shards", {"stats": READS}),
        ("drive", "nothing, if more epochs follow", {"stats": replace(READS, epoch=0), **SIZES}),
        ("drive", 'cache="vram": 61 GB of 193 GB fit', {**GPU, **SIZES}),
        ("drive", "spread the shards", {**GPU, **SIZES, "cache": "vram"}),
        ("drive", "spread the shards", {**GPU, **SIZES, "vram_room": 10**9}),
        ("drive", "spread the shards", {**GPU, "drive_rate": 12e9, **SMALL}),
        ("drive", 'shuffle="block": the drive is faster with longer reads', {**GPU, "drive_rate": 30e9}),
        ("drive", 'shuffle="block": it reads', {"stats": READS, **SMALL}),
        ("drive", "spread", {"stats": replace(BOUNCED, drive_bytes=700 * 10**9), "on_gpu": True}),
        ("drive", "spread", {"stats": replace(GPU["stats"], drive_bytes=0), "on_gpu": True}),
        ("link", "store smaller types", {"stats": replace(BOUNCED, drive_bytes=0), "on_gpu": True}),
        ("link", "store smaller types", MAPPED),
        ("link", 'cache="vram": 61 GB', {**MAPPED, **SIZES}),
        ("gather", "read only the `fields`", {"stats": replace(READS, gather_s=80)}),
        ("gather", "read only the `fields`", {"stats": replace(READS, drive_bytes=0)}),
        ("gather", 'shuffle="block"', {"stats": replace(READS, gather_s=80), **SMALL}),
        ("gather", "read only the `fields`", {**GPU, "stats": replace(GPU["stats"], gather_s=80)}),
        ("decode", 'cache="ram"', {"stats": replace(READS, decode_s=80)}),
        ("decode", 'cache="vram"', {**GPU, "stats": replace(GPU["stats"], decode_s=80)}),
        ("decode", "convert with a smaller", {"stats": replace(READS, decode_s=80), "cache": "ram"}),
        ("transform", "use more workers", {"stats": replace(READS, transform_s=80)}),
        ("host", "use a larger batch_size", {"stats": replace(READS, late_s=3)}),
        ("host", "use a larger batch_size", {"stats": replace(STATS, gather_s=3)}),
    ],
)  # fmt: skip
def test_the_limit_and_what_to_do(limit, do, evidence):
    found = Diagnosis(**evidence)
    assert (found.limit, found.evidence["limit"]) == (limit, limit)
    assert found.do.startswith(do)
    assert str(found).endswith(f"\nDo: {found.do}")


def test_two_sentences():
    assert repr(Diagnosis(**GPU, **SIZES, drive_rate=12e9)) == (
        "The drive limits this run: it delivers 11.6 GB/s, 96% of its speed in a probe; the GPU was idle for 13.9% of "
        "the last 2000 steps (5.3 ms of 38 ms). Per second the loader's threads spent 0.92 s waiting for reads, 0.13 s "
        "gathering; 50% of the batches were ready in time.\n"
        'Do: cache="vram": 61 GB of 193 GB fit and are then read only once; loading would still cost about 0% of the time.'
    )


def drive(seconds):
    """The delays of a drive that gives one read after the other."""
    free = 0.0

    def delay():
        nonlocal free
        free = max(free, time.monotonic()) + seconds
        return free - time.monotonic()

    return delay


def slow(sample):
    time.sleep(0.0002)
    return sample


@pytest.fixture
def probed(monkeypatch):
    """The probes of a drive, which find 3 GB/s."""
    calls = []
    monkeypatch.setattr(
        "gdsload.loader.diagnosis.measure_drive", lambda *given: calls.append(given) or SimpleNamespace(gb_per_s=3.0)
    )
    return calls


@pytest.fixture
def kernel(monkeypatch, limit):
    """A kernel that says that the bytes are in the page cache; where the drive is the limit, one that does not say."""
    monkeypatch.setattr("gdsload.loader.life.bytes_from_drives", lambda: None if limit == "drive" else 0)


@pytest.mark.usefixtures("small_groups", "kernel")
@pytest.mark.parametrize(
    ("limit", "options", "seconds"),
    [
        ("drive", {"shuffle": "full"}, (0.006, 0.001)),
        ("gather", {"shuffle": "full"}, (0.006, 0.001)),
        ("transform", {"sample_transform": PerSample(slow, workers=1)}, (0.0, 0.001)),
        ("model", {}, (0.0, 0.015)),
        ("unknown", {}, (0.0, None)),
    ],
)
def test_real_loops(load, plain, wrap, probed, limit, options, seconds):
    drive_s, step_s = seconds
    wrap(lambda inner: SlowBackend(inner, drive(drive_s)))
    loader = load(plain, 20, mmap=False, **options)
    for epoch in range(6 if step_s else 0):  # the first one opens files; and other processes may hold one up
        for _ in loader:
            time.sleep(bool(epoch) * step_s)
        if epoch and loader.diagnose().limit == limit:
            break
    found = loader.diagnose()
    assert (found.limit, found.drive_rate) == (limit, 3e9 if limit == "drive" else None)
    calls, batches = len(probed), iter(loader)
    next(batches)
    loader.diagnose()
    assert len(probed) == calls  # while batches are read, the drive is left alone


@pytest.mark.parametrize(("loader_s", "step_s"), [(0.02, 0.002), (0.002, 0.02)])
def test_a_loop_that_waits_for_its_loader_and_one_that_does_not(load, plain, loader_s, step_s):
    def wait(sample):
        time.sleep(loader_s)
        return sample

    batches = iter(loader := load(plain, 1, sample_transform=PerSample(wait, workers=1)))
    next(batches)
    before, asking_s = copy.copy(loader.stats), 0.0
    begun = time.perf_counter()
    for _ in range(15):
        asked = time.perf_counter()
        next(batches)
        asking_s += time.perf_counter() - asked
        time.sleep(step_s)
    took, found = time.perf_counter() - begun, loader.stats.since(before)
    assert found.host_wait_share == pytest.approx(asking_s / took, abs=0.15)
    assert found.ready_share < 1 if loader_s > step_s else found.ready_share > 0.65  # groups may end at once
    assert found.starved_share is None
