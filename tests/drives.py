"""Folders that stand for drives: what tells two of them apart, where all lie on one, is the folder."""

import os

import pytest

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
    """What `LocalFiles.drive_key` is then: the folder that a shard is in."""
    return os.path.dirname(os.path.realpath(source.path))


def files_of(reader=BulkReads, where=file_system_of, *, cached=True):
    """Files that are read in another way, or are on other drives."""

    class Others(LocalFiles):
        made_reader = staticmethod(reader)
        drive_key = staticmethod(where)

        def is_resident(self, file, offset):
            return cached and super().is_resident(file, offset)

    return Others


@pytest.fixture
def drives(tmp_path):
    """Three."""
    return make_drives(tmp_path, 3)
