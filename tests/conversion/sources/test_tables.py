"""Parquet, Arrow and Hugging Face datasets, written by their own libraries, and hostile ones."""

from __future__ import annotations

import json
import os
import pickle

import numpy as np
import pytest
import torch

import gdsload
from gdsload.conversion.part import samples_of
from gdsload.conversion.sources.hf_datasets import HuggingFaceSource
from gdsload.conversion.sources.parquet_files import ParquetSource
from gdsload.errors import FormatError, OptionError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PYARROW = int(pa.__version__.partition(".")[0])
COUNT = 25


def read_all(source, target=2**20):
    return [item for part in source.parts(target) for item in source.read(part)]


def rows(source, target=2**20):
    """All samples, one by one."""
    found = []
    for item in read_all(source, target):
        found += [item.make()] if item.count is None else [one.make() for one in samples_of(item)]
    return found


def values(row):
    return {
        name: value.tolist() if isinstance(value, np.ndarray | np.generic) else value for name, value in row.items()
    }


def table():
    numbers = range(COUNT)
    return pa.table({
        "i": pa.array(numbers, pa.int16()),
        "f": pa.array([n / 4 for n in numbers], pa.float32()),
        "h": pa.array(np.arange(COUNT, dtype=np.float16)),
        "b": [n % 3 == 0 for n in numbers],
        "text": [f"é{n}" for n in numbers],
        "large": pa.array([f"{n}" for n in numbers], pa.large_string()),
        "raw": [bytes([n]) * n for n in numbers],
        "word": pa.array(["yes" if n % 2 else "no" for n in numbers]).dictionary_encode(),
        "fixed": pa.array([[n, n + 1, n + 2] for n in numbers], pa.list_(pa.int32(), 3)),
        "matrix": pa.array([[[n, 1], [2, 3], [4, 5]] for n in numbers], pa.list_(pa.list_(pa.uint8(), 2), 3)),
        "ragged": pa.array([list(range(n % 5)) for n in numbers], pa.list_(pa.int64())),
        "points": pa.array([[[n, k] for k in range(n % 3)] for n in numbers], pa.large_list(pa.list_(pa.float64(), 2))),
    })  # fmt: skip


def write(path, found, kind):
    if kind == "parquet":
        pq.write_table(found, path, row_group_size=10)
    else:
        new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as out, new(out, found.schema) as writer:
            writer.write_table(found, max_chunksize=10)
    return str(path)


def plain(found):
    return found.to_pylist()


@pytest.mark.parametrize(("kind", "name"), [("parquet", "t.parquet"), ("file", "t.feather"), ("stream", "t.arrow")])
def test_equals_what_pyarrow_reads(tmp_path, kind, name):
    source = pickle.loads(pickle.dumps(ParquetSource(write(tmp_path / name, table(), kind))))
    parts = source.parts(1)
    assert [part.samples for part in parts] == ([-1] if kind == "stream" else [10, 10, 5])
    found = [item for part in parts for item in source.read(part)]
    assert [item.count for item in found] == [10, 10, 5]
    assert found[1].key == "rows 10 to 19"
    assert [values(row) for row in rows(source)] == plain(table())
    batch = found[0].make()
    assert batch["matrix"].shape == (10, 3, 2)
    assert batch["matrix"].dtype == np.uint8
    assert batch["points"][0].shape[1:] == (2,)


def test_can_be_written(tmp_path):
    source = ParquetSource(write(tmp_path / "t.parquet", table(), "parquet"))
    with gdsload.ShardWriter(tmp_path / "out") as writer:
        for item in read_all(source):
            writer.write_batch(item.make())
    dataset = gdsload.ShardDataset(tmp_path / "out")
    assert dataset.schema["ragged"].ragged
    for sample, row in zip(dataset, plain(table()), strict=True):
        found = {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in sample.items()}
        assert found == row


def test_slices_begin_anywhere(tmp_path):
    """Offsets of Arrow's are those of the whole array, not of the piece that is looked at."""
    source = ParquetSource(write(tmp_path / "t.arrow", table().slice(3, 17), "file"))
    assert [values(row) for row in rows(source)] == plain(table().slice(3, 17))


def test_files_come_in_natural_order_and_columns_in_the_one_asked_for(tmp_path):
    for number in (10, 9):
        write(tmp_path / f"t-{number}.parquet", pa.table({"x": [number], "y": ["a"], "z": [{"a": 1}]}), "parquet")
    assert rows(ParquetSource(str(tmp_path), columns=["y", "x"])) == [{"y": "a", "x": 9}, {"y": "a", "x": 10}]
    assert list(rows(ParquetSource(str(tmp_path), columns=["y", "x"]))[0]) == ["y", "x"]
    with pytest.raises(OptionError, match="columns is the text 'x'. Pass a list"):
        ParquetSource(str(tmp_path), columns="x")
    with pytest.raises(OptionError, match="no column 'q'"):
        ParquetSource(str(tmp_path), columns=["q"]).parts(1)


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 3]),
        pa.array(["a", None, "c"]),
        pa.array(["a", None, "c"]).dictionary_encode(),
        pa.array([[1], None, [3]]),
        pa.array([[1], [2, None], [3]]),
        pa.array([[1, 1], None, [3, 3]], pa.list_(pa.int8(), 2)),
        pa.array([[1, 1], [2, None], [3, 3]], pa.list_(pa.int8(), 2)),
    ],
)
def test_a_missing_value_is_a_fault_of_its_row_alone(tmp_path, kind, column):
    if kind == "parquet" and pa.types.is_fixed_size_list(column.type) and column.null_count and PYARROW < 26:
        pytest.skip("pyarrow cannot write it before version 26")
    path = write(tmp_path / ("t.parquet" if kind == "parquet" else "t.arrow"), pa.table({"x": column}), kind)
    first, bad, last = read_all(ParquetSource(path))
    assert [first.key, bad.key, last.key] == ["row 0", "row 1", "row 2"]
    assert values(first.make()) == {"x": column[0].as_py()}
    assert values(last.make()) == {"x": column[2].as_py()}
    with pytest.raises(FormatError, match="column 'x' has no value.*row 1"):
        bad.make()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([{"a": 1}]),
        pa.array([[[1], [2, 3]]]),
        pa.array([["a"]]),
        pa.array([1], pa.timestamp("s")),
        pa.array([None]),
        pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8())),
    ],
)
def test_types_that_no_field_can_have(tmp_path, column):
    source = ParquetSource(write(tmp_path / "t.parquet", pa.table({"ok": [1], "x": column}), "parquet"))
    with pytest.raises(FormatError, match="column 'x' is of type"):
        source.parts(1)
    assert rows(ParquetSource(source.path, columns=["ok"])) == [{"ok": 1}]


def test_tensors_of_a_fixed_shape(tmp_path):
    array = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(array)
    source = ParquetSource(write(tmp_path / "t.parquet", pa.table({"x": column}), "parquet"))
    assert np.array_equal(read_all(source)[0].make()["x"], array)


@pytest.mark.parametrize(("kind", "name"), [("parquet", "t.parquet"), ("file", "t.feather"), ("stream", "t.arrow")])
def test_damaged_anywhere_is_read_or_refused(tmp_path, kind, name):
    path = write(tmp_path / name, table().select(["i", "text", "ragged"]), kind)
    with open(path, "rb") as file:
        whole = file.read()
    for end in range(0, len(whole) - 1, len(whole) // 25):
        with open(path, "wb") as out:
            out.write(whole[:end])
        try:
            rows(ParquetSource(path))
        except FormatError:
            continue
        assert kind == "stream", "only a stream has no end"


@pytest.mark.parametrize(("kind", "name"), [("file", "t.feather"), ("stream", "t.arrow")])
def test_spoiled_offsets_never_lead_out_of_the_table(tmp_path, kind, name):
    """Arrow itself would read whatever lies there in memory."""
    path = write(tmp_path / name, pa.table({"text": ["abcd"] * 10}), kind)
    with open(path, "rb") as file:
        whole = file.read()
    edge = np.int32(4 * 7).tobytes() + np.int32(4 * 8).tobytes()
    assert whole.count(edge) == 1
    with open(path, "wb") as out:
        out.write(whole.replace(edge, edge[:4] + np.int32(2**30).tobytes()))
    with pytest.raises(FormatError, match="is damaged"):
        rows(ParquetSource(path))


def test_no_rows_and_no_files(tmp_path):
    with pytest.raises(FormatError, match="no file with"):
        ParquetSource(str(tmp_path)).parts(1)
    path = write(tmp_path / "t.parquet", table().slice(0, 0), "parquet")
    with pytest.raises(FormatError, match="not one row"):
        ParquetSource(path).parts(1)


def test_describes_files_and_options(tmp_path):
    path = write(tmp_path / "t.parquet", table(), "parquet")
    one = ParquetSource(path).describe()
    assert json.loads(json.dumps(one)) == one == ParquetSource(path).describe()
    assert one != ParquetSource(path, columns=["i"]).describe()
    os.utime(path, ns=(1, 1))
    assert one != ParquetSource(path).describe()


@pytest.fixture(scope="module")
def hf():
    return pytest.importorskip("datasets")


def test_equals_what_datasets_reads(tmp_path, hf):
    pytest.importorskip("PIL")
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (5, 6 + n % 2, 3), np.uint8) for n in range(COUNT)]
    features = hf.Features({
        "image": hf.Image(), "label": hf.ClassLabel(names=["a", "b"]), "text": hf.Value("string"),
        "grid": hf.Array2D((2, 3), "float32"), "ids": hf.List(hf.Value("int32")),
    })  # fmt: skip
    grid = rng.random((COUNT, 2, 3), np.float32)
    columns = {
        "image": images, "label": [n % 2 for n in range(COUNT)], "text": [f"é{n}" for n in range(COUNT)],
        "grid": list(grid), "ids": [list(range(n % 4)) for n in range(COUNT)],
    }  # fmt: skip
    dataset = hf.Dataset.from_dict(columns, features=features)
    dataset.select(range(COUNT - 1, 2, -1)).save_to_disk(str(tmp_path / "d"))  # an order of its own
    expected = [{name: column[n] for name, column in columns.items()} for n in range(COUNT - 1, 2, -1)]
    source = pickle.loads(pickle.dumps(HuggingFaceSource(str(tmp_path / "d"))))
    assert len(source.parts(1)) == len(expected)
    found = rows(source)
    for mine, theirs in zip(found, expected, strict=True):
        assert list(mine) == list(theirs)
        assert np.array_equal(mine["image"], theirs["image"].transpose(2, 0, 1))
        assert np.array_equal(mine["grid"], theirs["grid"])
        assert mine["ids"].tolist() == theirs["ids"]
        assert (mine["label"], mine["text"]) == (theirs["label"], theirs["text"])


def test_grids_that_vary(tmp_path, hf):
    features = hf.Features({"grid": hf.Array2D((None, 1), "float32")})
    dataset = hf.Dataset.from_dict({"grid": [[[1.0]], [[1.0], [2.0], [3.0]]]}, features=features)
    dataset.save_to_disk(str(tmp_path / "d"))
    with pytest.raises(FormatError, match="column 'grid' has tensors"):
        HuggingFaceSource(str(tmp_path / "d")).parts(1)


def test_splits_of_datasets(tmp_path, hf):
    one = hf.Dataset.from_dict({"x": [1, 2]})
    hf.DatasetDict({"train": one, "test": one.select([0])}).save_to_disk(str(tmp_path / "d"))
    one.save_to_disk(str(tmp_path / "e"))
    path = str(tmp_path / "d")
    assert [item.count for item in read_all(HuggingFaceSource(path, split="train"))] == [2]
    with pytest.raises(
        OptionError, match="it holds several splits. Pass one of them as split=.*: there are 'train', 'test'"
    ):
        HuggingFaceSource(path).parts(1)
    with pytest.raises(OptionError, match="there is no split 'val'.*: there are 'train', 'test'"):
        HuggingFaceSource(path, split="val").parts(1)
    hf.DatasetDict({"train": one}).save_to_disk(str(tmp_path / "alone"))
    assert [item.count for item in read_all(HuggingFaceSource(str(tmp_path / "alone")))] == [2]
    with pytest.raises(OptionError, match="no splits"):
        HuggingFaceSource(str(tmp_path / "e"), split="train").parts(1)
    assert HuggingFaceSource(path, split="test").describe() != HuggingFaceSource(path, split="train").describe()
    with pytest.raises(FormatError, match="there is no file"):
        HuggingFaceSource(str(tmp_path)).parts(1)


def test_an_image_that_is_missing_spoils_its_row_alone(tmp_path, hf):
    image = np.zeros((2, 2, 3), np.uint8)
    features = hf.Features({"image": hf.Image()})
    dataset = hf.Dataset.from_dict({"image": [image, None, {"bytes": b"\xff\xd8", "path": None}]}, features=features)
    dataset.save_to_disk(str(tmp_path / "d"))
    good, missing, damaged = read_all(HuggingFaceSource(str(tmp_path / "d")))
    assert good.make()["image"].shape == (3, 2, 2)
    with pytest.raises(FormatError, match="no image in row 1"):
        missing.make()
    with pytest.raises(FormatError, match="row 2: the image cannot be decoded"):
        damaged.make()
