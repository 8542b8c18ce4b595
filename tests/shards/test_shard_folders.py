"""Datasets whose shards are on several drives; writers of them that are killed are in tests/shards/test_crashes.py."""

import errno
import json
import os
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gdsload
from gdsload import DatasetExistsError, FileChangedError, FormatError, OptionError, ReadError, ShardDataset, WriteError
from gdsload.shards import publish as publish_module
from gdsload.shards.shard_folders import link_target, remove_shards
from gdsload.tools.cli import main
from tests.shards.failing_calls import failing

FOLDER = re.compile(r"small\.gdsload-[0-9a-f]{12}")


@pytest.fixture
def small(tmp_path, write_small):
    """The same, in one folder."""
    write_small(tmp_path / "small", shard_bytes=200)
    return tmp_path / "small"


@pytest.fixture
def spread(tmp_path, write_small, drives):
    """The small dataset, over three drives."""
    (tmp_path / "data").mkdir()
    write_small(tmp_path / "data/small", shard_bytes=200, spread_over=drives)
    return tmp_path / "data/small"


def on(drive):
    """The files of a drive, in the one folder that is there; None if there is none."""
    folders = list(drive.iterdir())
    if not folders:
        return None
    [folder] = folders
    assert FOLDER.fullmatch(folder.name)
    return sorted(path.name for path in folder.iterdir())


def test_shards_are_spread_in_turn(spread, small, drives, expect):
    dataset, plain = ShardDataset(spread), ShardDataset(small)
    expect(dataset)
    assert len(dataset.shards) == 6
    mark = f"dataset-{spread.stat().st_ino}-{os.statvfs(spread).f_fsid:x}"
    for number, shard in enumerate(dataset.shards):
        real = Path(os.path.realpath(shard.file))
        assert (real.parent.parent, real.name) == (drives[number % 3], os.path.basename(shard.file))
    for number, drive in enumerate(drives):
        assert on(drive) == [mark, *(f"shard-{one:05d}.safetensors" for one in range(number, len(plain.shards), 3))]
    assert os.listdir(spread.parent) == ["small"]


def test_where_shards_lie_is_no_content(spread, small):
    """Not one byte of the index or of a shard is another."""
    assert (spread / "index.json").read_bytes() == (small / "index.json").read_bytes()
    assert ShardDataset(spread).digest == ShardDataset(small).digest
    for path in sorted(small.iterdir()):
        assert (spread / path.name).read_bytes() == path.read_bytes()


def test_shards_may_move_and_links_be_relative_and_lead_through_links(spread, drives, tmp_path, expect):
    digest = ShardDataset(spread).digest
    (tmp_path / "mount").symlink_to(drives[0])
    for number, base in ((0, "../../nvme0"), (3, "../../mount"), (1, "../../nvme0")):
        path = spread / f"shard-{number:05d}.safetensors"
        folder = next(drives[0].iterdir())
        shutil.move(path.resolve(), folder / path.name)
        path.unlink()
        path.symlink_to(f"{base}/{folder.name}/{path.name}")
    expect(ShardDataset(spread))
    assert ShardDataset(spread).digest == digest
    ShardDataset(spread).verify()


def test_everything_is_synced_before_it_appears(tmp_path, write_small, drives, monkeypatch):
    found = []
    real, rename = os.fsync, publish_module.renameat2
    monkeypatch.setattr(os, "fsync", lambda fd: (found.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
    monkeypatch.setattr(publish_module, "renameat2", lambda *args: (found.append("rename"), rename(*args))[1])
    write_small(tmp_path / "small", spread_over=drives)
    before = found[: found.index("rename")][::-1]  # the last one first
    for drive in drives:
        [folder] = drive.iterdir()
        shards = [str(folder / name) for name in on(drive) if name.startswith("shard")]
        assert {*shards, str(folder), str(drive)} <= set(before)
        assert before.index(str(folder)) < min(map(before.index, shards))


# --- nothing is left of what does not appear ---


def test_a_writer_whose_drive_is_gone_says_which(tmp_path, drives):
    writer = gdsload.ShardWriter(tmp_path / "d", shard_bytes=1, spread_over=drives)
    shutil.rmtree(drives[1])
    writer.write({"x": 0})
    with pytest.raises(WriteError, match="a shard cannot be put on its drive: No such file or directory") as caught:
        writer.write({"x": 1})
    assert caught.value.file.startswith(f"{drives[1]}/d.gdsload-")
    assert on(drives[0]) is None


# --- targets that cannot be ---


def test_targets_that_cannot_be_are_named(tmp_path, drives, write_small, small):
    before = sorted(tmp_path.rglob("*"))
    none, file, link = (tmp_path / name for name in ("none", "file", "link"))
    file.touch()
    link.symlink_to(drives[0])
    cases = [
        ([none], WriteError, f"{none}: shards cannot be written there: there is no such folder. Mount"),
        ([drives[0], file], WriteError, f"{file}: shards cannot be written there: it is no folder"),
        ([drives[0], drives[1], drives[0]], OptionError, f"{drives[0]}: spread_over names the folder twice. Name each"),
        ([drives[0], link], OptionError, f"{link}: spread_over names the folder twice: {drives[0]} is the same"),
        ([small], OptionError, f"{small}: spread_over names a folder of the dataset itself"),
        (str(drives[0]), OptionError, "no list. Pass a list of folders"),
        ([drives[0], ""], OptionError, "spread_over names '', which is no path"),
        ([drives[0], None], OptionError, "spread_over names None, which is no path"),
        ([str(drives[0]).encode()], OptionError, "which is no path"),
    ]
    for targets, kind, message in cases:
        with pytest.raises(kind, match=re.escape(message)):
            write_small(small, overwrite=True, spread_over=targets)
    file.unlink()
    link.unlink()
    assert before == sorted(tmp_path.rglob("*"))


def test_a_target_that_must_not_be_written_to_is_named(tmp_path, drives, write_small, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(drives[1]))  # whoever runs this may be root
    with pytest.raises(WriteError, match=f"{drives[1]}: shards cannot be written there: permission denied, or its"):
        write_small(tmp_path / "d", spread_over=drives)
    assert [on(drive) for drive in drives] == [None] * 3


def test_targets_may_be_any_iterable(tmp_path, drives, write_small, expect):
    for number, several in enumerate([np.array(list(map(str, drives))), (drive for drive in drives), tuple(drives)]):
        write_small(tmp_path / "small", mark=number, shard_bytes=200, overwrite=True, spread_over=several)
        expect(ShardDataset(tmp_path / "small"), mark=number)
        assert all(on(drive) for drive in drives)


# --- what overwriting removes, and what it does not ---


def test_an_overwriting_that_is_interrupted_last_of_all_keeps_no_lock(spread, drives, write_small, expect, monkeypatch):
    """The next writer, of whatever process, removes what it has left."""

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_small(spread, mark=1, overwrite=True)
    expect(ShardDataset(spread), mark=1)
    assert len(os.listdir(spread.parent)) == 3
    write_small(spread, mark=2, overwrite=True)
    assert os.listdir(spread.parent) == [spread.name]


@pytest.mark.parametrize("what", ["moved", "damaged"])
def test_what_is_overwritten_leaves_no_shards(spread, drives, write_small, expect, what):
    if what == "moved":
        spread = spread.rename(spread.parent / "moved")
    else:
        (spread / "index.json").write_text('{"format":"gdsload-dataset"')
    write_small(spread, mark=1, overwrite=True)
    expect(ShardDataset(spread), mark=1)
    assert [on(drive) for drive in drives] == [None] * 3


def test_overwriting_a_copy_of_the_links_leaves_the_shards(spread, write_small, expect):
    copy = spread.parent / "copy"
    shutil.copytree(spread, copy, symlinks=True)
    expect(ShardDataset(copy))
    write_small(copy, mark=1, overwrite=True)
    expect(ShardDataset(copy), mark=1)
    expect(ShardDataset(spread))


def test_a_copy_that_has_the_inode_of_the_owner_is_none(spread, drives, expect, monkeypatch):
    """New file systems give out the same inodes, so that of a copy may be that of the owner."""
    real = os.statvfs
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_fsid=real(path).f_fsid + 1))
        remove_shards(str(spread))
    expect(ShardDataset(spread))
    remove_shards(str(spread))
    assert [on(drive) for drive in drives] == [None] * 3


@pytest.mark.parametrize("call", ["lstat", "readlink", "scandir", "unlink", "rmdir"])
def test_a_call_that_fails_leaves_nothing_for_ever(spread, drives, call):
    for number in range(1, 4):
        with failing(os, call, errno.EIO, first=number, last=number), pytest.raises(OSError, match="Input/output"):
            remove_shards(str(spread))
    remove_shards(str(spread))
    assert [on(drive) for drive in drives] == [None] * 3


def test_other_files_beside_the_shards_are_left_alone(spread, drives, write_small):
    [folder] = drives[0].iterdir()
    (folder / "notes.txt").write_text("mine")
    write_small(spread, mark=1, overwrite=True)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_files_that_other_links_lead_to_are_left_alone(spread, tmp_path, write_small):
    """A link into a folder of another name is not ours, and a folder of another dataset is not touched."""
    path = spread / "shard-00000.safetensors"
    for name, refused in (("plain", True), ("other.gdsload-0123456789ab", False)):
        (tmp_path / name).mkdir()
        (tmp_path / name / path.name).write_text("mine")
        path.unlink()
        path.symlink_to(tmp_path / name / path.name)
        with pytest.raises(DatasetExistsError, match="more than a dataset") if refused else nullcontext():
            write_small(spread, mark=1, overwrite=True)
        assert (tmp_path / name / path.name).read_text() == "mine"


# --- links that are not followed, and drives that are not there ---


def test_a_drive_that_is_not_mounted(spread, drives, tmp_path, capsys):
    names = ["shard-00001.safetensors", "shard-00004.safetensors"]
    message = f"symbolic link to {os.readlink(spread / names[0])}, where there is nothing: its drive may not be mounted"
    drives[1].rename(tmp_path / "unmounted")
    with pytest.raises(FormatError, match="shards are missing or of another length.*Mount the drives") as caught:
        ShardDataset(spread)
    problems = caught.value.problems
    assert [os.path.basename(problem.file) for problem in problems] == names
    assert message in problems[0].message
    assert problems[0].samples is not None
    assert main(["verify", str(spread), "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [os.path.basename(one["file"]) for one in problems] == names
    assert message in problems[0]["message"]
    assert main(["verify", str(spread)]) == 1
    assert "Mount the drives that links lead to, and verify again." in capsys.readouterr().err
    (tmp_path / "unmounted").rename(drives[1])
    ShardDataset(spread).verify()


@pytest.mark.parametrize("from_drive", [False, True])
@pytest.mark.parametrize(
    "where", ["link.gdsload-0123456789ab", "x.gdsload-0123456789ab/deeper", "x.gdsload-0123456789abc"]
)
def test_links_are_followed_into_folders_of_shards_only(spread, tmp_path, where, from_drive):
    """Neither from the dataset nor from where its links lead."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "link.gdsload-0123456789ab").symlink_to(tmp_path / "plain")
    folder = tmp_path / where
    folder.mkdir(parents=True, exist_ok=True)
    path = spread / "shard-00001.safetensors"
    link = path.resolve() if from_drive else path
    shutil.move(path.resolve(), folder / "other.safetensors")
    link.unlink(missing_ok=True)
    link.symlink_to(folder / "other.safetensors")
    with pytest.raises(FormatError, match="in no folder of shards. Links are followed only into folders that are"):
        ShardDataset(spread)


def lead_elsewhere(path, drive):
    shutil.copy(path, path.parent.parent / "other")
    path.unlink()
    path.symlink_to(path.parent.parent / "other")


def write_through(path, drive):
    data = bytearray(path.read_bytes())
    data[-4097] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("change", "says"), [
    (lead_elsewhere, "the shard was replaced by another file while the dataset was in use"),
    (write_through, "the shard was written to while the dataset was in use"),
    (lambda path, drive: drive.rename(drive.parent / "away"), "drive of {}/small.gdsload-.* is not mounted any more"),
], ids=["link", "file", "drive"])  # fmt: skip
def test_what_changes_meanwhile_is_an_error(spread, drives, change, says):
    dataset = ShardDataset(spread, mmap=False)
    dataset[0]
    change(spread / "shard-00000.safetensors", drives[0])
    with pytest.raises(FileChangedError, match=says.format(drives[0])):
        dataset[0]


def test_a_folder_of_shards_that_cannot_be_entered_is_not_taken_for_one_that_is_not_there(spread, drives, monkeypatch):
    real, hidden = os.lstat, os.path.realpath(spread / "shard-00001.safetensors")

    def lstat(path, **options):
        if path == hidden:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, **options)

    path = os.path.split(spread / "shard-00001.safetensors")
    monkeypatch.setattr(os, "lstat", lstat)  # whoever runs this may be root
    monkeypatch.setattr(os.path, "realpath", lambda _: hidden)
    with pytest.raises(ReadError, match=r"which cannot be looked at: Permission denied\. See whether you may enter"):
        link_target(*path)


def test_a_drive_that_gets_no_shard_gets_no_folder(tmp_path, drives, write_small, expect):
    write_small(tmp_path / "small", shard_bytes=600, spread_over=drives)
    expect(ShardDataset(tmp_path / "small"))
    assert [on(drive) is None for drive in drives] == [False, False, True]


def test_a_drive_that_goes_when_all_is_written_is_named(tmp_path, monkeypatch):
    drive, real = tmp_path / "nvme", publish_module.fsync_path
    drive.mkdir()

    def gone(path):
        if path.startswith(str(drive)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        real(path)

    monkeypatch.setattr(publish_module, "fsync_path", gone)
    match = f"{drive}/.*the shards cannot be written to their drive: No such file"
    with pytest.raises(WriteError, match=match), gdsload.ShardWriter(tmp_path / "out", spread_over=[drive]) as writer:
        writer.write({"x": 1})
    assert not (tmp_path / "out").exists()
