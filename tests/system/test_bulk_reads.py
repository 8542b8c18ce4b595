"""Many reads by one call: the bytes of the files, however many, and whatever fails."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdsload.system import bulk_reads
from gdsload.system.bulk_reads import BulkReads
from gdsload.system.memory import BatchPool, address_of

SIZES = [70_001, 9, 0, 300_000]
ROOM = 4096


class Opened:
    """Files, a way to read them, and what it says."""

    def __init__(self, folder, flags=0):
        rng = np.random.default_rng(1)
        self.contents = [rng.integers(0, 256, size, np.uint8).tobytes() for size in SIZES]
        self.fds = []
        for number, content in enumerate(self.contents):
            path = folder / str(number)
            path.write_bytes(content)
            self.fds.append(os.open(path, os.O_RDONLY | flags))
        self.reads = BulkReads()

    def holds(self, wanted):
        """Read (file, offset, bytes): exactly those bytes come, and no others of the memory are touched."""
        memory = BatchPool(0).lease(max(len(wanted), 1) * ROOM)
        memory[:] = 170
        addresses = address_of(memory) + np.arange(len(wanted)) * ROOM
        fds, offsets, nbytes = (np.array(column, np.int64) for column in zip(*wanted, strict=True))
        counts = self.reads.read(np.array(self.fds)[fds], offsets, nbytes, addresses)
        for number, (file, offset, length) in enumerate(wanted):
            there = self.contents[file][offset : offset + length]
            room = memory[number * ROOM : (number + 1) * ROOM].tobytes()
            assert counts[number] == len(there)
            assert room == there + b"\xaa" * (ROOM - len(there))

    def close(self):
        self.reads.close()
        for fd in self.fds:
            os.close(fd)


def refuse(*_):
    raise OSError(errno.EAGAIN, "io_setup")


@pytest.fixture(params=[None, ("_NUMBERS", None), ("Context", refuse)], ids=["many at once", "no calls", "no contexts"])
def opened(request, tmp_path, monkeypatch):
    if request.param:
        monkeypatch.setattr(bulk_reads, *request.param)
    with closing(Opened(tmp_path)) as found:
        yield found


some_reads = st.lists(
    st.tuples(st.integers(0, len(SIZES) - 1), st.integers(0, 300_000), st.integers(0, ROOM)), min_size=1, max_size=600
)


@settings(derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some_reads)
def test_exactly_the_bytes_wanted(opened, wanted):
    opened.holds(wanted)


def test_more_than_are_under_way_at_once(opened):
    rng = np.random.default_rng(2)
    opened.holds([(3, int(rng.integers(300_000)), 4096) for _ in range(3000)])


def test_from_several_threads(opened):
    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            opened.holds([(3, int(rng.integers(300_000)), 4096) for _ in range(300)])

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))


def test_each_read_has_an_error_of_its_own(opened):
    memory = BatchPool(0).lease(4 * ROOM)
    places = address_of(memory) + np.arange(4) * ROOM
    places[2] = 64  # nobody's memory
    fds = np.array([opened.fds[3], -1, opened.fds[3], opened.fds[3]])
    counts = opened.reads.read(fds, np.array([7, 0, 0, 299_000]), np.full(4, 2000), places)
    assert counts.tolist() == [2000, -errno.EBADF, -errno.EFAULT, 1000]
    assert memory[:2000].tobytes() == opened.contents[3][7:2007]


def test_after_a_fork(opened, ends_in_a_child):
    opened.holds([(3, 5, 100)])

    def child():
        opened.holds([(3, offset, 100) for offset in range(0, 1000, 10)])
        opened.reads.close()

    assert ends_in_a_child(child)
    opened.holds([(3, 5, 100)])  # the parent's are still there


def test_around_the_page_cache(tmp_path):
    try:
        found = Opened(tmp_path, os.O_DIRECT)
    except OSError:
        pytest.skip("this file system has no O_DIRECT")
    found.holds([(3, 4096 * page, 4096) for page in range(73)])
    memory = BatchPool(0).lease(2 * ROOM)
    places = address_of(memory) + np.array([0, ROOM])
    counts = found.reads.read(np.full(2, found.fds[3]), np.array([1, 73 * 4096]), np.full(2, 4096), places)
    assert counts.tolist() == [-errno.EINVAL, 300_000 - 73 * 4096]
    found.close()


@pytest.mark.skipif(not os.path.exists("/proc/sys/fs/aio-nr"), reason="this kernel does not count them")
def test_contexts_are_given_back(tmp_path):
    def count():
        with open("/proc/sys/fs/aio-nr") as file:
            return int(file.read())

    for _ in range(50):  # the number is the system's: other processes change it meanwhile
        before, found = count(), Opened(tmp_path)
        found.holds([(3, 0, 10)])
        held = count() - before
        found.close()
        found.reads.close()
        if held > 0 and count() - before < held:
            return
    pytest.fail("contexts are kept")
