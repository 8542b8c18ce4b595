"""Tables and arrays in memory, of the libraries that own them."""

import collections
import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch

import gdsload
from gdsload.conversion.sources.memory_tables import ArraysInMemory, TableInMemory
from gdsload.errors import FormatError, OptionError
from tests.conversion.reading import plain

COUNT = 20
COLUMNS = {
    "id": list(range(COUNT)),
    "score": [None if n % 10 == 3 else n / 4 for n in range(COUNT)],
    "text": [f"é{n}" for n in range(COUNT)],
    "ids": [list(range(n % 4)) for n in range(COUNT)],
}
TABLES = {
    "arrow": lambda: pa.table(COLUMNS),
    "arrow batch": lambda: pa.record_batch(COLUMNS),
    "pandas": lambda: pytest.importorskip("pandas").DataFrame(COLUMNS),
    "polars": lambda: pytest.importorskip("polars").DataFrame(COLUMNS),
    "datasets": lambda: pytest.importorskip("datasets").Dataset.from_dict(COLUMNS),
}


def rows_in(dataset):
    return [plain(sample) for sample in dataset]


@pytest.mark.parametrize(("table", "workers"), [("arrow", 2), *((name, 1) for name in TABLES)])
def test_tables_of_all_libraries(tmp_path, table, workers):
    report = gdsload.convert(TABLES[table](), tmp_path / "out", workers=workers, shard_bytes="400B")
    assert report.shards > 1
    rows = [dict(zip(COLUMNS, values, strict=True)) for values in zip(*COLUMNS.values(), strict=True)]
    expected = [{**row, "score": float("nan") if row["score"] is None else row["score"]} for row in rows]
    assert str(rows_in(gdsload.ShardDataset(tmp_path / "out"))) == str(expected)


def test_a_pandas_index_is_a_field_if_it_has_a_name(tmp_path, converted):
    """Also one that was kept in a table."""
    path = tmp_path / "a.parquet"
    frame = pytest.importorskip("pandas").DataFrame({"x": [1, 2, 3, 4]}).query("x != 3")
    frame.to_parquet(path)
    for source in (path, pa.Table.from_pandas(frame), frame):
        report = gdsload.convert(source, tmp_path / "out", workers=1, overwrite=True)
        assert rows_in(gdsload.ShardDataset(tmp_path / "out")) == [{"x": 1}, {"x": 2}, {"x": 4}]
        (note,) = report.notes
        assert note.startswith("the index of pandas has no name and is left out")
        taken = converted(source, fields=["__index_level_0__", "x"])
        assert [[*one.values()] for one in rows_in(taken)] == [[0, 1], [1, 2], [3, 4]]
    assert rows_in(converted(frame.rename_axis("x"))) == [{"x": 1}, {"x": 2}, {"x": 4}]
    assert rows_in(converted(frame.rename_axis("n"))) == [{"x": x, "n": x - 1} for x in (1, 2, 4)]
    frame.rename_axis("n").to_parquet(path)
    assert gdsload.convert(path, tmp_path / "out", workers=1, overwrite=True).notes == ()
    assert rows_in(gdsload.ShardDataset(tmp_path / "out")) == [{"x": x, "n": x - 1} for x in (1, 2, 4)]
    frame[[]].to_parquet(path)  # which has nothing else
    assert rows_in(converted(path)) == [{"__index_level_0__": x} for x in (0, 1, 3)]


def test_options_and_fields_are_those_of_parquet(tmp_path, converted):
    table = pa.table({"n": [1, None], "tags": [["a"], []], "left": [[None], [{}]]})
    wanted = [{"n": 1, "tags": '["a"]'}, {"n": -1, "tags": "[]"}]
    assert rows_in(converted(table, fields=["n", "tags"], fill={"n": -1}, as_json=["tags"])) == wanted
    with pytest.raises(FormatError, match="no field can have these columns: 'tags' "):
        gdsload.convert(table, tmp_path / "out", workers=1, overwrite=True)


def test_a_changed_table_is_another_one():
    one = TableInMemory(pa.table({"x": [1, 2]})).describe()
    assert one == pickle.loads(pickle.dumps(TableInMemory(pa.table({"x": [1, 2]})))).describe()
    assert one != TableInMemory(pa.table({"x": [1, 3]})).describe()
    assert one != TableInMemory(pa.table({"y": [1, 2]})).describe()


def test_splits_of_a_dataset_dict(converted):
    library = pytest.importorskip("datasets")
    one = library.Dataset.from_dict({"x": np.arange(3, dtype=np.int32)})
    both = library.DatasetDict({"train": one, "test": one.select([2, 0])})
    with pytest.raises(OptionError, match="several splits: 'train', 'test'. Pass `split='train'`"):
        converted(both)
    assert converted(both, split="test").column("x").tolist() == [2, 0]
    together = converted(both, split="all")
    assert (together.column("x").tolist(), together.schema["x"].dtype.name) == ([0, 1, 2, 2, 0], "int32")


def test_arrays_by_name(converted):
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.random((COUNT, 3), np.float32),
        "y": torch.arange(COUNT, dtype=torch.bfloat16),
        "text": [f"é{n}" for n in range(COUNT)],
        "fixed": np.array([f"{n}" for n in range(COUNT)]),
        "ragged": [np.arange(n % 3) for n in range(COUNT)],
    }
    dataset = converted(arrays, shard_bytes="300B")
    assert (dataset.schema["ragged"].ragged, dataset.schema["y"].dtype.name) == (True, "bfloat16")
    for n, sample in enumerate(dataset):
        wanted = {name: values[n] for name, values in arrays.items()}
        assert str(plain(sample)) == str(plain(wanted))


def test_arrays_of_other_lengths_are_left_out_by_name(tmp_path, converted):
    arrays = {"x": np.zeros((5, 2)), "y": np.ones(5), "mean": 1.5, "names": ["a", "b"]}
    with pytest.raises(FormatError, match=r"different lengths.*choose those of one length, `fields="):
        gdsload.convert(arrays, tmp_path / "out")
    assert list(converted(arrays, fields=["y", "x"]).schema) == ["y", "x"]
    one = ArraysInMemory({"x": [1, 2]}).describe()
    assert one == ArraysInMemory({"x": [1, 2]}).describe() != ArraysInMemory({"x": [1, 3]}).describe()


def columns_by_name():
    """Columns, and what is in them: first those that a table alone can have."""
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    yield "categories", pandas.Categorical(["a", "b", "a"]), ["a", "b", "a"]
    yield "lists", pandas.Series([[1], [1, 2], []]), [[1], [1, 2], []]
    yield "series", pandas.Series([10, 20, 30], index=[2, 0, 1]), [10, 20, 30]
    yield "index", pandas.Index([5, 6, 7]), [5, 6, 7]
    yield "floats", pandas.Series([0.5, 1.5, np.inf], dtype="float32"), [0.5, 1.5, np.inf]
    yield "nullable", pandas.Series([2**53 + 1, 2, 3], dtype="Int64"), [2**53 + 1, 2, 3]
    yield "polars", polars.Series([1, 2, 3]), [1, 2, 3]
    yield "arrow", pa.array([1, 2, 3], pa.int16()), [1, 2, 3]
    yield "chunks", pa.chunked_array([[1], [2, 3]]), [1, 2, 3]
    yield "range", range(30, 0, -10), [30, 20, 10]
    yield "deque", collections.deque(["a", "b", "c"]), ["a", "b", "c"]
    yield "bytes of Arrow", pa.array([b"a\0", b"bc", b"\0\0"], pa.binary(2)), [b"a\0", b"bc", b"\0\0"]
    yield "bytes of numpy", np.array([b"a\0", b"bc", b"\0\0"], "V2"), [b"a\0", b"bc", b"\0\0"]


@pytest.mark.parametrize("beside", [{}, {"z": torch.zeros(3, 2), "y": [0, 1, 2]}])
def test_columns_by_name_are_taken_in_their_order(converted, beside):
    for name, column, wanted in columns_by_name():
        arrays = {"x": column, **beside}
        if beside and name in ("categories", "lists"):
            with pytest.raises(OptionError, match="'x' is a column of type .* beside arrays"):
                converted(arrays)
            continue
        dataset = converted(arrays)
        assert list(dataset.schema) == list(arrays)
        samples = rows_in(dataset)
        assert [one["x"] for one in samples] == wanted, name
        assert [one["y"] for one in samples] == [0, 1, 2] if "y" in beside else True


def test_columns_by_name_are_those_of_tables(tmp_path, converted, left_out):
    """Holes, times, structs, fields and what the notes say."""
    pandas = pytest.importorskip("pandas")
    arrays = {
        "y": pa.array(range(30)),
        "n": pandas.Series([1, None, 3] * 10, dtype="Int64"),
        "t": pandas.Series(pandas.to_datetime(["2020-01-01"] * 30)).astype("datetime64[s]"),
        "s": pa.array([{"a": n, "b": "x"} for n in range(30)]),
    }
    report = gdsload.convert(arrays, tmp_path / "out", workers=1, fill={"n": 0}, shard_bytes="200B")
    assert report.notes == ("'t' is int64, seconds since 1970-01-01 (no time zone)",)
    dataset = gdsload.ShardDataset(tmp_path / "out")
    assert list(dataset.schema) == ["y", "n", "t", "s.a", "s.b"]
    wanted = [{"y": n, "n": [1, 0, 3][n % 3], "t": 1577836800, "s.a": n, "s.b": "x"} for n in range(30)]
    assert rows_in(dataset) == wanted
    said = "column 'n' has no value, or one with a hole. Say what stands for it, `fill={'n': -1}`"
    others = left_out(arrays, dict.fromkeys([f"row {n}" for n in range(1, 30, 3)], said))
    assert others.column("y").tolist() == [n for n in range(30) if n % 3 != 1]
    assert rows_in(converted(arrays, fields=["s.b", "y"]))[7] == {"s.b": "x", "y": 7}


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda pandas: {"x": pandas.DataFrame({"a": [1]})}, "'x' is a table, pandas.*Pass the table itself"),
        (lambda pandas: {"x": pandas.Series([1, 2]), "y": np.ones(3)}, "different lengths, or none: 'x' 2, 'y' 3"),
        (lambda pandas: {"x": pandas.Series([1, 2]), "y": pandas.Series([1])}, "named y expected length 2"),
        (lambda pandas: {"x": pandas.Series([np.ones((2, 2))] * 2)}, "'x', a pandas.*cannot be taken as a column"),
        (lambda pandas: {"x": pandas.Series([2**53 + 1, 0.5], dtype=object)}, "Integer value 9007199254740993"),
        (lambda pandas: {"x": None}, "different lengths, or none: 'x' none. The first dimension counts the samples"),
        (lambda pandas: {"x": "abc", "y": 5}, "different lengths, or none: 'x' none, 'y' none"),
        (lambda pandas: {"x": [1, 2], 1: [3, 4]}, "the name 1 is no text"),
        (lambda pandas: pandas.Series([1, 2]), r"cannot be taken as a table.*by its name: {'x': column}"),
        (lambda pandas: pa.array([1, 2]), r"cannot be taken as a table.*by its name: {'x': column}"),
        (lambda pandas: pa.chunked_array([[1]]), "ChunkedArray cannot be taken as a table"),
        (lambda pandas: pa.table(COLUMNS).to_reader(), "can be read once only"),
        (lambda pandas: pa.table({"x": pa.array([], pa.int8())}), "not one row"),
    ],
)
def test_what_are_no_columns_or_no_table(tmp_path, make, match):
    with pytest.raises(gdsload.GdsloadError, match=match):
        gdsload.convert(make(pytest.importorskip("pandas")), tmp_path / "out", workers=1)


def test_python_objects_of_polars_are_refused(tmp_path, converted):
    """Arrow gets their addresses."""
    polars = pytest.importorskip("polars")
    column = polars.Series("x", [np.ones(2), np.zeros(2)], dtype=polars.Object)
    for source in ({"x": column}, column.to_frame()):
        with pytest.raises(OptionError, match=r"Python's objects.*Pass them as a list by name: .*to_list"):
            gdsload.convert(source, tmp_path / "out", workers=1)
    assert converted({"x": column.to_list()}).column("x").tolist() == [[1, 1], [0, 0]]


# What no field can have. Made when asked for: torch warns of some.
WITHOUT_BYTES = {
    "datetime64": lambda: np.array(["2020", "2021"], "datetime64[D]"),
    "timedelta64": lambda: np.array([1, 2], "timedelta64[s]"),
    "structured": lambda: np.zeros(2, [("a", "int8"), ("b", "datetime64[D]")]),
    "objects": lambda: np.array([None, "a"], object),
    "sparse": lambda: torch.zeros(2).to_sparse(),
    "sparse rows": lambda: torch.zeros(2, 2).to_sparse_csr(),
    "meta": lambda: torch.zeros(2, device="meta"),
    "jagged": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(2, 2), 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", WITHOUT_BYTES)
@pytest.mark.parametrize("listed", [False, True])
def test_what_no_field_can_have_is_an_error_of_ours(tmp_path, kind, listed):
    """Also in a list, where it is its sample's fault."""
    value = WITHOUT_BYTES[kind]()
    with pytest.raises(gdsload.GdsloadError, match="field 'a': "):
        gdsload.convert({"a": [value, value] if listed else value, "b": [1, 2]}, tmp_path / "out", workers=1)
    gdsload.convert({"a": value, "b": [1, 2]}, tmp_path / "out", workers=1, fields=["b"])
    if listed:
        arrays = {"x": [torch.zeros(2)] * 200 + [value]}
        report = gdsload.convert(arrays, tmp_path / "skipped", workers=1, on_error="skip")
        assert (report.samples, len(report.skipped)) == (200, 1)


BASE = torch.arange(6.0)
STRIDED = {
    "one of a stride": BASE.view(3, 2)[:1, 0],
    "none of a stride": BASE.view(3, 2)[:1, :0],
    "transposed": BASE.view(3, 2).T,
    "conjugate": torch.complex(BASE, BASE).conj(),
    "negative": torch.complex(BASE, BASE).conj().imag,
    "with a gradient": BASE.clone().requires_grad_(),
}


@pytest.mark.parametrize("kind", STRIDED)
def test_tensors_of_any_strides(converted, kind):
    value = STRIDED[kind]
    dataset = converted({"x": value})
    assert torch.equal(dataset.column("x"), value.detach())
    assert ArraysInMemory({"x": value}).describe() == ArraysInMemory({"x": value.detach().clone()}).describe()


def test_what_a_cast_makes_storable_is_taken(converted):
    arrays = {"c": np.array([1j, 2]), "t": torch.zeros(2, dtype=torch.complex128), "l": np.zeros(2, np.longdouble)}
    casts = {"c": "complex64", "t": "complex64", "l": "float32"}
    assert converted(arrays, casts=casts).column("c").tolist() == [1j, 2]
