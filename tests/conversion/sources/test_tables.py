"""Parquet, Arrow and Hugging Face datasets, written by their own libraries, and hostile ones."""

import datetime as dt
import json
import pickle
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gdsload
from gdsload.conversion.input_files import SourceFiles
from gdsload.conversion.sources.hf_datasets import HuggingFaceSource
from gdsload.conversion.sources.parquet_files import ParquetSource
from gdsload.errors import FormatError, OptionError
from tests.conversion.reading import items_of, made_by, plain, rows_of

hf = pytest.importorskip("datasets")

COUNT = 25


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


def write(path, found, kind, rows=10):
    if kind == "parquet":
        pq.write_table(found, path, row_group_size=10)
    else:
        new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as out, new(out, found.schema) as writer:
            writer.write_table(found, max_chunksize=rows)
    return str(path)


@pytest.mark.parametrize(("kind", "name"), [("parquet", "t.parquet"), ("file", "t.feather"), ("stream", "t.arrow")])
def test_equals_what_pyarrow_reads(tmp_path, converted, kind, name):
    source = pickle.loads(pickle.dumps(ParquetSource(write(tmp_path / name, table(), kind))))
    parts = source.parts(1)
    assert [part.samples for part in parts] == ([-1] if kind == "stream" else [10, 10, 5])
    found = [item for part in parts for item in source.read(part)]
    assert [item.count for item in found] == [10, 10, 5]
    assert found[1].key == "rows 10 to 19"
    assert [plain(row) for row in rows_of(source)] == table().to_pylist()
    dataset = converted(source)
    assert dataset.schema["ragged"].ragged
    assert [plain(sample) for sample in dataset] == table().to_pylist()
    batch = found[0].make()
    assert batch["matrix"].shape == (10, 3, 2)
    assert batch["matrix"].dtype == np.uint8
    assert batch["points"][0].shape[1:] == (2,)


def one_column(tmp_path, column, **options):
    pq.write_table(pa.table({"x": column}), tmp_path / "t.parquet")
    return ParquetSource(str(tmp_path / "t.parquet"), **options)


def test_all_that_cannot_be_taken_is_named_with_the_ways_out(tmp_path, converted):
    found = pa.table({
        "ok": [1], "a b": [2], "tags": [["a"]], "price": [Decimal("1.5")], "none": [None], "chat": [[{"role": "user"}]],
        "map": pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8())),
    })  # fmt: skip
    with pytest.raises(FormatError) as caught:
        ParquetSource(write(tmp_path / "t.parquet", found, "parquet")).parts(1)
    for said in (
        "'tags' (list<", "one text for each sample, not a list of them", "'price' (decimal128", "'none' (null)",
        "'chat' (list<", "'map' (map<", "`fields=['ok', 'a b']`", "`decimals='float64'`",
        "`as_json=['tags', 'price', 'none', 'chat', 'map']`",
    ):  # fmt: skip
        assert said in str(caught.value)
    assert list(converted(tmp_path / "t.parquet", fields=["a b"]).schema) == ["a b"]


def test_structs_are_flattened_and_what_has_none_has_no_parts(tmp_path):
    column = pa.array([{"a": 1, "in": {"t": "x"}}, {"a": 2, "in": {"t": "y"}}, None, {"a": 4, "in": None}])
    source = one_column(tmp_path, column)
    assert items_of(source.only(["x.in.t", "x.a"]))[0].make()["x.in.t"] == ["x", "y"]
    filled = rows_of(ParquetSource(source.path, fill={"x.a": -1, "x.in.t": "none"}))
    assert [(int(row["x.a"]), row["x.in.t"]) for row in filled] == [(1, "x"), (2, "y"), (-1, "none"), (4, "none")]


@pytest.mark.parametrize(
    ("column", "expected", "note"),
    [
        (pa.array([1, -2], pa.timestamp("us")), [1, -2], "microseconds since 1970-01-01 (no time zone)"),
        (pa.array([1, 2], pa.timestamp("ms", "Asia/Tokyo")), [1, 2], "milliseconds since 1970-01-01 (UTC)"),
        (pa.array([dt.date(1970, 1, 3)]), [2], "days since 1970-01-01"),
        (pa.array([7], pa.time32("ms")), [7], "milliseconds since midnight"),
        (pa.array([7], pa.duration("ns")), [7], "nanoseconds"),
    ],
)
def test_times_are_whole_numbers_of_their_unit(tmp_path, column, expected, note):
    source = one_column(tmp_path, column)
    found = [row["x"] for row in rows_of(source)]
    assert [(value.dtype, value) for value in found] == [(np.int64, value) for value in expected]
    assert source.notes() == [f"'x' is int64, {note}"]
    assert gdsload.convert(source, tmp_path / "out", workers=1).notes == tuple(source.notes())


MILLISECONDS = pa.array([1], pa.timestamp("ms"))


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (MILLISECONDS, pa.array([1], pa.timestamp("us")), "microseconds .*, but milliseconds .* in .*a.parquet"),
        (MILLISECONDS, pa.array([1]), "int64, but milliseconds"),
        (MILLISECONDS, pa.array([1], pa.timestamp("ms", "UTC")), r"milliseconds .*\(UTC\), but .*\(no time zone\)"),
        *[(pa.array([Decimal(1)], pa.decimal128(9, 2)), pa.array([Decimal(1)], pa.decimal128(9, 3)),
           "units of 10 to the power of -3, but units of 10 to the power of -2")],
    ],
)  # fmt: skip
def test_files_whose_numbers_count_different_things_are_refused(tmp_path, one, other, says):
    pq.write_table(pa.table({"t": one, "x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"t": other, "x": [2]}), tmp_path / "b.parquet")
    source = ParquetSource(str(tmp_path), decimals="scaled")
    with pytest.raises(FormatError, match=f"b.parquet: column 't' has {says}"):
        source.parts(2**20)
    assert [row["x"] for row in rows_of(source.only(["x"]))] == [1, 2]
    pq.write_table(pa.table({"t": one, "x": [2]}), tmp_path / "b.parquet")
    assert len(rows_of(source)) == 2


def test_decimals_only_as_asked_for(tmp_path):
    texts = ["1.10", "-0.05", "99999999999999999999.99", "0.30"]
    column = pa.array([Decimal(text) for text in texts], pa.decimal128(30, 2))
    assert items_of(one_column(tmp_path, column, decimals="float64"))[0].make()["x"].tolist() == list(map(float, texts))
    small = one_column(tmp_path, column.take([0, 1, 3]), decimals="scaled")
    assert items_of(small)[0].make()["x"].tolist() == [110, -5, 30]
    assert small.notes() == ["'x' is int64, units of 10 to the power of -2"]
    with pytest.raises(FormatError, match="does not fit int64"):
        rows_of(one_column(tmp_path, column, decimals="scaled"))


def test_anything_can_be_kept_as_json(tmp_path):
    for values in (
        [["a", "é"], [], None],
        [[{"role": "user", "content": "a"}], None, []],
        [{"a": {"b": [1, None]}}, None],
    ):
        found = rows_of(one_column(tmp_path, pa.array(values), as_json=["x"]))
        assert [json.loads(row["x"]) for row in found] == values


def test_lists_in_lists_of_one_length(tmp_path, converted):
    boxes = [[[1, 2, 3, 4]], [], [[5, 6, 7, 8], [9, 10, 11, 12]]]
    dataset = converted(one_column(tmp_path, pa.array(boxes)))
    assert dataset.schema["x"] == gdsload.Field("int64", (None, 4))
    assert [sample["x"].tolist() for sample in dataset] == boxes
    with pytest.raises(gdsload.ConversionError, match="lists in lists of different lengths, 1 and 2"):
        gdsload.convert(one_column(tmp_path, pa.array([[[1], [2, 3]]])), tmp_path / "out", workers=1, overwrite=True)


def test_lists_of_one_length_are_fixed_if_that_is_said(tmp_path, converted):
    source = one_column(tmp_path, pa.array([[1.0, 2.0], [3.0, 4.0]] * 50))
    assert converted(source).schema["x"].shape == (None,)
    fixed = converted(source, fixed=["x"], casts={"x": "float32"})
    assert fixed.schema["x"] == gdsload.Field("float32", (2,))
    with pytest.raises(OptionError, match="'x' is to be ragged and fixed"):
        converted(source, fixed=["x"], ragged=["x"])
    with pytest.raises(gdsload.SchemaError, match="'x': it is to be fixed, but its samples have different lengths"):
        converted(one_column(tmp_path, pa.array([[1, 2], [3]])), fixed=["x"])


def test_files_with_names_in_structs_are_their_bytes(tmp_path, left_out):
    column = pa.array([{"bytes": b"RIFF", "path": None}, {"bytes": None, "path": "a.wav"}])
    noted = json.dumps({"info": {"features": {"x": {"_type": "Audio"}}}})
    pq.write_table(pa.table({"x": column}).replace_schema_metadata({"huggingface": noted}), tmp_path / "t.parquet")
    dataset = left_out(tmp_path / "t.parquet", {"row 1": "column 'x' has no value"}, keep_encoded=True)
    assert dataset.column("x") == [b"RIFF"]


def test_folders_that_stand_for_columns(tmp_path):
    for year, lang in ((2023, "de"), (2024, "a%20b")):
        folder = tmp_path / f"year={year}" / f"lang={lang}" / "m=01"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"x": [year, year + 1]}), folder / "part-0.parquet")
    source = ParquetSource(str(tmp_path))
    assert [plain(row) for row in rows_of(source)] == [
        {"x": year + k, "year": year, "lang": lang, "m": "01"}
        for year, lang in ((2023, "de"), (2024, "a b"))
        for k in (0, 1)
    ]
    assert rows_of(source.only(["year"])) == [{"year": 2023}] * 2 + [{"year": 2024}] * 2
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(FormatError, match="its folders stand for"):
        source.parts(1)


def test_checksums_of_pages_are_compared(tmp_path):
    path = tmp_path / "t.parquet"
    options = {"use_dictionary": False, "compression": "none", "write_page_checksum": True}
    pq.write_table(pa.table({"x": np.arange(1000)}), path, **options)
    whole = path.read_bytes()
    place = whole.index(np.int64(500).tobytes())
    path.write_bytes(whole[:place] + b"\xf5" + whole[place + 1 :])
    with pytest.raises(FormatError, match="could not be verified|CRC|corrupt"):
        gdsload.convert(path, tmp_path / "out", workers=1)


@pytest.mark.parametrize(("kind", "name"), [("parquet", "t.parquet"), ("file", "t.feather"), ("stream", "t.arrow")])
def test_damaged_anywhere_is_read_or_refused(tmp_path, kind, name):
    path = tmp_path / name
    write(path, table().select(["i", "text", "ragged"]), kind)
    whole = path.read_bytes()
    for end in range(0, len(whole) - 1, len(whole) // 25):
        path.write_bytes(whole[:end])
        try:
            rows_of(ParquetSource(str(path)))
        except FormatError:
            continue
        assert kind == "stream", "only a stream has no end"


@pytest.mark.parametrize(("kind", "name"), [("file", "t.feather"), ("stream", "t.arrow")])
def test_spoiled_offsets_never_lead_out_of_the_table(tmp_path, kind, name):
    """Arrow itself would read any bytes that are there in memory."""
    path = tmp_path / name
    write(path, pa.table({"text": ["abcd"] * 10}), kind)
    whole = path.read_bytes()
    edge = np.int32(4 * 7).tobytes() + np.int32(4 * 8).tobytes()
    assert whole.count(edge) == 1
    path.write_bytes(whole.replace(edge, edge[:4] + np.int32(2**30).tobytes()))
    with pytest.raises(FormatError, match="is damaged"):
        rows_of(ParquetSource(str(path)))


@pytest.mark.parametrize("kind", ["file", "stream", "datasets"])
@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([[]] * 900, pa.list_(pa.int8(), 0)), "rows of no bytes"),
        (pa.array([[1, 2]] * 900, pa.list_(pa.int8())), "is damaged"),
    ],
)
def test_more_rows_than_a_table_has_bytes_for_are_refused(tmp_path, kind, column, says):
    """Arrow would count the bytes of lists whose offsets are nowhere in memory."""
    path = tmp_path / "t.arrow"
    if kind == "datasets":
        hf.Dataset(pa.table({"x": column})).save_to_disk(tmp_path)
        (path,) = tmp_path.glob("*.arrow")
    else:
        write(path, pa.table({"x": column}), kind, 900)
    whole, count = path.read_bytes(), np.int64(900).tobytes()
    assert whole.count(count) == 2
    path.write_bytes(whole.replace(count, np.int64(2**50).tobytes()))
    source = HuggingFaceSource(str(tmp_path)) if kind == "datasets" else ParquetSource(str(path))
    with pytest.raises(FormatError, match=says):
        rows_of(source)


def test_equals_what_datasets_reads(tmp_path):
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
    found = rows_of(source)
    for mine, theirs in zip(found, expected, strict=True):
        assert list(mine) == list(theirs)
        assert np.array_equal(mine["image"], theirs["image"].transpose(2, 0, 1))
        assert np.array_equal(mine["grid"], theirs["grid"])
        assert mine["ids"].tolist() == theirs["ids"]
        assert (mine["label"], mine["text"]) == (theirs["label"], theirs["text"])


def test_grids_that_vary(tmp_path):
    features = hf.Features({"grid": hf.Array2D((None, 1), "float32")})
    dataset = hf.Dataset.from_dict({"grid": [[[1.0]], [[1.0], [2.0], [3.0]]]}, features=features)
    dataset.save_to_disk(str(tmp_path / "d"))
    with pytest.raises(FormatError, match="no field can have .*'grid' .*its tensors of shape .* vary"):
        HuggingFaceSource(str(tmp_path / "d")).parts(1)


def test_splits_of_datasets(tmp_path):
    one = hf.Dataset.from_dict({"x": [1, 2]})
    nothing = one.select([])  # datasets 4.0 gives a column of no values no type

    def source(split=None, **splits):
        """Of a folder with these splits."""
        place = tmp_path / "-".join([*splits, *(str(len(part)) for part in splits.values())])
        hf.DatasetDict(splits).save_to_disk(str(place))
        return HuggingFaceSource(str(place), split=split)

    two = {"train": one, "test": one.select([0])}
    for split, wanted in (("train", [1, 2]), ("all", [1, 2, 1])):
        assert [row["x"] for row in rows_of(source(split, **two))] == wanted
    assert [row["x"] for row in rows_of(source("all", empty=nothing, train=one))] == [1, 2]
    described = [source(split, **two).describe() for split in ("all", "train", "test")]
    assert described[0]["files"] != described[1]["files"] != described[2]["files"]
    for split, splits, said in (
        (None, two, "it holds several splits: 'train', 'test'. Pass `split='train'`"),
        ("val", two, "there is no split 'val'. There are 'train', 'test'"),
        ("all", {"train": one, "other": hf.Dataset.from_dict({"x": ["a"]})}, "its splits do not go together"),
        ("empty", {"empty": nothing}, "empty-0: there is not one row"),
    ):
        with pytest.raises((FormatError, OptionError), match=said):
            source(split, **splits).parts(1)


def test_an_image_that_is_missing_spoils_its_row_alone(tmp_path):
    image = np.zeros((2, 2, 3), np.uint8)
    features = hf.Features({"image": hf.Image()})
    dataset = hf.Dataset.from_dict({"image": [image, None, {"bytes": b"\xff\xd8", "path": None}]}, features=features)
    dataset.save_to_disk(str(tmp_path / "d"))
    good, missing, damaged = items_of(HuggingFaceSource(str(tmp_path / "d")))
    assert good.make()["image"].shape == (3, 2, 2)
    with pytest.raises(FormatError, match="no image in row 1"):
        missing.make()
    with pytest.raises(FormatError, match="row 2: the image cannot be decoded"):
        damaged.make()


@pytest.mark.parametrize(
    ("column", "usual"),
    [
        (pa.array(["a", None]), ""),
        (pa.array(["a", None]).dictionary_encode(), ""),
        (pa.array([b"a", None]), ""),
        (pa.array([b"ab", None], pa.binary(2)), "00"),
        (pa.array([1, None]), -1),
        (pa.array([1, None], pa.uint8()), 0),
        (pa.array([True, None]), False),
        (pa.array([1, None], pa.date32()), 0),
        (pa.array([[True, None], [False]]), False),
    ],
)
def test_what_is_said_to_stand_for_a_missing_value_may_do_so(tmp_path, column, usual):
    with pytest.raises(FormatError, match=re.escape(f"`fill={{'x': {usual!r}}}`; or")):
        made_by(one_column(tmp_path, column))
    found = [one["x"] for one in rows_of(one_column(tmp_path, column, fill={"x": usual}))]
    if pa.types.is_list(column.type):
        assert found[0].tolist() == [True, False]
    else:
        assert found[1] in (usual, str(usual).encode())
    other = 0 if isinstance(usual, str) else "none"
    with pytest.raises(OptionError, match="Fill it with a value of that type"):
        items_of(one_column(tmp_path, column, fill={"x": other}))


def test_nothing_stands_for_a_missing_list(tmp_path):
    for options in ({}, {"fill": {"x": 0}}):
        with pytest.raises(FormatError, match=r"row 1: [^`]*\. Leave the row or the column out\.$"):
            rows_of(one_column(tmp_path, pa.array([[1], None]), **options))


@pytest.mark.skipif(int(pa.__version__.partition(".")[0]) < 26, reason="it does not fill such texts")
def test_texts_that_are_views_may_be_filled(tmp_path):
    column = pa.array(["a", None], pa.string_view())
    path = write(tmp_path / "a.arrow", pa.table({"x": column, "y": [1, 2]}), "file")
    assert [one["x"] for one in rows_of(ParquetSource(path, fill={"x": "none"}))] == ["a", "none"]


@pytest.mark.parametrize("many", ["files", "row groups", "columns"])
def test_a_folder_a_footer_and_a_schema_are_not_read_again_for_each_of_its_parts(tmp_path, monkeypatch, many):
    calls = []

    def counted(owner, name):
        call = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **options: calls.append(name) or call(*given, **options))

    counted(SourceFiles, "find")
    counted(pq, "read_metadata")
    found = []
    for count in (3, 30):
        source = tmp_path / f"{count}"
        for number in range(count if many == "files" else 1):
            folder = source / f"year={number % 3}"
            folder.mkdir(parents=True, exist_ok=True)
            columns = {f"x{number}": [0.5] * 30 for number in range(count if many == "columns" else 1)}
            rows = 30 // count if many == "row groups" else 30
            pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=rows)
        gdsload.convert(source, tmp_path / f"out-{count}", workers=1)
        found.append((calls.count("find"), 1 if many == "files" else calls.count("read_metadata")))
        calls.clear()
    assert found[0] == found[1] == (found[0][0], 1)


def test_a_row_group_has_no_more_rows_than_its_columns_have_values(tmp_path):
    """Else there would be no room for them, on any drive."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": [0.5] * 12345}), path, compression="none", write_statistics=False)
    content = path.read_bytes()
    said, more = b"\x16\xf2\xc0\x01", b"\x16\xfe\xff\x7f"  # 12345 and 2**20 - 1, as Thrift has them
    at = content.rindex(said)
    path.write_bytes(content[:at] + more + content[at + len(said) :])
    with pytest.raises(FormatError, match="promises 1048575 rows, more than its columns can have"):
        gdsload.convert(path, tmp_path / "out")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
