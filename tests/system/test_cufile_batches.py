"""Batches of reads: every read ends where it was wanted, whatever ends when. cuFile is played in host memory."""

import ctypes
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.system.cufile_batches import CufileBatches, ReadsUnderWayError, batches_of
from gdsload.system.memory import address_of

DATA = np.random.default_rng(0).integers(0, 256, 50_000, np.uint8)


class Params(ctypes.Structure):
    """CUfileIOParams_t, cufile.h; the union has the members of a batch's read."""

    _fields_ = (
        ("mode", ctypes.c_int), ("base", ctypes.c_void_p), ("file_offset", ctypes.c_int64),
        ("device_offset", ctypes.c_int64), ("size", ctypes.c_size_t), ("handle", ctypes.c_void_p),
        ("opcode", ctypes.c_int), ("cookie", ctypes.c_void_p),
    )  # fmt: skip


class Events(ctypes.Structure):
    """CUfileIOEvents_t, cufile.h."""

    _fields_ = (("cookie", ctypes.c_void_p), ("status", ctypes.c_int), ("ret", ctypes.c_size_t))


class Cufile:
    """Reads at the latest moment, some at a time and in any order. Files are by handle; 13 fails, 14 ends early."""

    def __init__(self, seed=0, refuse_after=1 << 30):
        self.rng, self.left = np.random.default_rng(seed), refuse_after
        self.batches, self.most, self.destroyed = {}, 0, []
        self.lost = []  # reads of which nothing was reported when their batch was destroyed

    def batch_io_set_up(self, depth):
        assert depth <= 128
        number = len(self.batches) + len(self.destroyed) + 1
        self.batches[number] = []
        return number

    def batch_io_submit(self, number, count, address, flags):
        assert (self.batches[number], flags) == ([], 0)
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("no batches here")
        params = (Params * count).from_address(address)
        # cuFile reads them before it returns
        self.batches[number] = [
            (one.mode, one.base, one.file_offset, one.device_offset, one.size, one.handle, one.opcode, one.cookie or 0)
            for one in params
        ]
        self.most = max(self.most, sum(map(bool, self.batches.values())))

    def batch_io_get_status(self, number, least, count, events, timeout):
        waiting, found = self.batches[number], ctypes.c_uint.from_address(count)
        assert (timeout, least, found.value) == (0, len(waiting), len(waiting))
        found.value = int(self.rng.integers(0, len(waiting) + 1))  # fewer than asked for, or none
        for event in (Events * found.value).from_address(events):
            mode, base, offset, position, size, handle, opcode, cookie = waiting.pop(self.rng.integers(len(waiting)))
            assert (mode, opcode) == (1, 0)
            nbytes = size // 2 if handle == 14 else size
            if handle != 13:
                ctypes.memmove(base + position, address_of(DATA) + offset, nbytes)
            event.cookie, event.status, event.ret = cookie, 0x40 if handle == 13 else 0x10, nbytes

    def batch_io_destroy(self, number):
        self.destroyed.append(number)
        self.lost += self.batches.pop(number)


def read(batches, handles, offsets, nbytes):
    into = np.zeros(len(handles) * 100, np.uint8)
    positions = np.arange(len(handles)) * 100
    bases = np.full(len(handles), address_of(into))
    return batches.read(handles, bases, positions, nbytes, offsets), into.reshape(-1, 100)


@settings(max_examples=12)
@given(st.integers(0, 1500), st.integers(0, 1 << 30))
def test_every_read_ends_where_it_is_wanted(count, seed):
    rng, cufile = np.random.default_rng(seed), Cufile(seed)
    batches = CufileBatches(cufile)
    for _ in range(2):
        handles = rng.choice([-(2**40), 12, 13, 14], count)
        offsets, nbytes = rng.integers(0, 49_000, count), rng.integers(1, 101, count)
        done, into = read(batches, handles, offsets, nbytes)
        expected = np.where(handles == 13, 0, np.where(handles == 14, nbytes // 2, nbytes))
        assert np.array_equal(done, expected)
        for row, offset, length in zip(into, offsets, expected, strict=True):
            assert np.array_equal(row[:length], DATA[offset : offset + length])
            assert not row[length:].any()
    assert cufile.most <= 1  # with two, cuFile hangs
    batches.close()
    batches.close()
    assert (cufile.batches, cufile.lost, len(cufile.destroyed)) == ({}, [], int(count > 0))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 300), st.sampled_from([1, 4096, 4097, 2**20])), max_size=8))
def test_no_batch_has_more_reads_than_cufile_has_memory_for(runs):
    """By default it has 128 slabs of 4 KiB, and 64 of 1 MiB."""
    nbytes = np.repeat([size for _, size in runs], [count for count, _ in runs]).astype(np.int64)
    cuts = list(batches_of(nbytes))
    assert [low for low, _ in cuts] == [0, *(high for _, high in cuts)][: len(cuts)]
    assert (cuts[-1][1] if cuts else 0) == len(nbytes)
    for low, high in cuts:
        assert high - low <= 128
        assert (nbytes[low:high] > 4096).sum() <= 64
        full = high == len(nbytes) or high - low == 128 or (nbytes[low : high + 1] > 4096).sum() == 65
        assert full, "reads are left for later, though there was room for one"


def test_two_of_a_process_take_turns():
    cufile, columns = Cufile(), (np.full(1000, 12), np.zeros(1000, np.int64), np.full(1000, 9))
    several = [CufileBatches(cufile) for _ in range(4)]
    with ThreadPoolExecutor(len(several)) as threads:
        for done, _ in threads.map(lambda one: read(one, *columns), several):
            assert done.tolist() == [9] * 1000
    for one in several:
        one.close()
    assert cufile.most == 1


@pytest.mark.parametrize("well", [0, 1, 3, 5])
def test_a_batch_that_is_refused_leaves_no_read_under_way(well):
    cufile = Cufile(refuse_after=well)
    batches = CufileBatches(cufile)
    with pytest.raises(RuntimeError, match="no batches here"):
        read(batches, np.full(1000, 12), np.zeros(1000, np.int64), np.full(1000, 9))
    assert (cufile.batches, cufile.lost) == ({}, [])
    batches.close()
    assert cufile.destroyed == [1]


class Flaky(Cufile):
    """Its status call fails, after something else has been done."""

    def __init__(self, meanwhile=lambda: None):
        super().__init__()
        self.meanwhile = meanwhile

    def batch_io_get_status(self, *_):
        self.meanwhile()
        raise RuntimeError("internal error (5030)")


COLUMNS = np.full(10, 12), np.arange(10), np.full(10, 9)


def test_reads_whose_status_fails_are_said_to_be_under_way():
    cufile = Flaky()
    batches = CufileBatches(cufile)
    with pytest.raises(ReadsUnderWayError, match="when its reads have ended: internal error"):
        read(batches, *COLUMNS)
    with pytest.raises(RuntimeError, match="has failed before"):
        read(batches, *COLUMNS)
    batches.close()
    assert (cufile.destroyed, len(cufile.lost)) == ([1], 10)


def test_a_thread_that_waits_for_its_turn_makes_no_batch_after_one_that_failed():
    with ThreadPoolExecutor(1) as threads:
        waiting = []

        def meanwhile():
            waiting.append(threads.submit(read, batches, *COLUMNS))
            wait(waiting, 0.1)  # for as long it waits for its turn

        batches = CufileBatches(Flaky(meanwhile))
        with pytest.raises(ReadsUnderWayError, match="5030"):
            read(batches, *COLUMNS)
        with pytest.raises(RuntimeError, match="^a batch of reads has failed before$"):
            waiting[0].result(30)


class Repeating(Cufile):
    """Tells of a read once more before it tells of those of the next batch."""

    again = None

    def batch_io_get_status(self, number, least, count, events, timeout):
        first = Events.from_address(events)
        if self.again is not None:
            (first.cookie, first.status, first.ret), self.again = (self.again, 0x10, 1), None
            ctypes.c_uint.from_address(count).value = 1
            return
        super().batch_io_get_status(number, least, count, events, timeout)
        if not self.batches[number]:
            self.again = first.cookie or 0


def test_what_is_told_of_a_read_is_not_taken_for_another_batch():
    cufile = Repeating()
    batches = CufileBatches(cufile)
    for _ in range(4):
        done, into = read(batches, *COLUMNS)
        assert done.tolist() == [9] * 10
        assert into[:, :9].tolist() == [DATA[offset : offset + 9].tolist() for offset in range(10)]
