"""The `auto` backend's sharing out, with a page cache's stand-in that needs no GPU, and the real thing for the drive."""

import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.backends import keep as keep_module
from gdsload.backends import mapped as mapped_module
from gdsload.backends.base import Both, PendingRead
from gdsload.backends.host import HostBackend
from gdsload.backends.tiers import registered as registered_module
from gdsload.backends.tiers.registered import RegisteredTier
from gdsload.backends.tiers.tiered import Tiered
from gdsload.errors import LoaderClosedError
from gdsload.system.pool import Future, done
from gdsload.testing import BackendTests, RecordingBackend
from gdsload.testing.conformance import extents as extents_of
from tests.backends.extents import SIZES, bytes_of, files_in, some_extents, within

FULL = "register_bytes are used up"


class Registrar(RegisteredTier):
    """Registers nothing, which needs a GPU, but reads from mappings, and only what is as if registered.

    Args:
        files: the shards, mapped.
        room: how many shards may be registered.
    """

    def __init__(self, files, room=100):
        super().__init__(files, torch.device("cpu"), register_bytes=2**40, at_once=4)
        self.room = room
        self.asked, self.released, self.closed = [], 0, 0
        self.completion = done
        self.error = None

    def read(self, wanted, _to="device"):
        if self.closed:
            raise LoaderClosedError("the backend was closed")
        assert self.registered[wanted.file].all()
        assert len(wanted)
        addresses = self.files.base[wanted.file] + wanted.offset
        return PendingRead(addresses, self.completion, 0, self._release, count=self.counts(wanted))

    def _release(self):
        self.released += 1

    def try_register(self, file):
        self.asked.append(file)
        if self.error:
            raise self.error
        if self.registered.sum() >= self.room:
            return FULL
        self.registered[file] = True
        self._users[file] = 0
        return ""

    def give_back(self):
        # What reads from the drive may be copying out of the mappings still: they must be there.
        assert self.closed or self.files.base[self.registered].all()
        self.closed += 1


def routed_on(files, room=100):
    """A backend whose drive is really read, into memory of its own, although the files are mapped, too."""
    drive = HostBackend(files, threads=2)
    drive.in_place = False
    return Tiered("auto", files, Registrar(files, room), RecordingBackend(drive))


class TestConformance(BackendTests):
    mapped = may_be_in_place = True

    @pytest.fixture(params=[100, 1], ids=["room for all", "room for one"])
    def open_backend(self, request):
        return partial(routed_on, room=request.param)


def open_routed(folder):
    return routed_on(files_in(folder, mapped=True))


@pytest.fixture
def routed(folder, monkeypatch, to_close):
    monkeypatch.setattr(registered_module, "_LOOK_EVERY_S", 0.001)
    return to_close(open_routed(folder))


@pytest.fixture
def resident(folder, bring_in):
    """All shards are in the page cache, and the file system says so."""
    for path in folder.iterdir():
        bring_in(path)


ONE_OF_EACH = extents_of([(file, 5, 10) for file in range(len(SIZES))])


def brings_all(routed, contents):
    """The landing of all shards' bytes, which are right."""
    whole = [(file, 0, len(raw)) for file, raw in enumerate(contents)]
    landing = routed.read(extents_of(whole))
    assert bytes_of(landing, whole) == contents
    landing.release()
    return landing


def threads(names="gdsload-register"):
    return [thread for thread in threading.enumerate() if thread.name.startswith(names)]


def until(happened, routed, wanted=ONE_OF_EACH):
    """Go on bringing until something has happened; whether it has."""
    for _ in range(2000):
        if happened():
            return True
        landing = routed.read(wanted)
        landing.completion.wait()
        landing.release()
        time.sleep(0.001)
    return False


# --- what is read ---


@settings(derandomize=True, max_examples=50)
@given(some_extents(), st.sets(st.integers(0, len(SIZES) - 1)))
def test_bytes_are_the_same_whatever_is_registered(folder, contents, found, ready):
    found = within([len(raw) for raw in contents], found)
    routed = open_routed(folder)
    routed.near.trouble = "nothing more is to be registered"
    routed.files.ensure_open(np.arange(len(SIZES)))
    routed.near.registered[list(ready)] = True
    landing = routed.read(extents_of(found))
    assert bytes_of(landing, found) == [contents[file][offset : offset + size] for file, offset, size in found]
    assert routed.far.held_bytes == landing.nbytes
    assert routed.near.released == 0
    landing.count()
    landing.release()
    assert routed.near.released == any(file in ready for file, _, _ in found)
    # Each byte by its path; and a path without bytes to read is not asked.
    by_path = {"mapped": 0, "host": 0}
    for file, _, size in found:
        by_path["mapped" if file in ready else "host"] += size
    assert routed.bytes_by_path() == {path: count for path, count in by_path.items() if count}
    assert all(not ready & set(wanted.file.tolist()) for wanted in routed.far.reads)
    assert len(routed.far.reads) == (not found or any(file not in ready for file, _, _ in found))
    assert routed.far.held_bytes == routed.far.released_twice == 0
    routed.close()


@pytest.mark.parametrize("which", [0, 1])
def test_an_error_of_one_part_does_not_keep_from_waiting_for_the_other(in_thread, which):
    parts = [Future(1), Future(1)]
    bad, slow = parts[which], parts[1 - which]
    bad.finish(OSError("broken"))
    both = Both(*parts)
    waiting = in_thread(both.wait)
    time.sleep(0.05)
    assert (waiting.done(), both.landed) == (False, False)  # its memory is still being written to
    slow.finish()
    with pytest.raises(OSError, match="broken"):
        waiting.result(timeout=30)
    assert both.landed


# --- what is registered ---


@pytest.mark.usefixtures("resident")
def test_resident_shards_are_registered_behind_the_loaders_back(routed, contents):
    assert threads() == []
    assert until(routed.near.registered.all, routed)
    asked = len(routed.far.reads)
    assert brings_all(routed, contents).nbytes == 0
    assert len(routed.far.reads) == asked
    assert sorted(routed.near.asked) == list(range(len(SIZES)))
    assert routed.near.trouble == ""


def test_shards_are_registered_when_they_have_become_resident(routed, monkeypatch):
    """Which of them are is said here: a drive may read a page before the kernel can say that it is not there."""
    resident, looked = set(), []

    def look(files, file):
        looked.append(file)
        return file in resident

    monkeypatch.setattr(keep_module, "file_is_resident", look)
    wanted = extents_of([(3, 5_000_000, 10)])
    assert until(lambda: len(looked) > 2, routed, wanted)
    assert (routed.near.asked, len(threads())) == ([], 1)
    resident.add(3)
    assert until(lambda: routed.near.registered[3], routed, wanted)
    assert set(looked) == {3}


@pytest.mark.usefixtures("resident")
def test_trouble_ends_all_registering(routed, contents):
    routed.near.room = 2
    assert until(lambda: routed.near.trouble, routed)
    assert routed.near.trouble == FULL
    assert until(lambda: not threads(), routed)
    asked = len(routed.near.asked)
    assert asked == 3
    for _ in range(5):
        brings_all(routed, contents)
    assert len(routed.near.asked) == asked
    assert threads() == []
    assert routed.near.registered.sum() == 2


@pytest.mark.usefixtures("resident")
def test_errors_while_registering_are_nobodys_business(routed, contents):
    routed.near.error = OSError("the file is gone")
    assert until(lambda: len(routed.near.asked) > 8, routed)
    brings_all(routed, contents)
    assert not routed.near.registered.any()
    routed.near.error = None
    assert until(routed.near.registered.all, routed)


# --- what is kept ---


@pytest.fixture
def keeping(folder, monkeypatch, to_close):
    """Opens a backend whose page cache keeps some shards; with it come the shards that were read whole, in order."""
    monkeypatch.setattr(registered_module, "AFTER_S", 0)
    monkeypatch.setattr(keep_module, "file_is_resident", lambda _files, file: file in there)
    there, read = set(), []

    def noting(files, read_into):
        def note(file, offset, memory):
            if offset == 0:
                read.append(Path(files.sources[file].path).stem)
            read_into(file, offset, memory)

        return note

    def opening(*kept, resident=()):
        there.update(resident)
        routed = to_close(open_routed(folder))
        routed.near.at_once = 1
        routed.files.kept[list(kept)] = True
        monkeypatch.setattr(routed.files, "read_into", noting(routed.files, routed.files.read_into))
        return routed, read

    return opening


def test_kept_shards_are_read_and_registered_from_the_last_one_back(keeping):
    routed, read = keeping(0, 1, 3)
    first = extents_of([(1, 0, 10)])
    assert until(lambda: all(routed.near.registered[[0, 1, 3]]), routed, first)
    assert (read, routed.near.asked) == (["0", "3", "1"], [0, 3, 1])  # the first shard that was wanted comes last
    assert not routed.near.registered[2]
    assert not routed.files.opened[2]


def test_what_the_loader_has_read_is_only_registered(keeping, contents, monkeypatch):
    routed, read = keeping(0, 1, 2, 3, resident=[0, 1])
    populated = {}
    monkeypatch.setattr(
        routed.files,
        "populate",
        lambda file, offset, nbytes, _wanted: populated.setdefault(file, []).append((offset, nbytes)),
    )
    monkeypatch.setattr(keep_module, "_READ_BYTES", 100)
    assert until(routed.near.registered.all, routed)
    for file, raw in enumerate(contents):  # the pages of all were mapped, in the threads that read
        assert populated[file] == [(low, min(100, len(raw) - low)) for low in range(0, len(raw), 100)]
    assert routed.near.asked == [0, 1, 3, 2]
    assert read == ["3", "2"]


@pytest.mark.parametrize("resident", [[], [0, 1], [0, 1, 2, 3]])
def test_only_shards_that_have_to_be_read_wait_for_the_first_batches(keeping, monkeypatch, resident):
    """They wait once. Those that are there are registered at once."""
    routed, read = keeping(0, 1, 2, 3, resident=resident)
    pauses, real = [], registered_module.keep
    routed.near.at_once = 4
    monkeypatch.setattr(registered_module, "AFTER_S", 7)

    def keep(*arguments, over, **options):
        def noted(seconds):
            if seconds:
                pauses.append((seconds, list(read), list(routed.near.asked)))
            return over(0)

        return real(*arguments, over=noted, **options)

    monkeypatch.setattr(registered_module, "keep", keep)
    assert until(routed.near.registered.all, routed)
    assert pauses == [(7, [], resident)] * (len(resident) < 4)


def test_without_threads_that_read_whole_shards_those_that_batches_have_read_are_registered(keeping):
    routed, read = keeping(0, 1, 2, 3, resident=[1, 3])
    routed.near.at_once = 0
    assert until(lambda: all(routed.near.registered[[1, 3]]), routed)
    assert (read, routed.near.asked) == ([], [1, 3])


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_so_many_shards_are_read_at_once_and_no_more(keeping, monkeypatch, at_once):
    routed, _ = keeping(0, 1, 2, 3)
    routed.near.at_once = at_once
    meeting, begun, inside, most = threading.Barrier(at_once), set(), set(), []
    real = routed.files.read_into

    def read_into(file, offset, memory):
        if threading.current_thread().name.startswith("gdsload-keep") and file not in begun:
            begun.add(file)
            inside.add(file)
            meeting.wait(10)
            time.sleep(0.02)  # for others, which should not come
            most.append(len(inside))
            meeting.wait(10)
            inside.discard(file)
            meeting.wait(10)  # before the next one comes
        real(file, offset, memory)

    monkeypatch.setattr(routed.files, "read_into", read_into)
    assert until(routed.near.registered.all, routed)
    assert most == [at_once] * 4


def test_a_kept_shard_that_cannot_be_read_is_left_out(keeping, folder, monkeypatch):
    routed, _ = keeping(0, 1, 2, 3)
    monkeypatch.setattr(
        routed.files, "length", lambda file, length=routed.files.length: 1 / 0 if file == 2 else length(file)
    )
    first = extents_of([(0, 0, 10)])
    assert until(lambda: all(routed.near.registered[[0, 1, 3]]), routed, first)
    assert routed.near.asked == [3, 1, 0]
    assert routed.near.trouble == ""


def test_nothing_more_is_kept_when_memory_gets_short(keeping, monkeypatch):
    routed, _ = keeping(0, 1, 2, 3)
    rooms = iter([1000, 1000 * 2**20, 1000 * 2**20, 99])
    monkeypatch.setattr(keep_module, "_room", lambda: next(rooms))
    assert until(lambda: routed.near.trouble, routed)
    assert routed.near.trouble == "the machine, or the control group, is short of memory"
    assert routed.near.asked == [3, 2]
    assert routed.files.kept.tolist() == [False, False, True, True]
    assert until(lambda: not threads(), routed)


def test_what_is_in_memory_anyway_takes_no_more_of_it(keeping, monkeypatch):
    """As files of a tmpfs."""
    routed, read = keeping(0, 1, 2, 3, resident=range(4))
    monkeypatch.setattr(keep_module, "memory_room", lambda _tree: 0)
    assert until(routed.near.registered.all, routed)
    assert (read, routed.near.trouble) == ([], "")


def test_registered_pages_are_not_free(routed, monkeypatch):
    monkeypatch.setattr(keep_module, "memory_room", lambda _tree: 2**30)
    before = keep_module.default_register_bytes()
    routed.near.registered_bytes = 2**20
    assert keep_module.default_register_bytes() == before - 2**19


@pytest.mark.usefixtures("resident")
def test_an_error_in_filling_ends_it_and_is_named(routed, contents, monkeypatch):
    def broken(_files, _file):
        raise OSError("broken")

    monkeypatch.setattr(registered_module, "resides", broken)
    assert until(lambda: routed.near.trouble, routed)
    assert routed.near.trouble == "filling it failed: broken"
    assert until(lambda: not threads(), routed)
    brings_all(routed, contents)


# --- closing ---


@pytest.mark.usefixtures("resident")
def test_close_ends_the_thread_and_does_not_wait_for_its_next_look(folder, monkeypatch):
    monkeypatch.setattr(registered_module, "_LOOK_EVERY_S", 1000)
    routed = open_routed(folder)
    # The first look may come before the shards are open, and then the next one does not come before it is over.
    routed.files.ensure_open(np.arange(len(SIZES)))
    assert until(routed.near.registered.all, routed)
    assert len(threads()) == 1
    routed.close()
    assert threads() == []
    routed.close()
    assert routed.near.closed == routed.far.closed == 2


@pytest.mark.usefixtures("resident")
@pytest.mark.parametrize("kept", [(), (0, 1, 2, 3)], ids=["registered", "kept"])
def test_close_while_shards_are_added(keeping, monkeypatch, kept):
    monkeypatch.setattr(registered_module, "_LOOK_EVERY_S", 0)
    for number in range(20):
        routed, _ = keeping(*kept, resident=() if kept else range(4))
        for _ in range(number % 5):
            routed.read(ONE_OF_EACH).completion.wait()
        routed.close()
        assert threads(("gdsload-keep", "gdsload-reg")) == []
        asked = len(routed.near.asked)
        time.sleep(0.001)
        assert len(routed.near.asked) == asked


def test_registered_shards_are_looked_at_like_the_others(routed):
    """At once, as by one look: they are read out of the same files."""
    routed.files.ensure_open(np.arange(len(SIZES)))
    routed.near.registered[:2] = True
    routed.check(np.array([0, 3, 1, 2]))
    assert routed.far.checked == [[0, 3, 1, 2]]


@pytest.mark.parametrize("found", ["", "0.25 GB/s", RuntimeError("no memory")])
def test_the_first_shard_is_measured_and_stays_registered_unless_copies_of_it_are_slow(
    folder, monkeypatch, to_close, found
):
    registered, measured = set(), []

    def measure(_device, address, nbytes):
        assert (registered, nbytes) == ({address}, files.length(0))
        measured.append(address)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(mapped_module, "register_host", lambda _device, address, *_, **__: registered.add(address))
    for module in (mapped_module, registered_module):
        monkeypatch.setattr(module, "unregister_host", lambda _device, address: registered.discard(address))
    monkeypatch.setattr(registered_module, "slow_pages", measure)
    files = files_in(folder, mapped=True)
    to_close(files)
    tier = RegisteredTier(files, torch.device("cpu"), register_bytes=2**40, at_once=4)
    try:
        trouble = tier.try_register(0)
    except RuntimeError as error:
        trouble = str(error)
    assert trouble == str(found)
    assert (len(registered), bool(tier.ready[0])) == (not trouble, not trouble)
    assert tier.try_register(1) == ""
    assert len(measured) == 1
