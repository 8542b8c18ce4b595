"""Files that other programs keep beside data are no samples, classes or kinds, in any source and at any depth."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as tables
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import gdsload
from gdsload.conversion.folders import is_passed_over, names_below, names_in
from gdsload.conversion.provenance import notes_of
from gdsload.conversion.recognise import recognise, source_for
from gdsload.errors import FormatError, OptionError
from tests.conversion.reading import made_by

KEPT_BESIDE = [
    ".ipynb_checkpoints", ".git", ".hidden", ".hive-staging_hive_2024", ".Trash-1000", ".snapshot", ".cache",
    "__MACOSX", "__pycache__", "@eaDir", "#recycle", "#snapshot", "~snapshot", "lost+found", "$RECYCLE.BIN",
    "System Volume Information", "_temporary", "_spark_metadata", "_started_17", "_committed_17", "_tmp.x",
    "_delta_index", "_impala_insert_staging",
]  # fmt: skip
OF_OTHERS = ("_SUCCESS", "Thumbs.db", "desktop.ini", "_metadata", ".DS_Store", "_common_metadata")
DATA = ["_background_noise_", "_x=1", "__init", "tmp", "snapshot", "x.hidden", "metadata", "temporary", "a_tmp", "@a"]
LIBRARIES_OWN = ("huggingface", "mds", "litdata")


def samples(source):
    return list(map(str, made_by(source)))


def told_by(source):
    with suppress(OptionError):  # the one of h5ad is too small for it
        return source.metadata() if hasattr(source, "metadata") else None


def beside(folder, names):
    """Keep copies of all that is in each folder of a source in folders beside it, and hidden copies of files."""
    walked = [(place, inner, files) for place, inner, files in os.walk(folder)]
    for place, _, files in walked:
        for name in names:
            os.makedirs(os.path.join(place, name))
            for file in files:
                shutil.copy(os.path.join(place, file), os.path.join(place, name, file))
        for file in files if "zarr.json" not in files else ():  # zarr warns of any other file
            shutil.copy(os.path.join(place, file), os.path.join(place, f"._{file}"))
        for file in () if (folder / "zarr.json").exists() else OF_OTHERS:
            Path(place, file).write_bytes(b"\0\1")


def test_no_source_takes_what_is_kept_beside_its_files(source_of_files):
    kind, folder, _, options = source_of_files
    source = source_for(str(folder), kind, options)
    expected, said, told = samples(source), notes_of(source), told_by(source)
    beside(folder, [".ipynb_checkpoints", "__MACOSX", "@eaDir", "_temporary"])
    source = source_for(str(folder), kind, options)
    source.describe()
    assert samples(source) == expected
    assert told_by(source) == told
    more = [note for note in notes_of(source) if note not in said]
    assert len(more) <= 1  # and not one for each
    if kind not in (*LIBRARIES_OWN, "zarr"):  # which say by themselves what is theirs
        assert "passed over, hidden or kept by other programs beside data: '" in more[0]


def test_recognition_does_not_look_at_it(source_of_files):
    kind, folder, *_ = source_of_files
    named = folder / "a.csv" if kind == "csv" else folder  # arrays beside a table may be meant
    assert recognise(str(named)) == kind
    for name in KEPT_BESIDE:
        (folder / name).mkdir()
        for other in ("a.npy", "b.h5", "1.png", "c.parquet", "d.jsonl"):
            (folder / name / other).write_bytes(b"[1]")
    for other in (".a.h5", "._b.npy", "~$c.csv"):
        (folder / other).write_bytes(b"")
    assert recognise(str(named)) == kind


def test_files_in_folders_that_are_not_looked_into_are_said(tmp_path, put):
    put("in/a.csv", "in/sub/.hidden/b.csv", "in/sub/b.csv", "in/sub/b.txt", text="x\n1\n")
    note = "Files in folders below are left out: 'sub/b.csv' first."
    report = gdsload.convert(tmp_path / "in", tmp_path / "out", workers=1)
    assert (report.samples, report.notes) == (1, (note,))
    (tmp_path / "in" / "a.csv").unlink()
    with pytest.raises(FormatError, match=f"there is no file with .*{note}"):
        gdsload.convert(tmp_path / "in", tmp_path / "none", workers=1)
    gdsload.convert(tmp_path / "in" / "sub", tmp_path / "sub", workers=1)


@pytest.mark.parametrize("name", KEPT_BESIDE)
def test_a_folder_of_nothing_else_is_refused(tmp_path, name):
    folder = tmp_path / "in"
    (folder / name).mkdir(parents=True)
    np.save(folder / name / "x.npy", np.zeros(3))
    with pytest.raises(OptionError, match="all its files are hidden, or kept by other programs beside data"):
        recognise(str(folder))
    said = r"no file with .npy.* 1 file or folder is passed over.*you name is always taken"
    with pytest.raises(FormatError, match=said):
        source_for(str(folder), "numpy", {"each": "file"})
    assert len(samples(source_for(str(folder / name), None))) == 1  # it is named itself


@given(st.sampled_from(KEPT_BESIDE), st.booleans())
def test_the_rule_holds_for_names_in_any_case(name, tables):
    assert is_passed_over(name, tables=tables)
    assert is_passed_over(name.upper(), tables=tables)


@pytest.mark.parametrize("name", DATA)
def test_other_names_are_data(name):
    assert not is_passed_over(name)


def test_among_tables_an_underscore_hides_all_but_columns():
    names = ("_x", "_old.parquet", "_x=1", "x_")
    assert [name for name in names if is_passed_over(name, tables=True)] == ["_x", "_old.parquet"]


def test_a_class_and_a_column_may_begin_with_an_underscore(tmp_path, converted):
    for name in ("_other", "cat", ".git", "__MACOSX"):
        (tmp_path / "p" / name).mkdir(parents=True)
        Image.new("L", (2, 2)).save(tmp_path / "p" / name / "_1.png")
    found = converted(tmp_path / "p")
    assert found.metadata["classes"]["label"] == ["_other", "cat"]
    assert found.column("label").tolist() == [0, 1]
    for number in range(2):
        (tmp_path / "t" / f"_x={number}").mkdir(parents=True)
        tables.write_table(pa.table({"y": [number]}), tmp_path / "t" / f"_x={number}" / "a.parquet")
    (tmp_path / "t" / "_backup").mkdir()
    tables.write_table(pa.table({"y": [9]}), tmp_path / "t" / "_backup" / "a.parquet")
    report = gdsload.convert(tmp_path / "t", tmp_path / "tables", workers=1)
    assert gdsload.ShardDataset(tmp_path / "tables").column("_x").tolist() == [0, 1]
    said = "1 file or folder is passed over, hidden or kept by other programs beside data: '_backup' first."
    assert report.notes[-1].endswith(said)


def test_a_link_to_a_folder_in_a_hidden_one_is_followed(tmp_path):
    (tmp_path / ".store" / "v1").mkdir(parents=True)
    np.save(tmp_path / ".store" / "v1" / "a.npy", np.arange(2))
    (tmp_path / "data").symlink_to(".store/v1")
    source = source_for(str(tmp_path), "numpy", {"each": "file"})
    assert samples(source) == [str({"array": np.arange(2)})]


def test_names_come_in_natural_order(tmp_path, put):
    put("10", "9", "b/2", "b/11", ".x")
    (tmp_path / "again").symlink_to("b")
    assert names_in(str(tmp_path)) == ["9", "10", "again", "b"]
    assert [name for _, name in names_below(str(tmp_path))] == ["9", "10", "2", "11"]


LOGS = {
    "Delta": "_delta_log/00000000000000000000.json",
    "Hudi": ".hoodie/hoodie.properties",
    "Iceberg": "metadata/00002-9c12d441-03fe-4693-9a96-a0705ddf69c1.metadata.json",
    "Iceberg 2": "metadata/v3.metadata.json",
    "Iceberg 3": "metadata/00001-9c.gz.metadata.json",
    "Iceberg 4": "metadata/orders.metadata.json",
}


@pytest.fixture(params=LOGS)
def table(request, tmp_path, put):
    """A folder of a table of some kind, and what is said of it."""
    log, folder = LOGS[request.param], tmp_path / "lake" / "table"
    names = (log, log.replace("00002-9", "00001-a"), "data/y=1/z=2/part-0.parquet")
    put(*(f"lake/table/{name}" for name in names), text="{}")
    tables.write_table(pa.table({"x": [1, 2]}), folder / "data" / "y=1" / "z=2" / "part-0.parquet")
    return folder, f"it is an? {request.param.split()[0]} table"


@pytest.mark.parametrize(
    "place", ["", "data", "data/y=1", "data/y=1/z=2/part-0.parquet", "data/y=1/z=2/{part-0,part-0}.parquet"]
)
def test_is_refused_with_what_reads_it(table, place, out):
    folder, what = table
    for kind in (None, "parquet"):
        with pytest.raises(FormatError, match=f"table: {what}.*which rows of its files count"):
            gdsload.convert(folder / place, out, kind=kind, workers=1)


def test_is_refused_below_a_parent_and_behind_a_link(table, tmp_path, out):
    folder, what = table
    with pytest.raises(FormatError, match=what):
        gdsload.convert(folder.parent, out, kind="parquet", workers=1)
    (tmp_path / "in").mkdir()
    for name, target in (("data", folder / "data"), ("0.parquet", folder / "data/y=1/z=2/part-0.parquet")):
        (tmp_path / "in" / name).symlink_to(target)
        with pytest.raises(FormatError, match=what):
            gdsload.convert(tmp_path / "in", out, kind="parquet", follow_links=True, workers=1)
        with pytest.raises(FormatError, match=what):
            gdsload.convert(tmp_path / "in" / name, out, kind="parquet", workers=1)
        (tmp_path / "in" / name).unlink()


def test_other_kinds_below_it_are_its_users_own(table):
    folder, _ = table
    (folder / "notes").mkdir()
    (folder / "notes" / "a.txt").write_text("one\n")
    assert source_for(str(folder / "notes"), "text").describe()["files"]


@pytest.mark.parametrize(
    "name", ["metadata/info.json", "metadata/images.metadata.json", "delta_log/0.json", "metadata"]
)
def test_folders_that_are_called_alike_are_no_logs(tmp_path, put, out, name):
    put(name, text="{}")
    tables.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    assert recognise(str(tmp_path)) == "parquet"
    assert gdsload.convert(tmp_path, out, workers=1).samples == 2


def test_the_remedy_of_delta_works(tmp_path, converted):
    library = pytest.importorskip("deltalake")
    for rows in ([1, 2], [3]):
        library.write_deltalake(str(tmp_path / "t"), pa.table({"x": rows}), mode="append")
    library.DeltaTable(str(tmp_path / "t")).delete("x = 2")
    with pytest.raises(FormatError, match="it is a Delta table"):
        converted(tmp_path / "t")
    found = converted(library.DeltaTable(str(tmp_path / "t")).to_pyarrow_table())
    assert sorted(found.column("x").tolist()) == [1, 3]
