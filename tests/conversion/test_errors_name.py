"""Errors of conversions name the file, what is wrong with it, and a way out."""

import gzip
import re
import tarfile

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from gdsload.errors import FormatError, GdsloadError, SchemaError


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_text_that_is_no_utf_8(tmp_path, converted, name, encoding):
    content = "\ufeffa,b\n1,2\n".encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    said = f"^{tmp_path / name}: its text is UTF-16, but is read as UTF-8. Pass `encoding='utf-16'`.$"
    with pytest.raises(FormatError, match=said):
        converted(tmp_path / name)
    assert len(converted(tmp_path / name, encoding="utf-16")) == 1


@pytest.mark.parametrize("header", ["a,c", "b,a"])
def test_tables_of_other_columns(tmp_path, converted, header):
    (tmp_path / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "2.csv").write_text(f"{header}\n1,2\n")
    said = f"^{tmp_path / '2.csv'}: its columns are {header[0]}, {header[2]}, but those"
    with pytest.raises(FormatError, match=said):
        converted(tmp_path)


def test_tables_of_other_types(tmp_path, converted):
    for number, value in enumerate((1, 1.5)):
        parquet.write_table(pa.table({"a": [value]}), tmp_path / f"{number}.parquet")
    said = "field 'a': samples differ: int64 [] and float64 [] (row 0 of 1.parquet, row group 0). "
    way = "Cast them to one type, `casts={'a': 'float64'}`, say;"
    with pytest.raises(SchemaError, match=re.escape(said + way)):
        converted(tmp_path)
    assert len(converted(tmp_path, casts={"a": "float64"})) == 2


@pytest.mark.parametrize(
    ("values", "castable"),
    [
        ((torch.zeros(2, dtype=torch.float16), np.zeros(3, np.int16)), True),
        ((np.zeros((2, 3), np.int16), np.zeros((2, 2), np.uint16)), False),
        ((np.int16(1), "a"), False),
    ],
)
def test_samples_of_other_types(converted, values, castable):
    samples = [{"x": value} for value in values]
    way = "Cast them to one type, `casts={'x': 'float64'}`, say" if castable else "Make them equal with `map="
    with pytest.raises(SchemaError, match=way):
        converted(samples)
    if castable:
        assert len(converted(samples, casts={"x": "float64"})) == 2


def test_files_of_no_samples(tmp_path, converted):
    tarfile.open(tmp_path / "a.tar", "w").close()
    np.save(tmp_path / "a.npy", np.zeros((0, 3)))
    for name in ("a.tar", "a.npy"):
        with pytest.raises(GdsloadError, match=f"^{tmp_path / name}: not one sample"):
            converted(tmp_path / name)


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
def test_arrays_of_types_that_no_field_has(tmp_path, converted, array, way, each):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(SchemaError, match=f"^{tmp_path / 'a.npy'}, field .*{re.escape(way)}"):
        converted(tmp_path / "a.npy", each=each)


def test_a_field_that_turns_out_to_be_ragged(converted):
    """The remedy is pasted."""
    rows = [{"t": np.zeros(3 + (number == 200), np.int64), "y": number} for number in range(201)]
    said = "a sample has shape [4], but [3] was expected. If its first dimension varies from sample to sample, "
    with pytest.raises(GdsloadError, match=re.escape(f"{said}pass `ragged=['t']`.")):
        converted(rows)
    assert len(converted(rows, ragged=["t"])) == 201
