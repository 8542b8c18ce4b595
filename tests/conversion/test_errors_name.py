"""Errors of conversions name the file, what is wrong with it, and a way out."""

import gzip
import tarfile

import numpy as np
import pytest
import torch

import gdsload
from gdsload.errors import FormatError, GdsloadError, SchemaError


@pytest.fixture
def refused(out):
    """The text of the error that a conversion ends in."""

    def convert(source, kind=GdsloadError, **options):
        with pytest.raises(kind) as raised:
            gdsload.convert(source, out, workers=1, **options)
        return str(raised.value)

    return convert


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_text_that_is_no_utf_8(tmp_path, refused, name, encoding):
    content = "\ufeffa,b\n1,2\n".encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    said = refused(tmp_path / name, FormatError)
    assert said == f"{tmp_path / name}: its text is UTF-16, but is read as UTF-8. Pass `encoding='utf-16'`."
    assert gdsload.convert(tmp_path / name, tmp_path / "out", workers=1, encoding="utf-16").samples == 1


@pytest.mark.parametrize(
    ("header", "match"), [("a,c", "it lacks 'b' and it has 'c' beside"), ("b,a", "in another order, 'b', 'a'")]
)
def test_tables_of_other_columns(tmp_path, refused, header, match):
    (tmp_path / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "2.csv").write_text(f"{header}\n1,2\n")
    said = refused(tmp_path, FormatError)
    assert said.startswith(f"{tmp_path / '2.csv'}: ")
    assert f"the first file, {tmp_path / '1.csv'}: " in said
    assert match in said


def test_tables_of_other_types(tmp_path, refused, out):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for number, value in enumerate((1, 1.5)):
        parquet.write_table(arrow.table({"a": [value]}), tmp_path / f"{number}.parquet")
    said = refused(tmp_path, SchemaError)
    assert "field 'a': samples differ: int64 [] and float64 [] (row 0 of 1.parquet, row group 0)" in said
    assert said.endswith("Cast them to a type that holds both, `casts={'a': 'float64'}`, say.")
    assert gdsload.convert(tmp_path, out, workers=1, casts={"a": "float64"}).samples == 2


@pytest.mark.parametrize(
    ("values", "way"),
    [
        ((torch.zeros(2, dtype=torch.float16), np.zeros(2, np.int16)), "`casts={'x': 'float32'}`, say"),
        ((np.zeros(2, np.int16), np.zeros(2, np.uint16)), "`casts={'x': 'int32'}`, say"),
        ((np.zeros(2, np.int16), np.zeros(3, np.uint16)), "`casts={'x': 'int32'}`, say"),
        ((np.zeros((2, 3), np.int16), np.zeros((2, 2), np.uint16)), "Make them equal with `map="),
        ((np.int16(1), np.zeros(2, np.uint16)), "Make them equal with `map="),
        ((np.int16(1), "a"), "Make them equal with `map="),
        ((np.zeros(2, np.int64), np.zeros(2, np.uint64)), "Make them equal with `map="),
        ((np.zeros((3, 4, 4), np.uint8), np.zeros((3, 4, 4), np.float32)), "Make them equal with `map="),
    ],
)
def test_samples_of_other_types(refused, out, values, way):
    said = refused([{"x": value} for value in values], SchemaError)
    assert way in said
    if "casts" in way:
        kind = way.split("'")[3]
        assert gdsload.convert([{"x": value} for value in values], out, workers=1, casts={"x": kind}).samples == 2


def test_files_of_no_samples(tmp_path, refused):
    tarfile.open(tmp_path / "a.tar", "w").close()
    np.save(tmp_path / "a.npy", np.zeros((0, 3)))
    for name in ("a.tar", "a.npy"):
        assert refused(tmp_path / name).startswith(f"{tmp_path / name}: not one sample")


@pytest.mark.parametrize(
    ("array", "way"),
    [
        (np.zeros(3, [("a", "i4"), ("b", "f4")]), r"x['a'], say"),
        (np.array(["2024-01-01"], "M8[D]"), "x.astype('int64')"),
        (np.array([1], "m8[s]"), "x.astype('int64')"),
    ],
    ids=str,
)
@pytest.mark.parametrize("each", ["row", "file"])
def test_arrays_of_types_that_no_field_has(tmp_path, refused, array, way, each):
    np.save(tmp_path / "a.npy", array)
    said = refused(tmp_path / "a.npy", SchemaError, each=each)
    assert said.startswith(f"{tmp_path / 'a.npy'}, field ")
    assert way in said


def test_a_field_that_turns_out_to_be_ragged(refused, out):
    """The remedy is pasted."""
    rows = [{"t": np.zeros(3 + (number == 200), np.int64), "y": number} for number in range(201)]
    said = refused(rows)
    assert "a sample has shape [4], but [3] was expected. If its first dimension varies from sample to sample, " in said
    assert "pass `ragged=['t']`." in said
    assert gdsload.convert(rows, out, workers=1, ragged=["t"]).samples == 201
