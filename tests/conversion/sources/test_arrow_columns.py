"""Columns of Arrow: lists, ragged however a table is cut; tensors in any order of their dimensions; numbers with holes."""

import json
import math
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gdsload
from gdsload.conversion.part import samples_of
from gdsload.conversion.sources.memory_tables import TableInMemory
from gdsload.conversion.sources.parquet_files import ParquetSource
from gdsload.errors import FormatError
from gdsload.shards.encode import infer_schema
from tests.conversion.reading import items_of, plain

PYARROW = int(pa.__version__.partition(".")[0])

NUMBERS = st.integers(-9, 9)
COLUMNS = [
    (pa.int64(), NUMBERS, 7), (pa.uint8(), st.integers(0, 9), 7), (pa.bool_(), st.booleans(), True),
    (pa.float32(), NUMBERS.map(float), None), (pa.timestamp("ms"), NUMBERS, 7), (pa.date32(), NUMBERS, 7),
    (pa.string(), st.text(max_size=2), "b"), (pa.large_binary(), st.binary(max_size=2), "b"),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from("xy"), "b"),
]  # fmt: skip
"""Types, their values, and what may stand for one."""


@st.composite
def columns(draw):
    """A column as Python has it, maybe of lists or structs, its type, and what stands for a missing value."""
    kind, values, fill = draw(st.sampled_from(COLUMNS))
    for shape in (
        draw(st.sampled_from(["", "", "l", "f", "fl", "s"])) if kind == pa.int64() or kind == pa.float32() else ""
    ):
        sizes = {"min_size": 2, "max_size": 2} if shape == "f" else {"max_size": 3}
        values = st.none() | values
        values = st.fixed_dictionaries({"a": values}) if shape == "s" else st.lists(values, **sizes)
        kind = {"l": pa.list_(kind), "f": pa.list_(kind, 2), "s": pa.struct({"a": kind})}[shape]
    return draw(st.lists(st.none() | values, min_size=5, max_size=5)), kind, draw(st.sampled_from([None, fill]))


def expected(value, kind, fill):
    """The rows of a value; a ValueError, if it has a hole."""
    if pa.types.is_struct(kind):
        return expected(value and value["a"], kind[0].type, fill)
    if (value is None and not hasattr(kind, "value_type")) or (value is None and pa.types.is_dictionary(kind)):
        if fill is None and not pa.types.is_floating(kind):
            raise ValueError
        return math.nan if fill is None else fill.encode() if pa.types.is_large_binary(kind) else fill
    if value is None:
        raise ValueError
    return [expected(one, kind.value_type, fill) for one in value] if isinstance(value, list) else value


UNEVEN = [[[1], [2]], [[], []], None, [[3], [4]], [[5], [6]]]


@settings(max_examples=60)
@example(column=(UNEVEN, pa.list_(pa.list_(pa.int64())), None), edges=[], form="file")
@example(column=(UNEVEN, pa.list_(pa.list_(pa.int64()), 2), None), edges=[], form="file")
@given(
    column=columns(), edges=st.lists(st.integers(0, 5)), form=st.sampled_from(["parquet", "file", "stream", "memory"])
)
def test_values_are_those_of_the_table_and_a_hole_is_a_fault_of_its_row_alone(column, edges, form, tmp_path_factory):
    """However the rows are cut, and lists are seen to be ragged in each item."""
    values, kind, fill = column
    if form == "parquet" and PYARROW < 26:
        form = "file"  # it cannot write lists of one length that are missing
    whole = pa.table({"x": pa.array(values, kind), "n": range(5)})
    cuts = sorted({0, *edges, 5})
    table = pa.concat_tables([whole.slice(low, high - low) for low, high in pairwise(cuts)])
    name = "x.a" if pa.types.is_struct(kind) else "x"
    options = {} if fill is None else {"fill": {name: fill}}
    if form == "memory":
        source = TableInMemory(table, **options)
    else:
        path = tmp_path_factory.mktemp("table") / f"t.{form}"
        if form == "parquet":
            pq.write_table(table, path, row_group_size=2)
        else:
            with pa.OSFile(str(path), "wb") as out, getattr(pa.ipc, f"new_{form}")(out, table.schema) as writer:
                writer.write_table(table)
        source = ParquetSource(str(path), **options)
    wanted = []
    for number, value in enumerate(values):
        try:
            wanted.append({name: expected(value, kind, fill), "n": number})
        except ValueError:
            wanted.append(f"row {number}: column '{name}' has no value, or one with a hole")
    found = []
    for item in items_of(source, 100):
        try:
            batch = item.make()
        except FormatError as error:
            assert item.count == 1
            found.append(next((one for one in wanted if isinstance(one, str) and one in str(error)), str(error)))
        else:
            assert not pa.types.is_list(kind) or infer_schema(batch, batch=True)["x"].shape[0] is None
            found += [plain(one.make()) for one in samples_of(item)]
    assert str(found) == str(wanted)


BOXES = [[[1.0, 2.0, 3.0, 4.0]] * (number % 3) for number in range(12)]


@pytest.mark.parametrize(
    ("given", "kind"), [("float64", "parquet"), (None, "parquet"), (None, "json"), (None, "memory")]
)
def test_empty_lists_of_lists_say_nothing_of_how_long_they_would_be(tmp_path, left_out, kind, given):
    """Also where they come alone, beside rows that lack a value."""
    table = pa.table({
        "boxes": pa.array([one for one in BOXES for _ in range(2)], pa.list_(pa.list_(pa.float64()))),
        "y": pa.array([1, None] * len(BOXES), pa.int64()),
    })  # fmt: skip
    schema = given and {"boxes": gdsload.Field(given, (None, 4)), "y": gdsload.Field("int64", ())}
    reasons = {f"row {number}": "'y' has no value" for number in range(1, 2 * len(BOXES), 2)}
    dataset = left_out(written(tmp_path, table, kind), reasons, schema=schema)
    assert dataset.schema["boxes"] == gdsload.Field("float64", (None, 4))
    assert [sample["boxes"].tolist() for sample in dataset] == BOXES


@pytest.mark.parametrize("shape", [(0, 0, 0), (0, 0, 3), (0, 8, 0)])
def test_an_empty_picture_is_none_of_a_ragged_field(tmp_path, shape):
    """Or pictures with other channels would be taken after it."""
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


def written(folder, table, kind):
    path = folder / f"t.{'jsonl' if kind == 'json' else kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=1)
    elif kind == "json":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    return table if kind == "memory" else path


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
    with pytest.raises(FormatError, match=r"'x' .* in another order, .*. Take others, `fields=\['n'\]"):
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
