"""Writers that are killed, that meet a full disk, or that meet each other; and readers who look on."""

import contextlib
import errno
import functools
import os
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest

from gdsload import (
    DatasetExistsError,
    DatasetNotFoundError,
    FileChangedError,
    GdsloadError,
    OptionError,
    ShardDataset,
    ShardWriter,
    WriteError,
)
from gdsload.shards import publish as publish_module
from tests.shards.failing_calls import failing
from tests.shards.killed_writers import call_hooks, killed_writers
from tests.shards.small_dataset import write_small


@pytest.fixture(scope="module")
def killed():
    with killed_writers() as write:
        yield write


def mark_of(path):
    """Which version of the small dataset is there, whole."""
    dataset = ShardDataset(path)
    samples = dataset.__getitems__(range(len(dataset)))
    marks = {int(sample["x"][1]) for sample in samples}
    assert len(marks) == 1
    assert list(range(20)) == [int(sample["x"][0]) for sample in samples]
    return marks.pop()


def count_steps(monkeypatch, work):
    names = []
    with monkeypatch.context() as patch:
        call_hooks(patch.setattr, names.append)
        work()
    return names


def only_whole_datasets(parent):
    """Each dataset there, even a hidden one, is refused or whole."""
    for entry in os.scandir(parent):
        if entry.is_dir():
            with contextlib.suppress(GdsloadError):
                mark_of(entry.path)


def only_small_is_there(place, drives):
    """Nothing is beside the small dataset, nor on a drive but folders of its shards."""
    assert os.listdir(place.parent) == [place.name]
    shards = {os.path.dirname(os.path.realpath(shard.file)) for shard in ShardDataset(place).shards}
    assert {found.path for drive in drives for found in os.scandir(drive)} == shards - {str(place)}


@pytest.mark.parametrize(("spread", "overwrite"), [(False, False), (True, True)])
def test_writer_killed_at_any_step(tmp_path, drives, killed, monkeypatch, overwrite, spread):
    drives = drives[:2] if spread else []
    # One shard, or one on each drive.
    options = {"shard_bytes": 600 if spread else 7000, "spread_over": drives}
    write = functools.partial(write_small, overwrite=True, **options)
    place, ends = tmp_path / "here/d", set()
    write(place)
    assert len(ShardDataset(place).shards) == max(len(drives), 1)
    names = count_steps(monkeypatch, lambda: write(place))
    assert {"before pwrite", "amid pwrite", "before fsync", "after renameat2", "after flock"} <= set(names)
    for step in range(len(names)):
        if not overwrite:
            shutil.rmtree(place)
        code = killed(place, step, mark=1, overwrite=overwrite, **options)
        assert code in (-signal.SIGKILL, 0)
        try:
            ends.add((code, mark_of(place)))
        except DatasetNotFoundError:
            assert not overwrite
            ends.add((code, None))
        only_whole_datasets(place.parent)
        write(place)
        assert mark_of(place) == 0
        only_small_is_there(place, drives)
    assert {(-signal.SIGKILL, 0 if overwrite else None), (-signal.SIGKILL, 1)} <= ends


# --- readers look on ---


def look_on(path, stop):
    """Open and read a dataset again and again; 0 if it was whole each time, 3 if it was missing."""
    rounds = 0
    while not stop.exists() or rounds < 3:
        try:
            assert mark_of(path) in range(1000)
        except FileChangedError:
            pass  # replaced between opening and reading, which is what the error is for
        except DatasetNotFoundError:
            return 3
        rounds += 1
    return 0


def overwrite_while(tmp_path, forked, times):
    write_small(tmp_path / "d")
    child = forked(lambda: look_on(tmp_path / "d", tmp_path / "stop"), wait=False)
    try:
        for mark in range(1, times):
            # Other lengths, other counts, other numbers of shards under the same names.
            write_small(tmp_path / "d", mark=mark, overwrite=True, shard_bytes=(200, 400, 10_000)[mark % 3])
    finally:
        (tmp_path / "stop").touch()
        ended = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(ended)


def test_reader_sees_the_old_or_the_new(tmp_path, forked):
    assert overwrite_while(tmp_path, forked, 60) == 0


@pytest.fixture
def no_exchange(monkeypatch):
    """A file system that cannot exchange folders."""
    monkeypatch.setattr(publish_module, "renameat2", lambda *args: publish_module.ctypes.set_errno(errno.ENOSYS) or -1)


def test_reader_would_see_a_gap(tmp_path, forked, monkeypatch, no_exchange):
    """The control of the test above: without an exchange of the folders it fails."""
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda *args: (rename(*args), time.sleep(0.02)))
    assert overwrite_while(tmp_path, forked, 20) == 3
    assert mark_of(tmp_path / "d") == 19


def test_opening_while_it_is_replaced(small, monkeypatch):
    """Between the index and the shards the folder is replaced: the reader begins again with the new one."""
    real, left, reading = os.scandir, [2], [True]

    def slow(folder):
        if left[0] and reading[0] and isinstance(folder, int):  # and not by name, as a writer
            left[0] -= 1
            reading[0] = False
            write_small(small, mark=7 - left[0], overwrite=True)
            reading[0] = True
        return real(folder)

    monkeypatch.setattr(os, "scandir", slow)
    assert (mark_of(small), left[0]) == (7, 0)


# --- what overwriting must not touch ---


def something(path, kind):
    if kind == "file":
        path.write_text("{}")
        return
    if kind == "link to a dataset":
        write_small(path.parent / "other")
        path.symlink_to(path.parent / "other")
        return
    path.mkdir()
    (path / ("index.json" if kind == "foreign index" else "note")).write_text('{"format": "website"}')


@pytest.mark.parametrize("kind", ["file", "link to a dataset", "folder", "foreign index"])
def test_what_is_no_dataset_is_never_replaced(tmp_path, kind):
    something(tmp_path / "d", kind)
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    for overwrite, message in ((False, "something already. Pass `overwrite=True`"), (True, "is no gdsload dataset")):
        with pytest.raises(DatasetExistsError, match=message):
            ShardWriter(tmp_path / "d", overwrite=overwrite)
    assert before == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("there", ["dataset", "damaged dataset", "empty folder", "nothing"])
def test_what_may_be_replaced(tmp_path, there):
    place = tmp_path / "a/d"
    if there == "empty folder":
        place.mkdir(parents=True)
        write_small(place)
    elif there != "nothing":
        write_small(place)
        with pytest.raises(DatasetExistsError, match="there is something already. Pass `overwrite=True`"):
            write_small(place, mark=1)
        assert (os.listdir(place.parent), mark_of(place)) == (["d"], 0)
    if there == "damaged dataset":
        raw = (place / "index.json").read_bytes()
        (place / "index.json").write_bytes(raw[: len(raw) // 2])
    write_small(place, mark=1, overwrite=True)
    assert (os.listdir(place.parent), mark_of(place)) == (["d"], 1)


# --- two writers ---


def test_folder_of_a_live_writer_is_left_alone(tmp_path):
    with ShardWriter(tmp_path / "d", shard_bytes=1, overwrite=True) as first:
        first.write({"x": 1})
        write_small(tmp_path / "d")
        write_small(tmp_path / "d", mark=1, overwrite=True)
        assert mark_of(tmp_path / "d") == 1
        first.write({"x": 2})
    assert [int(sample["x"]) for sample in ShardDataset(tmp_path / "d")] == [1, 2]
    assert os.listdir(tmp_path) == ["d"]


def test_dataset_that_appears_in_the_last_moment_is_not_replaced(tmp_path, monkeypatch):
    """The check has passed, and only then the other one is published."""
    real, others = publish_module.renameat2, []

    def late(*args):
        if not others:
            others.append(1)
            write_small(tmp_path / "d", mark=1)
        return real(*args)

    writer = ShardWriter(tmp_path / "d")
    writer.write({"x": 1})
    monkeypatch.setattr(publish_module, "renameat2", late)
    with pytest.raises(DatasetExistsError, match="something appeared there meanwhile"):
        writer.close()
    assert (os.listdir(tmp_path), mark_of(tmp_path / "d")) == (["d"], 1)


def test_fork_of_a_writer_does_no_harm(tmp_path, forked):
    with ShardWriter(tmp_path / "d", shard_bytes=1) as writer:
        writer.write({"x": 1})

        def child():
            with pytest.raises(WriteError, match="the writer belongs to another process"):
                writer.write({"x": 2})
            writer.abort()
            writer.__del__()

        assert forked(child) == 0
        writer.write({"x": 3})
    assert [int(sample["x"]) for sample in ShardDataset(tmp_path / "d")] == [1, 3]


def test_other_hidden_folders_are_left_alone(tmp_path):
    names = [".d.gdsload-mine", ".d.gdsload-0123456789ab", ".d.gdsload-", ".e.gdsload-0123456789ab", "d.gdsload-x"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    write_small(tmp_path / "d")
    assert sorted([*names, "d"]) == sorted(os.listdir(tmp_path))


def test_dataset_that_was_moved_aside_comes_back(small, forked, monkeypatch, no_exchange):
    """Without an exchange, a writer may die when the old dataset is away and the new one not there yet."""

    def work():
        rename = os.rename
        monkeypatch.setattr(os, "rename", lambda *args: (rename(*args), os.kill(os.getpid(), signal.SIGKILL)))
        write_small(small, mark=1, overwrite=True)

    assert forked(work) == -signal.SIGKILL
    assert not small.exists()
    with pytest.raises(DatasetExistsError, match="there is something already"):
        write_small(small, mark=2)
    assert (os.listdir(small.parent), mark_of(small)) == (["small"], 0)


# --- full and broken disks ---


@pytest.mark.parametrize(("name", "code", "spread"), [
    ("pwrite", errno.ENOSPC, False), ("pwrite", errno.EDQUOT, False), ("pwrite", errno.EIO, True),
    ("ftruncate", errno.ENOSPC, False), ("fsync", errno.EIO, True), ("open", errno.EMFILE, True),
    ("mkdir", errno.ENOSPC, False), ("mkdir", errno.ENOSPC, True), ("symlink", errno.ENOSPC, True),
])  # fmt: skip
def test_error_of_the_disk_leaves_nothing(tmp_path, drives, monkeypatch, name, code, spread):
    """Whichever call it is that fails, the first, the second and so on; nor on the other drives."""
    small, drives = tmp_path / "here/small", drives if spread else []
    write = functools.partial(write_small, small, overwrite=True, spread_over=drives)
    write()
    total = sum(called == f"before {name}" for called in count_steps(monkeypatch, write))
    assert total
    for number in range(1, total + 1):
        with failing(os, name, code, first=number, last=number):
            try:
                write(mark=1)
            except WriteError as error:
                assert os.strerror(code) in str(error)
                full = code in (errno.ENOSPC, errno.EDQUOT)
                assert ("Free some space" in str(error)) == full or name in ("mkdir", "fsync")
        assert mark_of(small) in (0, 1)
        if name in ("open", "fsync"):  # what can then not be removed for good, the next writer removes
            write(mark=1)
        only_small_is_there(small, drives)


def test_file_size_limit(tmp_path, forked):
    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with pytest.raises(WriteError, match="cannot be written: File too large. Pass a smaller `shard_bytes`"):
            write_small(tmp_path / "d", shard_bytes=2**20)

    assert forked(work) == 0
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["file/d", "d" * 250, "\0"])
def test_place_that_cannot_be(tmp_path, path):
    Path(tmp_path, "file").touch()
    with pytest.raises((WriteError, OptionError), match="folder cannot be made|no file's name has such characters"):
        ShardWriter(tmp_path / path)
    assert os.listdir(tmp_path) == ["file"]
