"""The pages in the page cache, against mincore, which is right for a file's owner."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.shards import page_cache as residency
from gdsload.shards.catalog import open_catalog
from gdsload.shards.identity import ShardSource
from gdsload.shards.local_files import LocalFiles
from gdsload.shards.page_cache import file_is_resident, is_resident, looks_resident
from gdsload.shards.reads import Extents
from tests.page_cache import chill, in_cache
from tests.shards.failing_calls import failing

PAGE = mmap.PAGESIZE
SHARD_PAGES = 2048


def drive_is_quick(path):
    """Return whether the drive, for a moment of a second, reads a page before the kernel can say that it is not there.

    A question has its page fetched. Virtual drives answer at once now and then, when their host has the bytes.
    """
    end = time.monotonic() + 1
    while time.monotonic() < end:
        chill(path)
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for page in range(64):
            with contextlib.suppress(BlockingIOError):
                if os.preadv(fd, [bytearray(1)], page * PAGE, os.RWF_NOWAIT):
                    os.close(fd)
                    return True
        os.close(fd)
    return False


def is_cold(path, said):
    """For what was said of bytes that were cold. It is not our mistake if the drive has read them meanwhile."""
    if said and drive_is_quick(path):
        pytest.skip("this drive reads a page sooner than the kernel says that it is not there")
    return not said


@pytest.fixture(scope="module", autouse=True)
def no_sync():
    """All is synced, since pages that are not written yet stay in the cache."""


@pytest.fixture(scope="module")
def small(tmp_path_factory, bring_in):
    path = tmp_path_factory.mktemp("residency") / "small"
    path.write_bytes(bytes(64 * PAGE))
    bring_in(path)
    return path


@pytest.fixture(scope="module")
def shard(tmp_path_factory, bring_in):
    path = tmp_path_factory.mktemp("residency") / "a.safetensors"
    safetensors.numpy.save_file({"x": np.zeros((SHARD_PAGES, PAGE), np.uint8)}, path)
    bring_in(path)
    return path


@pytest.fixture
def files(shard):
    catalog = open_catalog(str(shard.parent))
    table = LocalFiles(catalog.sources, mapped=False)
    table.ensure_open(np.array([0]))
    yield table
    table.close()


@settings(derandomize=True, max_examples=20)
@given(st.sets(st.integers(0, 63)))
def test_every_page_is_what_mincore_says(small, touched):
    chill(small)
    fd = os.open(small, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # or whole neighbourhoods would come with each page
    for page in touched:
        os.pread(fd, 1, page * PAGE)
    assert in_cache(small)[sorted(touched)].all()
    wrong = 0
    for page in range(64):
        there = bool(in_cache(small)[page])  # at this moment: asking for others may have fetched it
        said = is_resident(fd, page * PAGE + 17)
        assert said or not there
        assert in_cache(small)[page] or not said
        wrong += said and not there
    os.close(fd)
    assert is_cold(small, wrong > 16)  # now and then the drive is quicker than the answer


def run(offset: int, nbytes: int) -> Extents:
    return Extents(np.array([0]), np.array([offset]), np.array([nbytes]))


def test_a_file_is_resident_when_it_was_read_and_not_when_it_was_dropped(shard, files):
    assert looks_resident(files, run(0, 0)), "nothing of no bytes is missing"
    for _ in range(3):
        shard.read_bytes()
        assert file_is_resident(files, 0)
        assert looks_resident(files, run(3 * PAGE, 700 * PAGE))
        chill(shard)
        assert is_cold(shard, file_is_resident(files, 0))
        chill(shard)
        assert is_cold(shard, looks_resident(files, run(3 * PAGE, 700 * PAGE)))


def test_half_a_shard_is_not_resident_but_its_half_is(shard, files):
    chill(shard)
    with shard.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.read(SHARD_PAGES // 2 * PAGE)
    assert looks_resident(files, run(0, SHARD_PAGES // 2 * PAGE))
    assert is_cold(shard, file_is_resident(files, 0))


def test_asking_again_and_again_does_not_make_a_cold_shard_look_resident(shard, files):
    # Each refused read has its page fetched: of 32 fixed places, all were there after as many looks.
    chill(shard)
    random.seed(5)
    expected = random.random()
    random.seed(5)
    for _ in range(60):
        assert is_cold(shard, file_is_resident(files, 0))
        time.sleep(0.002)
    assert random.random() == expected, "what users draw does not depend on us"


def test_every_byte_is_as_likely_to_be_asked_for_as_every_other(shard, files):
    chill(shard)
    with shard.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.read(8 * PAGE)
    # Eight short extents that are there, and one long one, of 2000 times their length, that is not.
    pages = np.array([*range(8), 100])
    wanted = Extents(np.zeros(9, np.int64), pages * PAGE, np.array([1] * 8 + [16000]))
    assert is_cold(shard, looks_resident(files, wanted))


def test_what_cannot_be_told_is_not_resident(shard, files, monkeypatch):
    shard.read_bytes()
    fd = os.open(shard, os.O_RDONLY)
    assert is_resident(fd, 0)
    os.close(fd)
    assert not is_resident(fd, 0)
    monkeypatch.setattr(residency, "_NOWAIT", None)  # a system without the flag
    assert not file_is_resident(files, 0)


def test_a_file_system_that_does_not_say_is_asked_whether_it_is_memory(shard, files):
    """As tmpfs answers; a shard on a drive of which nobody can say anything is not taken for resident."""
    in_memory = os.memfd_create("gdsload-test")  # a file of a tmpfs
    with failing(os, "preadv", errno.EOPNOTSUPP), files.descriptor(0) as fd:
        assert not is_resident(fd, 0)
        assert is_resident(in_memory, 0)
    os.close(in_memory)


def test_the_bytes_of_shards_in_memory(tmp_path, monkeypatch):
    for name in ("drive", "memory"):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / str(number)).write_bytes(bytes(100))
    sources = [ShardSource(str(tmp_path / name / str(number))) for name in ("drive", "memory") for number in range(3)]
    known = [ShardSource(source.path, file_bytes=100) for source in sources]
    asked = []

    def answer(fd):
        asked.append(os.readlink(f"/proc/self/fd/{fd}"))
        return "memory" in asked[-1]

    monkeypatch.setattr(residency, "_lives_in_memory", answer)
    assert residency.bytes_in_memory(sources) == residency.bytes_in_memory(known) == 300
    assert len(asked) == 4  # one of each folder, each time
    assert residency.bytes_in_memory([ShardSource(str(tmp_path / "memory" / "gone")), *known[3:]]) == 300


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a tmpfs")
def test_what_lies_in_a_tmpfs_is_resident():
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(bytes(64 * PAGE))
        file.flush()
        table = LocalFiles([ShardSource(file.name)], mapped=False)
        with table.descriptor(0):
            assert file_is_resident(table, 0)
        table.close()
        assert residency.bytes_in_memory([ShardSource(file.name)]) == 64 * PAGE
