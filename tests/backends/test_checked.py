"""Bytes that are compared where they land: what changes after it was read, and what is within reach for good."""

import gc
import weakref
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
import xxhash

from gdsload import ChecksumError, Field, ShardWriter
from gdsload.backends import checked
from gdsload.backends.checked import Checked
from gdsload.backends.host import HostBackend
from gdsload.shards.catalog import open_catalog
from gdsload.shards.format.checksum import BLOCK_BYTES
from gdsload.shards.reads import Extents
from gdsload.shards.shard_table import ShardTable
from gdsload.system.memory_views import dense_view
from gdsload.system.pool import Future
from tests.backends.extents import Reachable
from tests.shards.bits import flip

ROW, SAMPLES = 70_000, 40


@pytest.fixture
def path(tmp_path):
    rows = np.random.default_rng(0).integers(0, 256, (SAMPLES, ROW), dtype=np.uint8)
    with ShardWriter(tmp_path / "shards", {"x": Field("uint8", (ROW,))}, shard_bytes="1MiB") as writer:
        writer.write_batch({"x": rows})
    return tmp_path / "shards"


@pytest.fixture
def opened(path):
    """Opens a backend around that of a kind, and its table."""
    made = []

    def opened(kind, *, mapped, sample=None, device=None):
        catalog = open_catalog(str(path))
        table = ShardTable.of(catalog.sources, catalog.stored, mapped=mapped)
        made.append(Checked(kind(table.files), table, ["x"], table.starts, device, sample))
        return made[-1], table

    yield opened
    for backend in made:
        backend.close()


def damaged_blocks(backend):
    """The problem of each block in which a difference was found."""
    try:
        backend.refuse(np.arange(SAMPLES), {})
    except ChecksumError as error:
        return set(error.problems)
    return set()


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("sample", [None, 0, 1, 2])
@pytest.mark.parametrize("count", [0, 1, 30])
def test_extents_are_where_they_were_asked_for(opened, mapped, sample, count):
    """Any of them: of no bytes, in any order, twice, over edges of blocks."""
    backend, table = opened(HostBackend, mapped=mapped, sample=sample)
    random = np.random.default_rng(count)
    found = table.locate(random.integers(0, SAMPLES, count))
    whole, _ = table.extents("x", found)
    within = random.integers(0, ROW, count)
    wanted = Extents(whole.file, whole.offset + within, random.integers(0, ROW - within) * (within % 3 > 0))
    pending = backend.read(wanted)
    pending.completion.wait()
    for index in wanted.nbytes.nonzero()[0].tolist():
        right = bytearray(int(wanted.nbytes[index]))
        table.files.read_into(int(wanted.file[index]), int(wanted.offset[index]), memoryview(right))
        assert dense_view(1, len(right), int(pending.addresses[index]), 1).numpy().tobytes() == bytes(right)
    pending.release()
    assert not damaged_blocks(backend)


@pytest.mark.parametrize("to", ["device", "host"])
def test_the_gpu_compares_what_is_in_no_mapping_whatever_it_is_read_for(opened, monkeypatch, to):
    """A tier in its memory gives addresses there for the host, too, which the CPU must not follow."""
    given = []

    def queue(addresses, nbytes, _device):
        given.append(len(addresses))
        found = [
            dense_view(1, *one, 1).numpy().tobytes() for one in zip(nbytes.tolist(), addresses.tolist(), strict=True)
        ]
        return torch.tensor([xxhash.xxh3_64_intdigest(one) for one in found], dtype=torch.uint64).view(torch.int64)

    monkeypatch.setattr(checked, "side_stream", str)
    monkeypatch.setattr(checked, "on", lambda _stream: nullcontext())
    monkeypatch.setattr(checked, "queue_checksums", queue)
    for mapped, expected in ((False, [4]), (True, [])):
        backend, table = opened(HostBackend, mapped=mapped, device=torch.device("cpu"))
        table.ensure_open(np.arange(1))
        given.clear()
        pending = backend.read(Extents(np.zeros(1, np.int64), table.begin["x"][:1], table.rows["x"][:1] * ROW), to)
        pending.completion.wait()
        assert given == expected
        pending.release()
        assert damaged_blocks(backend) == set()


def test_a_read_is_not_over_for_its_backend_while_its_bytes_may_be_gathered(opened, monkeypatch):
    """A backend that registers pages removes the registration when nothing refers to the read's completion."""
    backend, table = opened(HostBackend, mapped=True)
    over, read = [], backend.inner.read

    def held(wanted, to):
        completion = Future(0)
        weakref.finalize(completion, over.append, "over").atexit = False
        return replace(read(wanted, to), completion=completion)

    monkeypatch.setattr(backend.inner, "read", held)
    table.ensure_open(np.arange(1))
    pending = backend.read(Extents(np.zeros(1, np.int64), table.begin["x"][:1], np.full(1, ROW)))
    pending.completion.wait()
    backend.end()  # nor do its threads refer to it
    gc.collect()
    assert not over
    del pending
    gc.collect()
    assert over


def test_of_the_blocks_one_in_16_is_compared_and_each_seed_has_its_own(opened):
    """All blocks are damaged: those that are compared are found, and they alone are read whole."""
    plain, table = opened(HostBackend, mapped=False)
    table.ensure_open(np.arange(len(table.starts)))
    ends = table.begin["x"] + table.rows["x"] * ROW
    spans = enumerate(zip(table.begin["x"].tolist(), ends.tolist(), strict=True))
    places = np.array([(file, at) for file, span in spans for at in range(*span, BLOCK_BYTES)])
    for file, at in places.tolist():
        flip(table.files.sources[file].path, at)
    chosen = []
    for seed in [*range(200), 3]:
        backend = Checked(plain.inner, table, ["x"], table.starts, None, seed)
        before = backend.bytes_by_path()["host"]
        pending = backend.read(Extents(places[:, 0], places[:, 1] + 5, np.ones(len(places), np.int64)))
        pending.completion.wait()
        pending.count()
        pending.release()
        backend.end()
        chosen.append(damaged_blocks(backend))
        widened = sum(problem.nbytes - 1 for problem in chosen[-1])
        assert backend.bytes_by_path()["host"] - before == len(places) + widened
    assert chosen[3] == chosen.pop()
    assert len(set.union(*chosen)) == len(places)
    assert 1 / 20 < sum(map(len, chosen)) / (len(chosen) * len(places)) < 1 / 13
    assert len(set(map(frozenset, chosen))) > len(places)


def test_bytes_that_change_after_they_were_read_are_told_from_a_damaged_file(opened, monkeypatch):
    backend, table = opened(HostBackend, mapped=False)
    read = backend.inner.read

    def spoiled(wanted, to):
        pending = read(wanted, to)
        pending.completion.wait()
        dense_view(1, 1, int(pending.addresses[0]) + 5, 1)[0, 0] ^= 1
        return pending

    monkeypatch.setattr(backend.inner, "read", spoiled)
    pending = backend.read(table.extents("x", table.locate(np.array([2])))[0])
    pending.completion.wait()
    pending.release()
    backend.refuse(np.arange(4, SAMPLES), {})
    with pytest.raises(ChecksumError, match=r"changed after they were read.*\(samples 0 to 3\)"):
        backend.refuse(np.array([9, 3]), {})


@pytest.mark.parametrize(
    ("damaged", "sample", "found"), [(False, None, False), (True, None, True), (True, 5, False), (True, 6, True)]
)
def test_shards_within_reach_are_compared_before_their_addresses_are_given(opened, path, soon, damaged, sample, found):
    """Of a sample of their blocks, the damaged one is among those of seed 6, and not of seed 5."""
    if damaged:
        flip(open_catalog(str(path)).sources[-1].path, 100_000)
    backend, _ = opened(Reachable, mapped=True, sample=sample)
    assert backend.addresses() is None
    soon(lambda: damaged_blocks(backend) or backend.addresses() is not None)
    backend.end()
    assert backend.addresses() is (None if found else backend.inner.found)
    assert bool(damaged_blocks(backend)) == found
