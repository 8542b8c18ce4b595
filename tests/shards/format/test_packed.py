"""Packed columns: which fields are packed, and where they are in a row."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gdsload.errors import SchemaError
from gdsload.shards.encode import batch_rows, column_rows
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.stored import StoredSchema, pack_rule, packed_by
from gdsload.shards.values import torch_dtype
from tests.shards.format.shard_files import stored_schemas

SETTINGS = settings(derandomize=True, max_examples=80)
SCALARS = {name: Field(kind) for name, kind in zip("abcd", ("bool", "int64", "float16", "int32"), strict=True)}


@SETTINGS
@given(stored_schemas())
def test_fields_are_laid_out_as_in_a_struct(stored):
    for number, names in enumerate(stored.packed):
        column, end, largest = f"gdsload:rows:{number}", 0, 1
        assert list(names) == list(stored.places[column])
        for name, begin in stored.places[column].items():
            size = stored.schema[name].dtype.itemsize
            assert begin % size == 0
            assert end <= begin < end + size
            end, largest = begin + stored.schema[name].row_bytes, max(largest, size)
        row_bytes = stored.columns[column].row_bytes
        assert row_bytes % largest == 0
        assert end <= row_bytes < end + largest
    assert sorted(name for names in stored.columns_of(stored.schema).values() for name in names) == sorted(
        stored.schema
    )


@SETTINGS
@given(stored_schemas(), st.integers(0, 20))
def test_rows_have_each_field_at_its_place(stored, samples):
    """And zeros between them."""
    fixed = {name: field for name, field in stored.schema.items() if not field.ragged}
    assume(fixed)
    stored, generator = StoredSchema(Schema(fixed), stored.packed), np.random.default_rng(samples)
    raw = {name: generator.integers(0, 2, (samples, field.row_bytes), np.uint8) for name, field in fixed.items()}
    found = column_rows(stored, batch_rows(stored.schema, {
        name: torch.from_numpy(raw[name].reshape(-1)).view(torch_dtype(field.dtype)).reshape(samples, *field.row_shape)
        for name, field in fixed.items()
    }))  # fmt: skip
    assert list(found) == list(stored.columns)
    for column, places in stored.places.items():
        rows = np.zeros((samples, stored.columns[column].row_bytes), np.uint8)
        for name, begin in places.items():
            rows[:, begin : begin + fixed[name].row_bytes] = raw[name]
        assert rows.tobytes() == found[column].data.tobytes()


def test_small_fields_are_packed_by_themselves_if_there_are_some():
    wide = {"wide": Field("int64", (3,)), "none": Field("int8", (0,)), "text": "str", "r": Field("int8", (None,))}
    assert packed_by(Schema({**SCALARS, **wide}), "auto").packed == (("b", "d", "c", "a"),)
    assert packed_by(Schema({**wide, **dict(list(SCALARS.items())[:3])}), "auto").packed == ()
    assert packed_by(Schema({**SCALARS, "e": Field("uint8", (16,)), "f": Field("uint8", (17,))}), "auto").packed == (
        ("b", "d", "c", "a", "e"),
    )
    assert packed_by(Schema(SCALARS), ()).packed == ()


def test_fields_of_one_type_and_shape_are_neighbours():
    kinds = [("float32", ()), ("int32", ()), ("float32", (2,)), ("float64", ())] * 3
    schema = Schema({f"f{number:02}": Field(*kind) for number, kind in enumerate(kinds)})
    assert packed_by(schema, "auto").packed == (
        ("f03", "f07", "f11", "f00", "f04", "f08", "f02", "f06", "f10", "f01", "f05", "f09"),
    )


@SETTINGS
@given(stored_schemas())
def test_nothing_but_the_end_of_a_row_is_lost(stored):
    able = [name for name, field in stored.schema.items() if not field.ragged and field.row_bytes]
    found = packed_by(stored.schema, able)
    if able:
        used = sum(stored.schema[name].row_bytes for name in able)
        assert used <= found.columns["gdsload:rows:0"].row_bytes < used + 8


@pytest.mark.parametrize("rule", [["d", "a"], {"a": 1, "d": 2}, ["a", "d", "a"], iter("da")])
def test_named_fields_are_packed(rule):
    assert packed_by(Schema(SCALARS), pack_rule(rule)).packed == (("d", "a"),)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nobody", "the schema has no field 'nobody'"),
        ("text", "the field 'text' is not fixed"),
        ("r", "the field 'r' is not fixed"),
        ("none", "the field 'none' has no bytes"),
    ],
)
def test_what_cannot_be_packed_is_refused(name, says):
    schema = Schema({"x": Field("int8"), "text": "str", "r": Field("int8", (None,)), "none": Field("int8", (0,))})
    with pytest.raises(SchemaError, match=f"it cannot be packed: {says}"):
        packed_by(schema, ("x", name))
