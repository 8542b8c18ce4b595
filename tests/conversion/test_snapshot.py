"""A source that changes while it is converted: the result is of one state of it, or there is none."""

import os

import numpy as np
import pytest

import gdsload
from gdsload.errors import FileChangedError, OptionError

FILES = 6


@pytest.fixture
def lines(tmp_path):
    """Files of documents: a part each."""
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{number}.jsonl").write_text(f"[{number}, {number}]\n" * 10)
    return folder


def put_back(path, text, other=None):
    """Write a file again, of the same length, or put another in its place, with its time set back to what it was."""
    status, written = os.stat(path), other or path
    written.write_text(text)
    os.utime(written, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(written, path)


CHANGES = {
    "written, its time put back": lambda folder: put_back(folder / "4.jsonl", "[9, 9]\n" * 10),
    "another in its place": lambda folder: put_back(folder / "4.jsonl", "[9, 9]\n" * 10, folder.parent / "other"),
    "read already": lambda folder: put_back(folder / "0.jsonl", "[9, 9]\n" * 10),
    "a new one": lambda folder: (folder / "9.jsonl").write_text("[9, 9]\n"),
    "one of them gone, read already": lambda folder: (folder / "0.jsonl").unlink(),
}


def changing(change, folder, at=2):
    """A callback that changes the source once, when two parts of it are finished."""

    def progress(samples, nbytes, parts, of):
        if parts == at:
            change(folder)

    return progress


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_an_error(lines, tmp_path, change):
    how = {"shard_bytes": 100, "workers": 1}
    with pytest.raises(FileChangedError, match=r"source: .*has changed since its conversion began.*restart=True"):
        gdsload.convert(lines, tmp_path / "out", **how, progress=changing(CHANGES[change], lines))
    assert not (tmp_path / "out").exists()
    with pytest.raises(OptionError, match="its source or its options were others"):  # nor is it mixed in later
        gdsload.convert(lines, tmp_path / "out", **how)
    report = gdsload.convert(lines, tmp_path / "out", **how, restart=True)
    dataset = gdsload.ShardDataset(tmp_path / "out")
    gdsload.convert(lines, tmp_path / "fresh", **how)
    assert dataset.digest == gdsload.ShardDataset(tmp_path / "fresh").digest
    assert report.resumed == 0


def test_a_source_that_only_was_read_is_the_same(lines, tmp_path):
    def read(folder):
        for path in folder.iterdir():
            path.read_bytes()
        os.utime(folder)

    assert gdsload.convert(lines, tmp_path / "out", workers=1, shard_bytes=100, progress=changing(read, lines)).samples


def test_a_file_that_is_gone_is_named(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1000))
    change = changing(lambda folder: (folder / "x.npy").unlink(), tmp_path)
    with pytest.raises(FileChangedError, match=r"x\.npy: the source has changed"):
        gdsload.convert(tmp_path / "x.npy", tmp_path / "out", workers=1, shard_bytes=1000, progress=change)


@pytest.mark.parametrize(
    ("out", "drives"),
    [*((out, []) for out in ("out", "a/out", "../source/out", "../link/out")), ("../out", ["a"]), ("../out", ["."])],
)
def test_neither_a_dataset_nor_a_shard_of_it_is_written_into_its_source(lines, out, drives):
    """The next conversion would find it there: of images, a class more, and other numbers for those after it."""
    (lines.parent / "link").symlink_to(lines)
    (lines / "a").mkdir()
    before = sorted(lines.parent.rglob("*"))
    for source in (lines, lines.parent / "link"):
        with pytest.raises(OptionError, match="in the folder of the source, .*Write to a folder beside that"):
            gdsload.convert(source, lines / out, kind="jsonl", workers=1, spread_over=[lines / one for one in drives])
    assert sorted(lines.parent.rglob("*")) == before


def test_beside_a_source_there_is_room(lines):
    gdsload.convert(lines / "0.jsonl", lines / "out", workers=1)
    gdsload.convert(str(lines / "{1..2}.jsonl"), lines / "more", workers=1)
    gdsload.convert(lines / "0.jsonl", lines / "source-too", workers=1)
    gdsload.convert(lines, lines.parent / "source-too", kind="jsonl", workers=1)
