"""Folders that stand for drives: where all are on one drive, the folder says which of them a file is on."""

import os
import threading

import pytest

from gdsload.loader.dataset import ShardDataset
from gdsload.shards.drive_order import file_system_of
from gdsload.shards.local_files import LocalFiles
from gdsload.system.bulk_reads import BulkReads


def make_drives(folder, count):
    """So many of them in a folder, which are empty."""
    found = [folder / f"nvme{number}" for number in range(count)]
    for drive in found:
        drive.mkdir()
    return found


def folder_of(source):
    """A replacement of `LocalFiles.drive_key`: the folder that a shard is in."""
    return os.path.dirname(os.path.realpath(source.path))


def files_of(reader=BulkReads, where=file_system_of, *, cached=True):
    """Files that are read in another way, or are on other drives."""

    class Others(LocalFiles):
        made_reader = staticmethod(reader)
        drive_key = staticmethod(where)

        def is_resident(self, file, offset):
            return cached and super().is_resident(file, offset)

    return Others


def dataset_over(path, *given, **options):
    """A dataset whose files are `files_of` these."""

    class Others(ShardDataset):
        open_files = files_of(*given, **options)

    return Others(path)


class Meeting(BulkReads):
    """Reads of the drives nvme0 and nvme1, each of which waits until the other drive has one under way, too."""

    def __init__(self, patience_s=30.0):
        super().__init__()
        self.patience_s, self.missed = patience_s, 0
        self._begun = {"nvme0": threading.Event(), "nvme1": threading.Event()}

    def read(self, fds, offsets, nbytes, addresses):
        (drive,) = set(map(self._drive, fds.tolist()))  # a call that waits for two is as slow as the slower one
        self.meet(drive)
        return super().read(fds, offsets, nbytes, addresses)

    def read_one(self, fd, offset, into):
        self.meet(self._drive(fd))
        return super().read_one(fd, offset, into)

    def _drive(self, fd):
        return os.readlink(f"/proc/self/fd/{fd}").split("/")[-3]

    def meet(self, drive):
        self._begun[drive].set()
        for event in self._begun.values():
            if not event.wait(self.patience_s):
                self.missed += 1


@pytest.fixture
def drives(tmp_path):
    """Three."""
    return make_drives(tmp_path, 3)
