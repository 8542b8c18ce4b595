"""Blocks filled from shards, by threads and out of mappings: the bytes of the files, whatever happens."""

import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gdsload
from gdsload.backends.bounce import fill_threads, resident_rows
from gdsload.backends.bounce.copier import BlockPath
from gdsload.backends.bounce.fill_threads import ThreadFill
from gdsload.backends.bounce.resident_rows import ResidentRows
from gdsload.backends.bounce.slot_layout import lay_out
from gdsload.errors import FileChangedError, LoaderClosedError, ReadError
from gdsload.shards.local_files import LocalFiles
from gdsload.shards.reads import PAGE_BYTES
from gdsload.system import pinned
from gdsload.system.pool import Future
from gdsload.testing.conformance import extents as extents_of
from tests.backends.extents import within
from tests.drives import files_of
from tests.page_cache import open_paths, unreadable

BLOCK, BLOCKS, ROWS = 4 * PAGE_BYTES, 5, 700


class Copier:
    """Copies at once, or after a while, to memory of the host."""

    stream = None

    def __init__(self):
        self.delay_s, self.guarded, self.trouble = 0.0, True, None
        self._under_way = {}

    def copy(self, block, slot, low, nbytes):
        if self.trouble:
            raise self.trouble
        target = slot[low : low + nbytes]
        if not self.delay_s:
            target.copy_(block.tensor[: len(target)])
            return
        done = threading.Event()

        def later():
            time.sleep(self.delay_s)
            target.copy_(block.tensor[: len(target)])
            done.set()

        self._under_way[block.address] = done
        threading.Thread(target=later).start()

    def is_past(self, block):
        done = self._under_way.get(block.address)
        return not self.guarded or done is None or done.is_set()

    def wait(self, block):
        if not self.is_past(block):
            self._under_way[block.address].wait(30)

    def reading(self, parts, after=None):
        return Future(parts, after)

    def drain(self):
        for done in self._under_way.values():
            assert done.wait(30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("fill") / "shards"
    rows = np.random.default_rng(0).integers(0, 256, (ROWS, 1000), np.uint8)
    with gdsload.ShardWriter(found, shard_bytes=150_000) as writer:
        writer.write_batch({"x": rows})
    return found


class Site:
    """Everything that a fill needs, with slots in this machine's memory."""

    def __init__(self, folder, monkeypatch, *, mapped=False, open_files=LocalFiles):
        dataset = gdsload.ShardDataset(folder)
        self.files = open_files(dataset.sources, mapped=mapped)
        self.files.ensure_open(np.arange(len(self.files.sources)))
        self.bytes = [np.fromfile(source.path, np.uint8) for source in self.files.sources]
        self.whole = [(file, 0, len(data)) for file, data in enumerate(self.bytes)]
        with monkeypatch.context() as patched:
            patched.setattr(pinned, "register_host", lambda *_: "")
            patched.setattr(pinned, "processors_near", lambda _device: None)
            self.ring = pinned.PinnedRing(torch.device("cpu"), BLOCKS, BLOCK)
        self.copier, self.counted, self._lock = Copier(), [0, 0], threading.Lock()
        self.means = self.files, BlockPath(self.ring, self.copier, self._count)
        self.fill = ThreadFill(*self.means, 3, None)

    def _count(self, direct, buffered):
        with self._lock:
            self.counted[0] += direct
            self.counted[1] += buffered

    def extents(self, wanted):
        """Some extents, cut at the ends of the files."""
        return extents_of(within([len(data) for data in self.bytes], wanted))

    def read(self, wanted):
        """The slot, the place of each extent in it, and the reading."""
        layout = lay_out(wanted, self.files.sizes, BLOCK, lambda _nbytes: BLOCK, self.files.drives)
        slot = torch.full((layout.nbytes,), 170, dtype=torch.uint8)
        return slot, layout.places, self.fill.run(layout, slot)

    def holds(self, slot, places, wanted):
        """Return whether the slot has the files' bytes."""
        found = slot.numpy()
        return all(
            np.array_equal(found[place : place + nbytes], self.bytes[file][offset : offset + nbytes])
            for file, offset, nbytes, place in zip(
                *(column.tolist() for column in (wanted.file, wanted.offset, wanted.nbytes, places)), strict=True
            )
        )

    def reads(self, wanted):
        slot, places, reading = self.read(wanted)
        reading.wait()
        return self.holds(slot, places, wanted)

    def close(self):
        self.fill.close()
        self.copier.drain()
        blocks = [self.ring.take() for _ in range(BLOCKS)]  # or one was lost, and this would wait for ever
        assert len({block.address for block in blocks}) == BLOCKS
        self.files.close()


@pytest.fixture
def sites(folder, monkeypatch):
    found = []

    def make(**options):
        found.append(Site(folder, monkeypatch, **options))
        return found[-1]

    yield make
    for site in found:
        site.close()


# Long and short, overlapping, repeated, empty, to the very end.
anything = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 149_999), st.sampled_from([0, 1, 100, 4096, 20_000, 10**9])),
    max_size=25,
)


def parity(source):
    """Two drives: one of the even shards, one of the odd ones."""
    return int(source.path[-13]) % 2


@pytest.mark.parametrize("direct", [True, False, None])
@pytest.mark.parametrize("open_files", [LocalFiles, files_of(where=parity)], ids=["one", "two"])
def test_slots_hold_the_files_bytes(sites, monkeypatch, direct, open_files):
    if direct is not None:
        monkeypatch.setattr(fill_threads, "looks_resident", lambda *_: not direct)
    site = sites(open_files=open_files)

    @settings(derandomize=True, max_examples=12, suppress_health_check=list(HealthCheck))
    @given(st.lists(anything, min_size=1, max_size=4))
    def hold(several):
        several = [site.extents(wanted) for wanted in several]
        under_way = [site.read(wanted) for wanted in several]
        for wanted, (slot, places, reading) in zip(several, under_way, strict=True):
            reading.wait()
            assert site.holds(slot, places, wanted)

    hold()
    assert site.counted[1 if direct else 0] == 0 or direct is None
    assert sum(site.counted) > 0


def test_a_drive_whose_blocks_are_cold_has_threads_of_its_own(sites, monkeypatch):
    """Even if the other drive's files are in the page cache, whose copies take a processor each."""
    site, seen = sites(open_files=files_of(where=parity)), set()
    copy, now = site.copier.copy, itertools.count(100)

    def note(block, slot, low, nbytes):
        seen.add(threading.current_thread().name.rpartition("-")[0])
        copy(block, slot, low, nbytes)

    site.copier.copy = note
    wanted = extents_of(site.whole[:4])
    monkeypatch.setattr(fill_threads.time, "monotonic", lambda: next(now))  # no answer is believed twice
    monkeypatch.setattr(fill_threads, "looks_resident", lambda _files, reads, _probes: not cold[reads.file[0] % 2])
    for cold in itertools.product([True, False], repeat=2):
        seen.clear()
        assert site.reads(wanted)
        assert seen == {f"gdsload-bounce{'-direct' * one}-{number}" for number, one in enumerate(cold)}


@pytest.mark.parametrize("guard", [True, False])
def test_a_block_that_is_still_copied_from_is_not_filled_again(sites, guard):
    site = sites()
    site.copier.delay_s, site.copier.guarded = 0.005, guard
    wanted = extents_of(site.whole[:4])
    slot, places, reading = site.read(wanted)
    reading.wait()
    site.copier.guarded = True
    site.copier.drain()
    time.sleep(0.02)  # without the guard, nobody knows which copies are under way
    assert site.holds(slot, places, wanted) == guard


def test_a_copy_that_fails_is_the_landings_error(sites):
    site = sites()
    site.copier.trouble = RuntimeError("the device is gone")
    for _ in range(BLOCKS + 1):
        with pytest.raises(RuntimeError, match="the device is gone"):
            site.read(extents_of([(0, 0, 100_000)]))[2].wait()
    site.copier.trouble = None
    assert site.reads(extents_of([(0, 0, 100_000)]))


def test_close_waits_for_what_is_under_way_and_turns_the_rest_away(sites):
    """Also what other threads go on reading meanwhile."""
    site = sites()
    site.copier.delay_s = 0.01
    wanted, several = extents_of(site.whole[:4]), []

    def read(_number):
        with suppress(LoaderClosedError):
            while True:
                several.append(site.read(wanted))

    with ThreadPoolExecutor(4) as threads:
        reading = threads.map(read, range(4))
        while len(several) < 5:
            time.sleep(0.001)
        site.fill.close()
        list(reading)
    site.copier.drain()
    turned_away = 0
    for slot, places, one in several:
        assert one.landed
        try:
            one.wait()
        except LoaderClosedError:
            turned_away += 1
        else:
            assert site.holds(slot, places, wanted)
    assert turned_away
    site.fill.close()
    with pytest.raises(LoaderClosedError, match="closed"):
        site.read(wanted)


def test_descriptors_that_threads_keep_are_given_back(sites):
    site = sites()
    for one in site.whole[:4]:
        site.read(extents_of([one]))[2].wait()
    paths = {os.path.realpath(source.path) for source in site.files.sources}
    assert {*open_paths()} & paths
    site.fill.close()
    site.files.close()  # which leaves open what somebody uses
    assert not {*open_paths()} & paths


class TestResidentRows:
    @pytest.fixture
    def site(self, sites):
        site = sites(mapped=True)
        site.fill = ResidentRows(*site.means, 2, None)
        return site

    @pytest.fixture
    def touched(self, monkeypatch):
        found = []
        monkeypatch.setattr(resident_rows, "take_rows", lambda *_: found.append(True))
        return found

    def read(self, site, wanted):
        held = []

        def slot(nbytes):
            held.append(torch.full((nbytes,), 170, dtype=torch.uint8))
            return held[0]

        landing = site.fill.read(wanted, slot)
        landing.completion.wait()
        return held[0], landing.addresses - held[0].data_ptr(), landing

    def test_slots_hold_the_rows(self, site, monkeypatch):
        """Fields of several lengths, in any order, over the edges of blocks."""
        monkeypatch.setattr(resident_rows, "looks_resident", lambda *_: True)

        @settings(derandomize=True, max_examples=40)
        @given(
            st.lists(st.tuples(st.sampled_from([0, 1, 8, 1000, 4096, BLOCK]), st.integers(1, 60)), max_size=4),
            st.integers(0, 2**32),
        )
        def hold(fields, seed):
            random = np.random.default_rng(seed)
            wanted = extents_of([
                (file, int(random.integers(0, len(site.bytes[file]) - nbytes)), nbytes)
                for nbytes, rows in fields
                for file in random.integers(0, 4, rows).tolist()
            ])  # fmt: skip
            if site.fill.takes(wanted):
                before = site.counted[1]
                slot, places, landing = self.read(site, wanted)
                assert site.holds(slot, places, wanted)
                assert site.counted == [0, before + wanted.total_bytes]
                assert landing.nbytes == len(slot)
            else:
                assert not len(wanted)

        hold()

    def test_what_is_better_read_goes_another_way(self, site, monkeypatch):
        rows = [(0, number * 1000, 1000) for number in range(140)]
        for wanted, there, takes in [
            ([(0, 0, number) for number in range(1, 30)], True, False),  # ragged
            ([(0, 0, BLOCK + 1)], True, False),
            ([(0, 0, BLOCK)], True, True),
            (rows, True, False),  # one run of them is one read; the same rows in another order are not
            (rows[::-1], True, True),
            (rows[::-1], False, False),
        ]:
            monkeypatch.setattr(resident_rows, "looks_resident", lambda *_, there=there: there)
            assert site.fill.takes(extents_of(wanted)) is takes

    def test_a_file_that_changed_is_an_error_before_it_is_touched(self, site, touched, monkeypatch):
        """However long it took until there was a block."""

        def changed(_files, **_options):
            raise FileChangedError("another one", file="shard")

        blocks = [site.ring.take() for _ in range(BLOCKS)]
        landing = site.fill.read(extents_of([(0, 0, 100)]), lambda nbytes: torch.zeros(nbytes, dtype=torch.uint8))
        time.sleep(0.05)
        monkeypatch.setattr(site.files, "check", changed)
        for block in blocks:
            site.ring.give(block)
        with pytest.raises(FileChangedError, match="another one"):
            landing.completion.wait()
        assert not touched

    def test_a_page_that_cannot_be_read_is_an_error_before_it_is_touched(self, site, touched, monkeypatch):
        unreadable(monkeypatch)
        with pytest.raises(ReadError, match="byte 8192: reading failed: Input/output error"):
            self.read(site, extents_of([(1, 9000, 100)]))
        assert not touched


@pytest.mark.parametrize("direct", [True, False])
def test_reads_that_fail(sites, monkeypatch, direct):
    monkeypatch.setattr(fill_threads, "looks_resident", lambda *_: not direct)
    site = sites()
    unreadable(monkeypatch)
    *_, reading = site.read(extents_of([(1, 9000, 100), (2, 50_000, 100)]))
    with pytest.raises(ReadError, match=r"byte \d+: reading failed: Input/output error"):
        reading.wait()


def test_the_answer_for_a_block_is_believed_for_a_moment(sites, monkeypatch):
    """Each shard has its own answer, and what the page cache keeps is read through it."""
    answers, asked, now = {0: False, 1: True}, [], [100.0]

    def look(_files, reads, _probes):
        asked.append(int(reads.file[0]))
        return answers[asked[-1]]

    def read(*shards):
        """The shards that are asked about, and whether all is read with O_DIRECT, when a page of each is read."""
        asked.clear()
        before = list(site.counted)
        assert site.reads(extents_of([(file, 0, PAGE_BYTES) for file in shards]))
        return [*asked], [after - count for after, count in zip(site.counted, before, strict=True)]

    monkeypatch.setattr(fill_threads, "looks_resident", look)
    monkeypatch.setattr(fill_threads.time, "monotonic", lambda: now[0])
    site = sites()
    assert read(0) == ([0], [PAGE_BYTES, 0])
    assert read(1) == ([1], [0, PAGE_BYTES])
    answers.update({0: True, 1: False})
    assert read(0) == ([], [PAGE_BYTES, 0])
    now[0] += 1.0
    assert read(0) == ([0], [0, PAGE_BYTES])
    assert read(1) == ([1], [PAGE_BYTES, 0])
    site.files.kept[1] = True
    assert read(1) == ([], [0, PAGE_BYTES])
