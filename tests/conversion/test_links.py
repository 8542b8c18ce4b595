"""No source reads a file outside of it, by any name or link, and none waits for a path that is no file."""

import json
import os
import shutil

import numpy as np
import pytest

from gdsload.conversion.input_files import SourceFiles, check_file, open_file, stamps
from gdsload.conversion.recognise import KINDS, recognise, source_for
from gdsload.errors import FormatError, GdsloadError
from tests.conversion.reading import made_by


def samples(place, kind, options):
    """All that comes of a source, as text: what every kind has in common."""
    source = source_for(str(place), kind, options)
    source.describe()
    return list(map(str, made_by(source)))


def moved_out(folder, name):
    """Put a file (or folder) elsewhere, and a link to it in its place."""
    outside = folder.parent / "outside"
    outside.mkdir(exist_ok=True)
    target = outside / os.path.basename(name)
    shutil.move(folder / name, target)
    (folder / name).symlink_to(target)
    return target


def test_links_out_of_the_source_are_followed_only_if_that_is_asked_for(source_of_files):
    kind, folder, names, options = source_of_files
    expected = samples(folder, kind, options)
    for name in names:
        target = moved_out(folder, name)
        with pytest.raises(FormatError) as caught:
            samples(folder, kind, options)
        error = str(caught.value)
        assert name in error
        assert f"symbolic link to {str(target)!r}" in error
        assert "`follow_links=True`" in error
        assert samples(folder, kind, {**options, "follow_links": True}) == expected
        (folder / name).unlink()
        shutil.move(target, folder / name)
    assert samples(folder, kind, options) == expected


def test_links_within_the_source_are_followed(source_of_files):
    kind, folder, names, options = source_of_files
    expected = samples(folder, kind, options)
    for number, name in enumerate(names):
        hidden = folder / ".hidden"
        hidden.mkdir(exist_ok=True)
        shutil.move(folder / name, hidden / f"{number}.kept")
        (folder / name).symlink_to(hidden / f"{number}.kept")
    if kind != "zarr":  # which takes every file there for its own
        assert samples(folder, kind, options) == expected


def test_what_the_user_names_may_be_a_link(source_of_files, tmp_path):
    kind, folder, _, options = source_of_files
    (tmp_path / "link").symlink_to(folder)
    assert len(samples(tmp_path / "link", kind, options)) == len(samples(folder, kind, options))


def test_what_is_no_file_is_refused_at_once(source_of_files):
    """To open a pipe would wait for ever for somebody to write."""
    kind, folder, names, options = source_of_files
    for name in names:
        if (folder / name).is_dir():
            continue
        kept = shutil.move(folder / name, folder.parent / "kept")
        os.mkfifo(folder / name)
        said = "no file '|no regular file"
        with pytest.raises(GdsloadError, match=said):
            samples(folder, kind, {**options, "follow_links": True})
        (folder / name).unlink()
        shutil.move(kept, folder / name)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"torch"}))
def test_a_pipe_in_place_of_the_source(tmp_path, kind):
    os.mkfifo(tmp_path / "p.tar")
    said = "pipe|no dataset|no regular file|no folder|Not a directory|no file"
    with pytest.raises((GdsloadError, OSError), match=said):
        samples(tmp_path / "p.tar", kind, {})
    with pytest.raises(FormatError, match="no regular file"):
        recognise(str(tmp_path / "p.tar"))


def test_a_file_that_becomes_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "p")
    for opened in (open_file, check_file):
        with pytest.raises(FormatError, match="no regular file"):
            opened(str(tmp_path / "p"))
    with pytest.raises(FormatError, match="No such file"):
        check_file(str(tmp_path / "none"))


def test_links_to_folders(tmp_path):
    """Those that lead out are followed if asked for, and none is gone round in for ever."""
    for name in ("in/a", "out/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / f"{name[-1]}.tar").write_bytes(b"")
    (tmp_path / "in" / "again").symlink_to(tmp_path / "in" / "a")
    (tmp_path / "in" / "up").symlink_to(tmp_path)
    (tmp_path / "in" / "a" / "here").symlink_to(".")
    with pytest.raises(FormatError, match="in/up: it is a symbolic link to '.*', which leads out"):
        SourceFiles(str(tmp_path / "in")).find((".tar",))
    (tmp_path / "in" / "up").unlink()
    found = SourceFiles(str(tmp_path / "in")).find((".tar",))
    assert [os.path.basename(file) for file in found] == ["a.tar"]
    (tmp_path / "in" / "more").symlink_to(tmp_path / "out")
    (tmp_path / "out" / "b" / "back").symlink_to(tmp_path / "in")
    (tmp_path / "out" / "loop").symlink_to(tmp_path / "out")
    with pytest.raises(FormatError, match="in/more: it is a symbolic link"):
        SourceFiles(str(tmp_path / "in")).find((".tar",))
    found = SourceFiles(str(tmp_path / "in"), follow_links=True).find((".tar",))
    assert [os.path.relpath(file, tmp_path) for file in found] == ["in/a/a.tar", "in/more/b/b.tar"]


INDEXES = {"huggingface": ("state.json", 2), "mds": ("index.json", 1), "litdata": ("index.json", 1)}
"""Of each kind the file that names the others, and which of those that `make_source` writes is named."""


@pytest.mark.parametrize("kind", INDEXES)
@pytest.mark.parametrize("name", ["../outside/x", "{absolute}", "sub/../../outside/x", "", "data-\\u0000"])
def test_names_in_indexes(tmp_path, make_source, kind, name):
    names, _ = make_source(kind, tmp_path / "in")
    make_source(kind, tmp_path / "outside")
    index, named = INDEXES[kind]
    os.rename(tmp_path / "outside" / names[named], tmp_path / "outside" / "x")
    text = (tmp_path / "in" / index).read_text()
    (tmp_path / "in" / index).write_text(text.replace(names[named], name.format(absolute=tmp_path / "outside" / "x")))
    for options in ({}, {"follow_links": True}):
        with pytest.raises(FormatError, match="leads out of the folder|there is no file|is no name of a file"):
            samples(tmp_path / "in", kind, options)


@pytest.mark.parametrize("split", ["../outside", "{absolute}", ".."])
def test_names_of_splits_of_hugging_face(tmp_path, make_source, split):
    make_source("huggingface", tmp_path / "outside")
    shutil.copytree(tmp_path / "outside", tmp_path, dirs_exist_ok=True)
    (tmp_path / "in").mkdir()
    split = split.format(absolute=tmp_path / "outside")
    (tmp_path / "in" / "dataset_dict.json").write_text(json.dumps({"splits": [split]}))
    for options in ({"split": split}, {"split": split, "follow_links": True}):
        with pytest.raises(FormatError, match="leads out of the folder"):
            samples(tmp_path / "in", "huggingface", options)


@pytest.mark.parametrize("content", ["{}", "[]", '{"splits": 7}', "7", "{", "[" * 10_000])
def test_a_damaged_list_of_splits(tmp_path, content):
    (tmp_path / "dataset_dict.json").write_text(content)
    with pytest.raises(FormatError, match="not as `datasets` writes it"):
        samples(tmp_path, "huggingface", {"split": "train"})


def test_names_in_consolidated_metadata_of_zarr(tmp_path):
    zarr = pytest.importorskip("zarr")
    for name in ("in", "outside"):
        group = zarr.open_group(tmp_path / name, mode="w")
        zarr.create_array(group.store, name="x", data=np.full(4, name == "outside"))
    # What a writer leaves who consolidates, with one name more.
    path = tmp_path / "in" / "zarr.json"
    array = json.loads((tmp_path / "in" / "x" / "zarr.json").read_text())
    consolidated = {"kind": "inline", "must_understand": False, "metadata": {"x": array, "../outside/x": array}}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"consolidated_metadata": consolidated}))
    assert samples(tmp_path / "in", "zarr", {}) == [str({"x": np.zeros(4, bool)})]


@pytest.mark.parametrize("kind", ["images", "yolo", "audio"])
@pytest.mark.parametrize("what", ["nothing", "itself", "nothing outside", "pipe"])
def test_where_each_file_is_a_sample_one_that_cannot_be_opened_is_a_bad_sample(
    make_source, tmp_path, left_out, kind, what
):
    folder = tmp_path / "source"
    names, options = make_source(kind, folder)
    good = len(samples(folder, kind, options))
    bad = (folder / next(name for name in names if not name.endswith((".txt", ".yaml")))).with_stem("zz")
    if what == "pipe":
        os.mkfifo(bad)
        said = "it is no regular file"
    else:
        target = {"nothing": "gone", "itself": bad.name, "nothing outside": str(tmp_path / "gone")}[what]
        bad.symlink_to(target)
        said = f"it is a symbolic link to {target!r}, where no file is"
    key = str(bad) if kind == "audio" else str(bad.relative_to(folder))
    follow = {"follow_links": what == "nothing outside"}
    assert len(left_out(folder, {key: said}, kind=kind, source_options={**options, **follow})) == good
    if what == "nothing outside":
        with pytest.raises(FormatError, match="zz.*: it is a symbolic link to '.*', which leads out of the folder"):
            samples(folder, kind, {**options, "follow_links": False})


def test_a_link_that_leads_to_nothing_any_more_is_a_change(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "link").symlink_to("a")
    before = stamps([str(tmp_path / "link")])
    (tmp_path / "a").unlink()
    without = stamps([str(tmp_path / "link")])
    assert without != before
    assert stamps([str(tmp_path / "link")]) == without
    with pytest.raises(FileNotFoundError):
        stamps([str(tmp_path / "a")])
