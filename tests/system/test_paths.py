"""Paths as the kernel takes them."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload.errors import DatasetExistsError, DatasetNotFoundError
from gdsload.system.paths import absolute
from gdsload.tools.cli import main
from tests.shards.small_dataset import write_numbers

NAMES = st.sampled_from(["a", "link", "up", "..", ".", "", "file", "new"])


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    (root / "a" / "a" / "a").mkdir(parents=True)
    (root / "a" / "link").symlink_to(root / "a" / "a" / "a")
    (root / "link").symlink_to("a/a")
    (root / "a" / "a" / "up").symlink_to("../..")
    (root / "a" / "file").write_text("x")
    return root


@settings(derandomize=True, max_examples=150)
@given(st.lists(NAMES, min_size=1, max_size=6))
def test_it_is_the_file_that_the_kernel_finds(tree, names):
    path = os.path.join(tree, *names[:1], "/".join(names[1:]))
    found = absolute(path)
    assert os.path.isabs(found)
    if os.path.exists(path):
        assert os.path.samefile(found, path)
        assert not {"..", "."} & set(found.split("/"))
        assert absolute(found) == found


def test_a_link_at_the_path_itself_stays_one(tree, monkeypatch):
    assert absolute(tree / "link") == absolute(f"{tree}/link/") == str(tree / "link")
    monkeypatch.chdir(tree)
    assert absolute("link") == absolute("./a/../link") == str(tree / "link")
    assert absolute("link/..") == absolute("link/../.") == str(tree / "a")
    assert absolute(".") == str(tree)
    assert absolute("/") == absolute("/..") == "/"


def test_an_empty_path_is_none(tmp_path, monkeypatch, capsys):
    """It is not the folder that the program is in, least of all where a dataset is replaced."""
    write_numbers(tmp_path / "d", 1)
    monkeypatch.chdir(tmp_path / "d")
    for use in (
        gdsload.ShardDataset, gdsload.DataLoader, lambda path: gdsload.Windows(path, 1),
        lambda path: gdsload.ShardWriter(path, overwrite=True),
        lambda path: gdsload.convert(path, tmp_path / "new"), lambda path: gdsload.convert(path, "new", kind="csv"),
        lambda path: gdsload.convert(".", path, overwrite=True), lambda path: gdsload.reshard(".", path),
        lambda path: gdsload.merge([".", path], "new"),
    ):  # fmt: skip
        with pytest.raises(gdsload.OptionError, match=r"the path is empty. '\.' is the folder that the program is in"):
            use("")
    assert main(["convert", ".", "", "--overwrite"]) == 2
    assert "error: the path is empty\nhint: '.' is the folder" in capsys.readouterr().err
    assert len(gdsload.ShardDataset(".")) == 1


@pytest.fixture
def two(tmp_path):
    """``link/../d`` is ``deep/d``, however much it looks like ``d``."""
    (tmp_path / "deep" / "down").mkdir(parents=True)
    (tmp_path / "link").symlink_to("deep/down")
    write_numbers(tmp_path / "d", 1)
    write_numbers(tmp_path / "deep" / "d", 2)
    return tmp_path


def test_a_reader_opens_the_dataset_behind_a_link(two):
    dataset = gdsload.ShardDataset(f"{two}/link/../d")
    assert int(dataset[0]["n"]) == 2
    assert os.path.samefile(dataset.path, two / "deep" / "d")
    with pytest.raises(DatasetNotFoundError, match="no dataset here"):
        gdsload.ShardDataset(f"{two}/link/../none")


def test_a_writer_replaces_the_dataset_behind_a_link(two):
    with pytest.raises(DatasetExistsError, match="deep/d: there is something"):
        write_numbers(f"{two}/link/../d", 3)
    write_numbers(f"{two}/link/../d", 3, overwrite=True)
    assert int(gdsload.ShardDataset(two / "d")[0]["n"]) == 1
    assert int(gdsload.ShardDataset(two / "deep" / "d")[0]["n"]) == 3


def test_conversions_and_splits_are_made_behind_a_link(two):
    gdsload.convert(f"{two}/link/../d", f"{two}/link/../new/", workers=1)
    assert int(gdsload.ShardDataset(two / "deep" / "new")[0]["n"]) == 2
    write_numbers(two / "many", 1, 2)
    with pytest.raises(gdsload.OptionError, match="the same"):
        gdsload.split(two / "many", [f"{two}/link/../x", two / "deep" / "x"], [1])
    gdsload.split(two / "many", [f"{two}/link/../x", two / "x"], [1])
    assert [int(gdsload.ShardDataset(two / place / "x")[0]["n"]) for place in ("deep", "")] == [1, 2]
