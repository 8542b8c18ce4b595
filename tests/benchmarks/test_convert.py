"""The benchmark of conversion runs, and its record renders."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.convert import __main__ as convert
from benchmarks.convert import table
from benchmarks.convert.data import COLUMNS, SMALL, make, table_rows
from benchmarks.convert.writers import Arrow, Copy, GdsloadAlone
from benchmarks.table import embed
from benchmarks.worker import compare
from benchmarks.workloads import hash_rows

FOLDER = Path(convert.__file__).parent
NO_RECORD = "No record is committed yet.\n"


@pytest.fixture(scope="module")
def record(tmp_path_factory, contenders_here):
    pytest.importorskip("PIL")
    folder = tmp_path_factory.mktemp("bench")
    names = ["gdsload", "gdsload-w1", "arrow", "mosaicml"]
    options = ["--small", "--rounds", "1", "--work-dir", str(folder), "--kinds", "array", "table"]
    options += ["--contenders", *names]
    with contenders_here():
        assert convert.main([*options, "--out", str(folder / "convert.json")]) == 0
    assert [path.name for path in folder.iterdir()] == ["convert.json"]
    return json.loads((folder / "convert.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_contender_has_its_trials_and_its_bytes_are_right(record):
    for workload in record["workloads"]:
        for entry in workload["entries"]:
            if entry["name"] == "mosaicml":  # not installed where the tests run: a row all the same
                assert "No module named" in entry["failed"]["reason"]
                continue
            assert "failed" not in entry
            assert len(entry["trials"]) == record["rounds"]
            assert entry["check"]["samples"] == workload["count"]
            assert entry["check"]["missing"] == entry["check"]["repeated"] == entry["check"]["foreign"] == 0
            assert all(trial["written_bytes"] >= workload["nbytes"] for trial in entry["trials"])
            assert entry["mb_s"]["q1"] <= entry["mb_s"]["median"] <= entry["mb_s"]["q3"]
            assert entry["least_resident"] == 1
    array, rows = record["workloads"]
    assert array["ratios"].keys() == {"gdsload/gdsload-w1"}
    assert rows["ratios"].keys() == {"gdsload/gdsload-w1", "gdsload/arrow"}
    assert "/" not in "".join(record["command"])


@pytest.mark.slow
def test_the_record_renders(record):
    text = table.render(record)
    assert "numbers mean nothing" in text
    assert text.count("| gdsload, 2 workers ") == 2
    assert "two workers to one, round by round" in text
    assert "MosaicML MDSWriter, 1 process failed: " in text


def test_what_is_read_back_is_compared(tmp_path):
    samples = SMALL[0]
    make(samples, tmp_path / "rows.npy")
    writer = Copy(tmp_path / "rows.npy", samples)
    writer.write(tmp_path / "out")
    expected = np.load(tmp_path / "rows.hashes.npy")
    (rows,) = writer.rows(tmp_path / "out")
    assert compare(hash_rows(rows), expected)["missing"] == 0
    broken = np.array(rows)
    broken[3, 0, 0, 0] ^= 1
    found = compare(hash_rows(broken), expected)
    assert (found["missing"], found["foreign"]) == (1, 1)


def test_rows_of_a_table_are_compared_whatever_has_read_them(tmp_path):
    pytest.importorskip("pyarrow")
    samples = SMALL[2]
    make(samples, tmp_path / samples.file_name)
    expected = np.load(tmp_path / "rows.hashes.npy")
    for kind in (Arrow, GdsloadAlone):
        writer = kind(tmp_path / samples.file_name, samples)
        writer.write(tmp_path / kind.__name__)
        (rows,) = writer.rows(tmp_path / kind.__name__)
        assert rows.nbytes == samples.nbytes
        assert compare(hash_rows(rows), expected)["missing"] == 0
    with pytest.raises(ValueError, match="the columns are"):
        table_rows({name: np.zeros(3, np.float32) for name in COLUMNS})


def test_images_are_the_same_in_every_run_and_as_they_are_converted(tmp_path):
    pytest.importorskip("PIL")
    for name in ("a", "b"):
        make(SMALL[1], tmp_path / name)
    hashes = [np.load(tmp_path / f"{name}.hashes.npy") for name in ("a", "b")]
    assert np.array_equal(*hashes)
    assert len(np.unique(hashes[0])) == SMALL[1].count
    writer = GdsloadAlone(tmp_path / "a", SMALL[1])
    writer.write(tmp_path / "out")
    found = np.concatenate([hash_rows(rows) for rows in writer.rows(tmp_path / "out")])
    assert compare(found, hashes[0])["missing"] == 0


@pytest.mark.parametrize(("name", "mark"), [("convert", "table"), ("convert-csv", "csv")])
def test_the_readme_shows_the_record(name, mark):
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    record = FOLDER.parent / f"results/{name}.json"
    rendered = table.render(json.loads(record.read_text(encoding="utf-8"))) if record.exists() else NO_RECORD
    assert embed(text, rendered, mark) == text
