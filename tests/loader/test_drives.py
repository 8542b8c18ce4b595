"""Drives that fail, and datasets over several drives, whose reads are under way at the same time."""

import errno
import os
import threading

import numpy as np
import pytest
from torch.utils.data import ConcatDataset

import gdsload
from gdsload import OptionError, ShardDataset
from gdsload.shards.local_files import LocalFiles
from gdsload.shards.page_cache import file_is_resident
from tests.drives import Meeting, dataset_over, files_of, folder_of, make_drives
from tests.loader.taking import prints


class Failing:
    def read(self, fds, _offsets, _nbytes, _addresses):
        return np.full(len(fds), -errno.EIO)

    def read_one(self, *_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def close(self):
        pass


def test_what_a_drive_cannot_read_is_read_by_the_system(plain, load):
    (batch,) = load(dataset_over(plain, Failing), 1000, mmap=False)
    assert batch["x"][:, 0].tolist() == list(range(1000))


def test_one_loader_opens_files_in_one_way(plain):
    both = ConcatDataset([ShardDataset(plain), dataset_over(plain, Failing)])
    with pytest.raises(OptionError, match="open their files in different ways"):
        gdsload.DataLoader(both, device="cpu")
    assert ShardDataset.open_files is LocalFiles


def test_the_page_cache_of_another_drive_is_no_evidence(plain):
    dataset = ShardDataset(plain)  # which was just written, so that its pages are there
    for cached in (True, False):
        files = files_of(cached=cached)(dataset.sources, mapped=False)
        files.ensure_open(np.arange(len(dataset.shards)))
        assert file_is_resident(files, 0) == cached
        files.close()


# --- several drives ---


@pytest.fixture(scope="module")
def over_two(tmp_path_factory):
    """16 MiB in shards of 2 MiB, over two drives."""
    folder = tmp_path_factory.mktemp("two")
    drives = make_drives(folder, 2)
    with gdsload.ShardWriter(folder / "d", shard_bytes=2**21, spread_over=drives) as writer:
        for number in range(64):
            writer.write({"x": np.full(2**18, number, np.uint8)})
    return folder / "d"


def test_reads_of_both_drives_are_under_way_at_the_same_time(over_two, load, shuffle):
    meeting = Meeting()
    dataset = dataset_over(over_two, lambda: meeting, folder_of, cached=False)
    (batch,) = load(dataset, 64, shuffle, mmap=False, backend=gdsload.Auto(threads=2))
    assert sorted(batch["x"][:, 7].tolist()) == list(range(64))
    assert meeting.missed == 0


def test_of_one_queue_they_are_not(over_two, load):
    """The control of the test above: both threads wait for the first drive."""
    meeting = Meeting(0.2)
    dataset = dataset_over(over_two, lambda: meeting, lambda _source: "one", cached=False)
    list(load(dataset, 64, mmap=False, backend=gdsload.Auto(threads=2)))
    assert meeting.missed


class Lame(Meeting):
    """One drive does not answer until the test says so."""

    def __init__(self):
        super().__init__()
        self.answer, self.quick, self._lock = threading.Event(), 0, threading.Lock()

    def meet(self, drive):
        if drive == "nvme1":
            assert self.answer.wait(30)
        else:
            with self._lock:
                self.quick += 1


def test_a_drive_that_does_not_answer_leaves_the_other_at_work(over_two, load, in_thread, soon):
    lame = Lame()
    dataset = dataset_over(over_two, lambda: lame, folder_of, cached=False)
    loader = load(dataset, 64, "full", mmap=False, backend=gdsload.Auto(threads=2))
    stream = iter(loader)
    reader = in_thread(next, stream)
    soon(lambda: lame.quick == 8)  # all that the quick one has, while the other has not one
    lame.answer.set()
    assert sorted(reader.result(timeout=30)["x"][:, 7].tolist()) == list(range(64))


def test_bytes_and_order_do_not_depend_on_the_drives(over_two, load, mmap):
    dataset = dataset_over(over_two, where=folder_of)
    for shuffle in (False, "full", "block"):
        ours, theirs = (load(one, 7, shuffle, mmap=mmap, seed=3) for one in (dataset, over_two))
        assert prints(ours) == prints(theirs)
