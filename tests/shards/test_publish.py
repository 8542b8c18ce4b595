"""Folders in the making and their locks; how writers that are killed look from outside is in tests/shards/test_crashes.py."""

import errno
import fcntl
import os
import re
from pathlib import Path

import pytest

import gdsload
from gdsload import DatasetExistsError, WriteError
from gdsload.shards import publish as publish_module
from gdsload.shards.publish import Publication
from tests.page_cache import open_paths
from tests.shards.failing_calls import failing
from tests.shards.small_dataset import write_numbers


def test_folder_is_hidden_and_locked(tmp_path):
    place = Publication(str(tmp_path / "d"), overwrite=False)
    assert re.fullmatch(r"\.d\.gdsload-[0-9a-f]{12}", os.path.basename(place.folder))
    with open(place.folder + ".lock", "rb") as lock, pytest.raises(BlockingIOError, match="temporarily unavailable"):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    place.abandon()
    assert os.listdir(tmp_path) == []


def test_lock_that_another_writer_took_is_not_used(tmp_path, monkeypatch):
    """Between making its lock and holding it, a writer's lock looks abandoned; it must notice that it lost it."""
    real, thefts = fcntl.flock, []

    def late(fd, how):
        if how == fcntl.LOCK_EX and len(thefts) < 3:
            thefts.append(fd)
            publish_module.remove_left_behind(str(tmp_path / "d"))
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    place = Publication(str(tmp_path / "d"), overwrite=False)
    assert {os.path.basename(place.folder), os.path.basename(place.folder) + ".lock"} == set(os.listdir(tmp_path))
    assert len(thefts) == 3
    place.abandon()
    assert open_paths(tmp_path) == []


def test_folders_are_made_in_one_that_may_not_be_read(tmp_path, monkeypatch):
    real = os.open

    def refused(path, *given, **named):
        if path == str(tmp_path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, *given, **named)

    monkeypatch.setattr(os, "open", refused)
    place = Publication(str(tmp_path / "made" / "d"), overwrite=False)
    assert os.path.dirname(place.folder) == str(tmp_path / "made")
    place.abandon()


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_file_system_without_locks(tmp_path, code):
    """Nothing there is taken for abandoned, and writing works."""
    with failing(fcntl, "flock", code):
        first = Publication(str(tmp_path / "d"), overwrite=False)
        second = Publication(str(tmp_path / "d"), overwrite=False)
        assert os.path.isdir(first.folder)
        second.abandon()
        first.publish()
    assert os.listdir(tmp_path) == ["d"]


def test_lock_that_fails(tmp_path):
    message = "the dataset's folder cannot be made: Input/output error"
    with failing(fcntl, "flock", errno.EIO), pytest.raises(WriteError, match=message):
        Publication(str(tmp_path / "d"), overwrite=False)
    assert os.listdir(tmp_path) == []


def test_folder_that_cannot_be_removed_keeps_its_lock(tmp_path):
    place = Publication(str(tmp_path / "d"), overwrite=False)
    with failing(publish_module.shutil, "rmtree", errno.EACCES):
        place.abandon()
    assert len(os.listdir(tmp_path)) == 2
    publish_module.remove_left_behind(str(tmp_path / "d"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["[a-z]*", "a.gdsload-x", "ä b", "..."])
def test_odd_names(tmp_path, name):
    place = Publication(str(tmp_path / name), overwrite=False)
    [lock] = [fd.name for fd in Path("/proc/self/fd").iterdir() if os.path.realpath(fd) == f"{place.folder}.lock"]
    os.close(int(lock))  # as if the writer had been killed
    other = Publication(str(tmp_path / name), overwrite=False)
    assert not os.path.exists(place.folder)
    other.publish()
    assert [name] == os.listdir(tmp_path)


FOREIGN = {
    "a file": lambda folder: (folder / "notes.txt").write_text("mine"),
    "a hidden file": lambda folder: (folder / ".notes").write_text("mine"),
    "a folder": lambda folder: (folder / "chapters").mkdir(),
    "a folder with the name of a shard": lambda folder: (folder / "shard-00007.safetensors").mkdir(),
    "a link with the name of a shard": lambda folder: (folder / "shard-00007.safetensors").symlink_to("elsewhere"),
    "nearly a shard": lambda folder: (folder / "shard-00000.safetensors.bak").write_text("mine"),
    "many files": lambda folder: [(folder / f"{number}.txt").write_text("mine") for number in range(7)],
}


def test_a_damaged_index_of_any_size_is_replaced(tmp_path):
    """Read whole, this one takes more memory than there is."""
    write_numbers(tmp_path / "d", 1)
    os.truncate(tmp_path / "d" / "index.json", 2**42)
    write_numbers(tmp_path / "d", 2, overwrite=True)
    assert int(gdsload.ShardDataset(tmp_path / "d")[0]["n"]) == 2


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_a_folder_with_other_files_is_not_replaced(tmp_path, make, moment):
    write_numbers(tmp_path / "d", 1)
    if moment == "before":
        make(tmp_path / "d")
    match = r"more than a dataset, which would be lost: ('.+'|.* and 2 more)\. Move"
    with pytest.raises(DatasetExistsError, match=match), gdsload.ShardWriter(tmp_path / "d", overwrite=True) as out:
        out.write({"n": 2})
        if moment == "meanwhile":
            make(tmp_path / "d")
    assert len(os.listdir(tmp_path / "d")) in (3, 9)
    assert int(gdsload.ShardDataset(tmp_path / "d")[0]["n"]) == 1
    assert os.listdir(tmp_path) == ["d"]
