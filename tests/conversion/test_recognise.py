"""What a source is, by what lies there."""

from __future__ import annotations

import os

import pytest

from gdsload.conversion.recognise import recognise, source_for
from gdsload.conversion.suffixes import PICTURES
from gdsload.errors import DatasetNotFoundError, FormatError, OptionError

FOLDERS = {
    "numpy": ["x.npy", "y.npy", "notes.txt"],
    "webdataset": ["part-0.tar", "part-1.tar"],
    "parquet": ["a.parquet"],
    "safetensors": ["shard-00000.safetensors", "index.json"],
    "hdf5": ["all.h5"],
    "zarr": ["zarr.json", "c.npy"],
    "huggingface": ["data-00000.arrow", "state.json", "dataset_info.json"],
    "images": ["cat/1.JPG", "dog/2.png"],
    "mds": ["index.json", "shard.00000.mds.zstd"],
    "litdata": ["index.json", "chunk-0-0.bin"],
    "tokens": ["train.bin", "more.bin"],
    "jsonl": ["year=2024/month=1/day=1/hour=1/a.jsonl.gz", "year=2024/month=1/day=2/hour=1/a.jsonl.gz"],
    "csv": ["part-0.csv", "part-1.tsv"],
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_folders(tmp_path, kind):
    for name in FOLDERS[kind]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert recognise(str(tmp_path)) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("A.TAR", "webdataset"),
        ("x.tar.gz", "webdataset"),
        ("t.npz", "numpy"),
        ("T.CSV", "csv"),
        ("a.hdf", "hdf5"),
        ("train-images-idx3-float.gz", "idx"),
        ("x.idx1-int", "idx"),
        ("t10k-labels-idx1-ubyte", "idx"),
        ("a.text", "text"),
        ("b.AIFF", "audio"),
    ],
)
def test_files(tmp_path, name, kind):
    (tmp_path / name).write_bytes(b"")
    assert recognise(str(tmp_path / name)) == kind


def test_what_could_be_two_things_is_asked_for(tmp_path):
    for name in ("a.tar", "b.parquet"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(OptionError, match="parquet, webdataset"):
        recognise(str(tmp_path))
    with pytest.raises(DatasetNotFoundError, match="nothing"):
        recognise(str(tmp_path / "none"))
    assert recognise("package.module:dataset") == "torch"


@pytest.mark.parametrize("other", ["x.npy", "images/1.png", "parts/1.parquet"])
def test_a_table_beside_other_files_may_be_notes(tmp_path, other):
    (tmp_path / other).parent.mkdir(exist_ok=True)
    for name in ("train.csv", other):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(OptionError, match="any of .*csv"):
        recognise(str(tmp_path))
    assert recognise(str(tmp_path / "train.csv")) == "csv"


@pytest.mark.parametrize("folder", ["", "train", "cat"])
def test_lines_that_describe_pictures_and_these_are_never_left_out_for_each_other(tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "0.jpg").write_bytes(b"")
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "0.jpg", "text": "a cat"}\n')
    with pytest.raises(OptionError, match="it could be any of images, jsonl.*Pass `kind="):
        recognise(str(tmp_path))


@pytest.fixture
def locked(tmp_path, monkeypatch):
    """Locks a folder, for root as well, whom no permissions stop."""

    def lock(folder):
        def denied(ask):
            def asked(path="."):
                if isinstance(path, str) and os.path.realpath(path) == os.path.realpath(folder):
                    raise PermissionError(13, "Permission denied", path)
                return ask(path)

            return asked

        for name in ("listdir", "scandir"):
            monkeypatch.setattr(f"os.{name}", denied(getattr(os, name)))

    return lock


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        *((folder, None) for folder in ("", "cat", "cat/more", "annotations")),
        *(("", kind) for kind in ("numpy", "yolo", "images", "coco", "zarr")),
        ("cat", "webdataset"),
    ],
)
def test_folders_that_cannot_be_read_are_named(tmp_path, locked, folder, kind):
    for name in ("cat/more", "annotations"):
        (tmp_path / name).mkdir(parents=True)
    locked(tmp_path / folder)
    with pytest.raises(FormatError, match="the folder cannot be read: Permission denied") as raised:
        source_for(tmp_path, kind).describe()
    assert raised.value.file == str(tmp_path / folder).rstrip("/")


@pytest.mark.parametrize("ending", PICTURES)
@pytest.mark.parametrize("place", ["cat", "."])
def test_pictures_that_are_read_are_recognised(tmp_path, ending, place):
    for name in (f"1{ending}", f"2{ending.upper()}"):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / name).write_bytes(b"")
    assert recognise(str(tmp_path)) == "images"


@pytest.mark.parametrize("folder", [".", "images", "train"])
def test_pictures_with_texts_of_boxes_beside_them(tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    for number in range(3):
        (tmp_path / folder / f"{number}.png").write_text("x")
        (tmp_path / folder / f"{number}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    assert recognise(str(tmp_path)) == "yolo"


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["images/1.png", "labels/1.json"], "yolo"),
        (["Images/1.png", "LABELS/a/1.txt"], "yolo"),
        (["images/1.png", "labels/1.png"], "images"),
        (["images/1.png", "labels"], "images"),
        (["images/1.npy", "labels/1.npy"], "numpy"),
    ],
)
def test_folders_called_images_and_labels(tmp_path, names, kind):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert recognise(str(tmp_path)) == kind
