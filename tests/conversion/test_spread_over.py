"""Conversions into datasets whose shards are on several drives."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gdsload
from gdsload.conversion import sizes
from gdsload.errors import DiskFullError, OptionError, ReadError, WriteError
from gdsload.tools.cli import main
from tests.conversion.reading import content

ROWS = 400


@pytest.fixture
def array(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 256, (ROWS, 100), np.uint8))
    return tmp_path / "x.npy"


@pytest.fixture
def plain(array, tmp_path):
    """The dataset in one folder."""
    gdsload.convert(array, tmp_path / "plain", shard_bytes=4000, workers=1)
    return tmp_path / "plain"


def shards_on(drives, name="out"):
    """How many shards each drive has; there is nothing else than those of this dataset."""
    found = []
    for drive in drives:
        folders = list(drive.iterdir())
        assert all(folder.name.startswith(f"{name}.gdsload-") for folder in folders)
        found.append(sum(len(list(folder.glob("shard-*"))) for folder in folders))
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_not_one_byte_is_another_and_none_is_written_twice(array, plain, tmp_path, drives, monkeypatch, workers):
    monkeypatch.setattr(shutil, "copyfile", None)
    report = gdsload.convert(array, tmp_path / "out", shard_bytes=4000, workers=workers, spread_over=drives)
    assert content(tmp_path / "out") == content(plain)
    assert all((tmp_path / "out" / name).is_symlink() for name in content(plain) if name != "index.json")
    assert shards_on(drives) == [4, 3, 3]
    assert (report.shards, report.nbytes) == (10, sum(path.stat().st_size for path in plain.glob("*.safetensors")))
    assert not (tmp_path / ".out.gdsload-convert").exists()


def test_a_shuffle(array, tmp_path, drives):
    how = {"shard_bytes": 4000, "workers": 1, "shuffle_seed": 3}
    gdsload.convert(array, tmp_path / "plain", **how)
    gdsload.convert(array, tmp_path / "out", **how, spread_over=drives)
    assert content(tmp_path / "out") == content(tmp_path / "plain")
    assert sum(shards_on(drives)) == len(content(tmp_path / "plain")) - 1


def interrupted(array, out, **options):
    def progress(samples, nbytes, parts, of):
        if parts == 4:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        gdsload.convert(array, out, shard_bytes=4000, workers=1, progress=progress, **options)


@pytest.mark.parametrize("others", ["the same", "fewer", "none"])
def test_an_interrupted_conversion_goes_on(array, plain, tmp_path, drives, others):
    """Where its parts are is no reason to begin again: those that are on other drives are copied."""
    interrupted(array, tmp_path / "out", spread_over=drives)
    assert all(list(drive.glob("part-*")) for drive in drives)
    targets = {"the same": drives, "fewer": drives[1:], "none": []}[others]
    report = gdsload.convert(array, tmp_path / "out", shard_bytes=4000, workers=1, spread_over=targets)
    assert report.resumed == 4
    assert content(tmp_path / "out") == content(plain)
    assert sum(shards_on(drives)) == (10 if targets else 0)
    assert shards_on(drives)[0] == (4 if others == "the same" else 0)


def test_what_a_killed_worker_has_left_on_the_drives_is_removed(array, tmp_path, drives, monkeypatch):
    interrupted(array, tmp_path / "out", spread_over=drives)
    stage = tmp_path / ".out.gdsload-convert"
    writer = gdsload.ShardWriter(stage / "part-000007", shard_bytes=1, spread_over=drives)
    writer.write_batch({"x": range(3)})
    before = {folder for drive in drives for folder in drive.iterdir() if folder.name.startswith("part-000007")}
    assert len(before) == 3
    token = before.pop().name[-12:]
    monkeypatch.setattr(type(writer), "abort", lambda writer: None)  # as if it had been killed: its lock is free
    name = f"{stage}/.part-000007.gdsload-{token}.lock"
    [lock] = [fd.name for fd in Path("/proc/self/fd").iterdir() if os.path.realpath(fd) == name]
    os.close(int(lock))
    gdsload.convert(array, tmp_path / "out", shard_bytes=8000, workers=1, restart=True)
    assert shards_on(drives) == [0, 0, 0]


# --- drives that fail, and interruptions at the end ---


@pytest.mark.parametrize("options", [{}, {"shuffle_seed": 0}])
def test_a_drive_that_is_not_there_any_more_is_named_before_any_work(array, plain, tmp_path, drives, options):
    interrupted(array, tmp_path / "out", spread_over=drives, **options)
    drives[1].rename(tmp_path / "unmounted")
    drives[1].mkdir()  # the empty mount point
    again = {"shard_bytes": 4000, "workers": 1, "spread_over": drives[:1], **options}
    stage = tmp_path / ".out.gdsload-convert"
    before = sorted(stage.rglob("*"))
    said = f"symbolic link to {drives[1]}/part-.*not be mounted.*`restart=True`"
    with pytest.raises(ReadError, match=said) as caught:
        gdsload.convert(array, tmp_path / "out", **again)
    assert Path(caught.value.file).parent.parent == stage
    assert sorted(stage.rglob("*")) == before
    drives[1].rmdir()
    (tmp_path / "unmounted").rename(drives[1])
    assert gdsload.convert(array, tmp_path / "out", **again).resumed == 4
    assert options or content(tmp_path / "out") == content(plain)


def test_a_drive_that_has_become_read_only_is_named(array, tmp_path, drives, monkeypatch):
    interrupted(array, tmp_path / "out", spread_over=drives)
    real = os.unlink

    def unlink(path, **options):
        if str(path).startswith(str(drives[1])):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, **options)

    again = {"shard_bytes": 4000, "workers": 1, "spread_over": drives[:1]}
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(WriteError, match="cannot be removed: Read-only file system. Make its drive") as caught:
            gdsload.convert(array, tmp_path / "out", restart=True, **again)
        assert caught.value.file.startswith(str(drives[1]))
        shutil.rmtree(tmp_path / ".out.gdsload-convert")  # as the error says
        gdsload.convert(array, tmp_path / "out", **again)
    assert len(list(drives[0].glob("out.gdsload-*/shard-*"))) == 10


@pytest.mark.parametrize("workers", [1, 2])
def test_a_drive_that_goes_meanwhile_is_named(array, plain, tmp_path, drives, workers):
    def progress(samples, nbytes, parts, of):
        if parts >= 2:
            shutil.rmtree(drives[2], ignore_errors=True)

    how = {"shard_bytes": 4000, "workers": workers, "spread_over": drives}
    with pytest.raises(WriteError, match=f"{drives[2]}.*(cannot be (written|made|put)|not there any more|are gone)"):
        gdsload.convert(array, tmp_path / "out", progress=progress, **how)
    drives[2].mkdir(exist_ok=True)  # a worker may have written while it was removed
    gdsload.convert(array, tmp_path / "out", **how, restart=True)
    assert content(tmp_path / "out") == content(plain)


def test_a_disk_that_is_full_when_the_dataset_is_put_together(array, tmp_path, drives, monkeypatch):
    real = os.symlink

    def fail(source, target, **options):
        if "/.out.gdsload-" in str(target) and "convert" not in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(source, target, **options)

    monkeypatch.setattr(os, "symlink", fail)
    with pytest.raises(DiskFullError, match="a shard cannot be put on its drive: No space left on device; "):
        gdsload.convert(array, tmp_path / "out", shard_bytes=4000, workers=1, spread_over=drives)


def test_reshard_merge_and_split(plain, tmp_path, drives):
    out, merged, *parts = (tmp_path / name for name in ("out", "out2", "out3", "out4"))
    how = {"shard_bytes": 4000, "workers": 1}
    gdsload.reshard(plain, out, shard_bytes=2000, workers=1, spread_over=drives)
    assert sum(shards_on(drives)) == 20
    # In its own place, with the same name on the drives as that which it replaces.
    gdsload.reshard(out, out, overwrite=True, spread_over=drives, **how)
    assert content(out) == content(plain)
    assert sum(shards_on(drives)) == 10
    gdsload.merge([plain, out], merged, spread_over=drives[:1], **how)
    gdsload.split(merged, parts, [0.5], spread_over=(drive for drive in drives[1:]), **how)
    assert [content(part) for part in parts] == [content(plain)] * 2
    assert all(list(drive.glob("out4.gdsload-*/shard-*")) for drive in drives[1:])
    for path in (out, merged, *parts):
        gdsload.ShardDataset(path).verify()


def test_the_commands(array, plain, tmp_path, drives):
    def run(command, *targets):
        return main([*command.split(), *(word for drive in targets for word in ("--spread-over", str(drive)))])

    out = tmp_path / "out"
    assert run(f"convert {array} {out} --shard-bytes 4kB --workers 1", *drives) == 0
    assert content(out) == content(plain)
    assert shards_on(drives) == [4, 3, 3]
    assert run(f"reshard {out} {out} --overwrite --workers 1 --shard-bytes 8kB", *drives[:2]) == 0
    assert shards_on(drives) == [3, 2, 0]
    assert run(f"verify {out}") == 0


def test_targets_are_looked_at_first(array, plain, tmp_path, drives):
    with pytest.raises(WriteError, match="there is no such folder"):
        gdsload.convert(array, tmp_path / "out", spread_over=[*drives, tmp_path / "none"])
    with pytest.raises(OptionError, match="twice"):
        gdsload.convert(array, tmp_path / "out", spread_over=[*drives, drives[0]])
    with pytest.raises(WriteError, match="there is no such folder"):
        gdsload.split(plain, [tmp_path / "a", tmp_path / "b"], [0.9, 0.1], spread_over=[drives[0] / "typo"])
    assert shards_on(drives) == [0, 0, 0]
    assert not (tmp_path / ".out.gdsload-convert").exists()


def test_room_is_looked_at_drive_by_drive(array, tmp_path, drives, monkeypatch):
    """About 40 kB in all, a third on each: 20 kB are enough on two, 10 kB too few on the third."""
    free, real = dict.fromkeys(map(str, drives), 20_000), os.stat

    def on_devices_of_their_own(path, **how):
        status = list(real(path, **how))
        if path in free and not how:
            status[2] = [*free].index(path)
        return os.stat_result(status)

    monkeypatch.setattr(sizes.shutil, "disk_usage", lambda path: SimpleNamespace(total=10**9, free=free[str(path)]))
    monkeypatch.setattr(sizes.os, "stat", on_devices_of_their_own)
    how = {"shard_bytes": 4000, "workers": 1, "spread_over": drives}
    gdsload.convert(array, tmp_path / "out", **how)
    free[str(drives[2])] = 10_000
    said = "there is no room for the dataset: about 39.* KiB is still to be written; 19.* KiB, 19.* KiB, 9.* KiB are"
    with pytest.raises(DiskFullError, match=f"{drives[2]}: {said} free in {drives[0]}, "):
        gdsload.convert(array, tmp_path / "out", **how, overwrite=True)
