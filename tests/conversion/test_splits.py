"""Splits are known by their names where the ecosystem has them, are never merged in silence, and classes are no splits."""

import os
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsload.conversion.recognise import recognise, source_for
from gdsload.conversion.sources.image_folders import ImageFolderSource
from gdsload.conversion.splits import splits_of
from gdsload.errors import FormatError, OptionError
from tests.conversion.reading import items_of, rows_of

WORDS = ["train", "test", "val", "valid", "validation", "dev", "eval", "training"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"], ["train", "test"]),
        (["train/cat/1.png", "train/dog/2.png", "val/cat/1.png"], ["train", "train", "val"]),
        (["en/train.parquet", "en/test.parquet", "de/train.parquet", "de/test.parquet"], ["train", "test"] * 2),
        (["train_a/train.csv", "train_a/val.csv"], ["train", "val"]),
        (["dev_train.csv", "dev_test.csv", "notes.csv"], ["train", "test", None]),
        (["train_val.csv", "test.csv"], ["train+val", "test"]),
        (["train/a.csv", "test/a.csv", "more/train.csv", "more/dev.csv"], ["train", "test", "train", "dev"]),
        (["trainset.csv", "testset.csv", "valData.csv"], ["train", "test", "val"]),
        (["trainA/1.png", "trainB/1.png", "testA/1.png"], ["train", "train", "test"]),
        (["XTrain.npy", "xTest.npy"], ["train", "test"]),
        (["fineweb/train.bin", "wiki/val.bin", "wiki/notes.bin"], ["train", "val", None]),
        # What is no split: one class among others, one split alone, and parts of words.
        (["bus/1.png", "train/1.png"], [None] * 2),
        (["protest.csv", "trainable.csv", "devil.csv", "evaluate.csv"], [None] * 4),
        (["bestTrainer.csv", "latestResults.csv", "xDev9.csv", "uVal_.csv", "validated.csv"], [None] * 5),
        (["en/train.parquet", "de/train.parquet"], [None] * 2),
        ([], []),
    ],
)  # fmt: skip
def test_what_names_say(names, expected):
    assert splits_of(names) == expected


NAMES = st.sampled_from([*WORDS, "a", "b", "part-1", "train-0", "train-1", "test_0"])


@given(st.lists(st.lists(NAMES, min_size=1, max_size=3).map("/".join), unique=True, max_size=8))
def test_neither_a_folder_around_all_nor_notes_beside_them_change_what_names_say(paths):
    paths = [path for path in paths if not any(other.startswith(path + "/") for other in paths)]
    found = splits_of(paths)
    assert splits_of([f"deep/{path}" for path in paths]) == found
    assert splits_of([*paths, "notes"]) == [*found, None]


@given(st.lists(st.sampled_from(WORDS), min_size=2, max_size=6), st.text("0123456789-_.", max_size=4))
def test_words_stand_alone_whatever_digits_follow(words, tail):
    names = [f"{number}_{word}{tail}" for number, word in enumerate(words)]
    assert splits_of(names) == (words if len(set(words)) > 1 else [None] * len(words))


def values(place, kind=None, **options):
    """All samples of a source, one by one, as they would be written."""
    source = source_for(str(place), kind, options)
    source.describe()
    return [{name: np.asarray(value).tolist() for name, value in row.items()} for row in rows_of(source)]


# What a file of the kind is called, which of those that `make_source` writes it is, and the options of the kind.
FILES = {
    "webdataset": ("{}-0000.tar", "a.tar", {}),
    "parquet": ("data/{}-00000-of-00001.parquet", "a.parquet", {}),
    "csv": ("{}.csv", "a.csv", {"types": {"file": "str"}}),
    "tokens": ("shakespeare_{}.bin", "a.bin", {"dtype": "uint16"}),
    "hdf5": ("{}/all.h5", "a.h5", {}),
    "safetensors": ("{}.safetensors", "a.safetensors", {}),
    "numpy": ("x_{}.npy", "x.npy", {}),
    "tfrecord": ("mnist-{}.tfrecord-00000-of-00002", "a.tfrecord", {}),
    "lmdb": ("{}.lmdb", "data.mdb", {}),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_of_several_splits_are_never_merged_in_silence(tmp_path, make_source, kind):
    pattern, name, options = FILES[kind]
    make_source(kind, tmp_path / "made")
    for split in ("train", "val"):
        place = tmp_path / "in" / pattern.format(split)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "made" / name, place)
    for beside in ("README.md", ".gitattributes"):
        (tmp_path / "in" / beside).write_text("about it")
    assert recognise(str(tmp_path / "in")) == kind
    alone = values(tmp_path / "in" / pattern.format("train"), kind, **options)
    message = r"it holds several splits: 'train', 'val'\. Pass `split='train'`.*`split='all'`"
    for look in (lambda source: source.describe(), lambda source: source.parts(1)):
        with pytest.raises(OptionError, match=message):
            look(source_for(str(tmp_path / "in"), kind, options))
    found = values(tmp_path / "in", kind, split="train", **options)
    assert [list(one.values()) for one in found] == [list(one.values()) for one in alone]
    together = values(tmp_path / "in", kind, split="all", **options)
    # Files of one `.npy` each are fields of one dataset, others follow each other.
    assert len(together) == len(alone) if kind == "numpy" else together == alone * 2
    with pytest.raises(OptionError, match=r"no split 'test'\. There are 'train', 'val'"):
        values(tmp_path / "in", kind, split="test", **options)


@pytest.mark.parametrize("kind", ["mds", "litdata", "huggingface", "zarr"])
def test_folders_of_several_splits(tmp_path, make_source, kind):
    """Datasets with an index each, which are side by side."""
    for split in ("train", "val"):
        make_source(kind, tmp_path / "in" / split)
    alone = values(tmp_path / "in" / "train", kind)
    with pytest.raises(OptionError, match="it holds several splits: 'train', 'val'"):
        values(tmp_path / "in", kind)
    assert values(tmp_path / "in", kind, split="val") == alone
    with pytest.raises(OptionError, match="no split 'test'"):
        values(tmp_path / "in", kind, split="test")
    with pytest.raises(OptionError, match="no split 'val'. There are no splits"):
        values(tmp_path / "in" / "train", kind, split="val")
    with pytest.raises(FormatError, match="2 folders in it have"):
        values(tmp_path / "in", kind, split="all")


@pytest.mark.parametrize("names", [("train", "val"), ("train2017", "val2017")])
def test_folders_of_images(tmp_path, make_source, names):
    """ImageNet as it is distributed: classes are those of the split, and what has no image is no split."""

    def keys_and_labels(source):
        assert source.classes == ["cat", "dog"]
        return [(item.key, item.make()["label"]) for item in items_of(source)]

    for split in names:
        make_source("images", tmp_path / split)
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "instances.json").write_text("{}")
    assert recognise(str(tmp_path)) == "images"
    with pytest.raises(OptionError, match="it holds several splits: 'train', 'val'"):
        ImageFolderSource(str(tmp_path)).describe()
    wanted = [(f"{names[0]}/{one}/1.png", label) for label, one in enumerate(("cat", "dog"))]
    assert keys_and_labels(ImageFolderSource(str(tmp_path), split="train")) == wanted
    shutil.rmtree(tmp_path / "annotations")
    wanted = [(f"{name}/{one}/1.png", label) for label, one in enumerate(("cat", "dog")) for name in names]
    assert keys_and_labels(ImageFolderSource(str(tmp_path), split="all")) == wanted


@pytest.mark.parametrize(("kind", "options"), [("numpy", {"each": "file"}), ("audio", {})])
def test_class_folders_in_folders_of_splits(tmp_path, kind, options):
    for place in ("train/cat", "train/dog", "test/dog"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        if kind == "numpy":
            np.save(folder / "0.npy", np.arange(3))
        else:
            pytest.importorskip("soundfile").write(folder / "0.wav", np.zeros(8, np.int16), 8000)
    source = source_for(str(tmp_path), kind, {"split": "all", **options})
    assert source.metadata() == {"classes": {"label": ["cat", "dog"]}}
    assert [np.ravel(row["label"]).tolist() for row in rows_of(source)] == [[1], [0], [1]]


def test_classes_that_are_called_as_splits_are(tmp_path, make_source):
    """One is a class; of two, the user has to say that they are."""
    make_source("images", tmp_path)
    shutil.copytree(tmp_path / "cat", tmp_path / "train")
    assert ImageFolderSource(str(tmp_path)).classes == ["cat", "dog", "train"]
    shutil.copytree(tmp_path / "cat", tmp_path / "test")
    said = "several splits: 'train', 'test'.*also where these names mean something else"
    with pytest.raises(OptionError, match=said):
        values(tmp_path)
    assert ImageFolderSource(str(tmp_path), split="all").classes == ["cat", "dog", "test", "train"]
    assert len(values(tmp_path, split="all")) == 4


def test_splits_below_classes(tmp_path, make_source):
    make_source("images", tmp_path)
    for name in ("cat", "dog"):
        shutil.copy(tmp_path / name / "1.png", tmp_path / name / "test_1.png")
        os.rename(tmp_path / name / "1.png", tmp_path / name / "train_1.png")
    with pytest.raises(OptionError, match="cat: it holds several splits: 'train', 'test'"):
        ImageFolderSource(str(tmp_path)).describe()
    assert [one["label"] for one in values(tmp_path, split="test")] == [0, 1]


def test_one_split_alone_needs_no_option_and_may_be_named(tmp_path, make_source):
    make_source("parquet", tmp_path / "made")
    for number in range(2):
        (tmp_path / "in").mkdir(exist_ok=True)
        shutil.copy(tmp_path / "made" / "a.parquet", tmp_path / "in" / f"train-{number}.parquet")
    assert len(values(tmp_path / "in")) == len(values(tmp_path / "in", split="train")) == 6
    with pytest.raises(OptionError, match="no split 'val'. There are no splits"):
        values(tmp_path / "in", split="val")
    with pytest.raises(OptionError, match="no split 'train'. There are no splits"):
        values(tmp_path / "made" / "a.parquet", split="train")
