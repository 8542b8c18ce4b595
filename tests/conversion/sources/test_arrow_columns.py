"""Columns of Arrow: lists, ragged however a table is cut; tensors in any order of their dimensions; numbers with holes."""

from __future__ import annotations

import io
import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import gdsload
from gdsload.conversion.sources.arrow_columns import table_items
from gdsload.conversion.sources.arrow_types import TableForm
from gdsload.errors import FormatError
from gdsload.shards.encode import infer_schema

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

LISTS = {"many": [[1, 2, 3]] * 70 + [[1, 2], [4]], "two": [[], [1]], "one": [[1]], "an empty one": [[]]}
ROWS = st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=3), st.none() | st.integers(0, 9)), min_size=1)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(ROWS, st.data())
def test_each_item_of_a_table_says_what_is_ragged(rows, data):
    table = pa.table({
        "x": pa.array([x for x, _ in rows], pa.list_(pa.int64())),
        "y": pa.array([y for _, y in rows], pa.int64()),
    })  # fmt: skip
    edges = sorted({0, *data.draw(st.lists(st.integers(0, len(rows)))), len(rows)})
    leaves, seen = TableForm().leaves(table.schema, "t"), []
    for low, high in pairwise(edges):
        for item in table_items(table.slice(low, high - low), leaves, low, "t"):
            try:
                values = item.make()
            except gdsload.FormatError:
                assert item.count == 1
                continue
            assert infer_schema(values, batch=True)["x"] == gdsload.Field("int64", (None,))
            numbers, offsets = values["x"]
            seen += [(one.tolist(), y) for one, y in zip(np.split(numbers, offsets[1:-1]), values["y"], strict=True)]
    assert seen == [row for row in rows if row[1] is not None]


@pytest.mark.parametrize("lists", LISTS)
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("kind", ["parquet, 1", "parquet, 1000", "arrow", "json", "memory"])
def test_lists_are_ragged_however_they_are_cut(tmp_path, lists, missing, kind):
    wanted = LISTS[lists]
    columns = {"tokens": pa.array([one for one in wanted for _ in range(1 + missing)], pa.list_(pa.int64()))}
    columns["y"] = pa.array([1, None] * len(wanted) if missing else [1] * len(wanted))
    path = written(tmp_path, pa.table(columns), kind)
    if kind == "json" and not any(wanted):
        pytest.skip("nothing tells what is in the lists")
    how = {"workers": 1, "on_error": "skip", "max_skipped": len(wanted)}
    report = gdsload.convert(path, tmp_path / "out", **how)
    assert (report.samples, len(report.skipped)) == (len(wanted), len(wanted) * missing)
    dataset = gdsload.ShardDataset(tmp_path / "out")
    assert dataset.schema["tokens"] == gdsload.Field("int64", (None,))
    assert [sample["tokens"].tolist() for sample in dataset] == wanted


BOXES = [[[1.0, 2.0, 3.0, 4.0]] * (number % 3) for number in range(90)]


@pytest.mark.parametrize("given", [None, "float64"])
@pytest.mark.parametrize("kind", ["parquet, 1", "parquet, 1000", "json", "memory"])
def test_empty_lists_of_lists_say_nothing_of_how_long_they_would_be(tmp_path, kind, given):
    """Also where they come alone, beside rows that lack a value."""
    table = pa.table({
        "boxes": pa.array([one for one in BOXES for _ in range(2)], pa.list_(pa.list_(pa.float64()))),
        "y": pa.array([1, None] * len(BOXES), pa.int64()),
    })  # fmt: skip
    schema = given and {"boxes": gdsload.Field(given, (None, 4)), "y": gdsload.Field("int64", ())}
    how = {"workers": 1, "on_error": "skip", "max_skipped": len(BOXES)}
    report = gdsload.convert(written(tmp_path, table, kind), tmp_path / "out", schema=schema, **how)
    assert len(report.skipped) == len(BOXES)
    dataset = gdsload.ShardDataset(tmp_path / "out")
    assert dataset.schema["boxes"] == gdsload.Field("float64", (None, 4))
    assert [sample["boxes"].tolist() for sample in dataset] == BOXES


@pytest.mark.parametrize("shape", [(0, 0, 0), (0, 0, 3), (0, 8, 0)])
def test_an_empty_picture_is_none_of_a_ragged_field(tmp_path, shape):
    """Or pictures with other channels would be taken behind it."""
    pictures = [np.zeros((3, 8, 8), np.uint8)] * 5 + [np.zeros(shape, np.uint8)]
    with pytest.raises(gdsload.SchemaError, match="samples differ"):
        gdsload.convert([{"x": one} for one in pictures], tmp_path / "out", workers=1)


@pytest.mark.parametrize("shape", [(0, 5), (0,), (0, 3, 0)])
def test_an_empty_array_that_tells_another_shape_is_refused(tmp_path, shape):
    with gdsload.ShardWriter(tmp_path / "d", {"x": gdsload.Field("float32", (None, 3))}) as writer:
        writer.write({"x": np.zeros((0, 0), np.float32)})
        with pytest.raises(gdsload.SchemaError, match="was expected"):
            writer.write({"x": np.zeros(shape, np.float32)})
    assert [sample["x"].shape for sample in gdsload.ShardDataset(tmp_path / "d")] == [(0, 3)]


def test_empty_lists_of_lists_beside_images(tmp_path, converted):
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    images = pa.array([{"bytes": file.getvalue(), "path": "a.png"}] * len(BOXES))
    boxes = pa.array(BOXES, pa.list_(pa.list_(pa.float64())))
    pq.write_table(pa.table({"image": images, "boxes": boxes}), tmp_path / "t.parquet")
    dataset = converted(tmp_path / "t.parquet")
    assert dataset.schema["boxes"] == gdsload.Field("float64", (None, 4))
    assert [sample["boxes"].tolist() for sample in dataset] == BOXES


def written(folder, table, kind):
    name, _, step = kind.partition(", ")
    path = folder / f"t.{'jsonl' if name == 'json' else name}"
    if name == "parquet":
        pq.write_table(table, path, row_group_size=int(step))
    elif name == "arrow":
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=1)
    elif name == "json":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    return table if name == "memory" else path


def test_a_line_of_json_beside_a_broken_one_is_ragged_too(tmp_path, left_out):
    """Then all are read one by one."""
    rows = ['{"x": [1, 2], "y": 1}'] * 70 + ['{"x": [1,', '{"x": [3], "y": 1}']
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    dataset = left_out(tmp_path / "t.jsonl", {"row 70": "the line is no JSON"})
    assert (dataset.schema["x"].shape, dataset[70]["x"].tolist()) == ((None,), [3])


def test_a_row_that_does_not_fit_is_named_alone(tmp_path, left_out):
    """Also one that is a batch by itself."""
    table = pa.table({"x": pa.array([[1, 2]] * 70 + [[3]], pa.list_(pa.int64()))})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1)
    reasons = {"row 70": "has shape [1], but [2] was expected"}
    left_out(tmp_path / "t.parquet", reasons, fixed=["x"], schema={"x": gdsload.Field("int64", (2,))})


def tensors(order, shape=(2, 3, 4)):
    """Two of Arrow's tensors, whose dimensions are in memory in another order."""
    size = math.prod(shape)
    storage = pa.array([list(range(size)), list(range(size, 2 * size))], pa.list_(pa.int32(), size))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), shape, permutation=order), storage)


def test_arrows_tensors(tmp_path, converted):
    array = tensors(None)
    pq.write_table(pa.table({"x": pa.chunked_array([array, array])}), tmp_path / "t.parquet")
    wanted = np.concatenate([array.to_numpy_ndarray()] * 2)
    assert np.array_equal(converted(tmp_path / "t.parquet").column("x").numpy(), wanted)


@pytest.mark.parametrize("order", [[0, 2, 1], [1, 2, 0]])
def test_tensors_whose_dimensions_are_in_another_order_are_refused(tmp_path, order):
    pq.write_table(pa.table({"x": tensors(order), "n": [1, 2]}), tmp_path / "t.parquet")
    with pytest.raises(FormatError, match=r"column 'x' .* in another order, .*. Leave it out: `fields=\['n'\]"):
        gdsload.convert(tmp_path / "t.parquet", tmp_path / "out", workers=1)


LARGE = [2**53 + 1, None, -(2**53) - 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: pa.table({"n": LARGE}),
        lambda: pa.table({"n": pa.chunked_array([LARGE[:2], LARGE[2:]], pa.int64())}),
        lambda: pytest.importorskip("pandas").DataFrame({"n": LARGE}, dtype="Int64"),
        lambda: pytest.importorskip("pandas").DataFrame({"n": LARGE}, dtype="object"),
        lambda: pytest.importorskip("polars").DataFrame({"n": LARGE}),
    ],
    ids=["Arrow", "chunks", "pandas", "objects", "polars"],
)
def test_large_whole_numbers_with_holes_are_never_floats(converted, make):
    assert converted(make(), fill={"n": 2**62 + 1}).column("n").tolist() == [2**53 + 1, 2**62 + 1, -(2**53) - 1]


def test_large_whole_numbers_with_holes_in_lists(tmp_path, converted):
    pq.write_table(pa.table({"n": [LARGE, [None, 2**53 + 1]]}), tmp_path / "t.parquet")
    dataset = converted(tmp_path / "t.parquet", fill={"n": -1})
    assert [sample["n"].tolist() for sample in dataset] == [[2**53 + 1, -1, -(2**53) - 1], [-1, 2**53 + 1]]
