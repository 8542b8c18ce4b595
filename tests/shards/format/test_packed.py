"""Packed columns, version 2 of the format: what is laid out is found again, and lies where the text says."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.errors import OptionError, SchemaError
from gdsload.shards.encode import batch_rows, column_rows
from gdsload.shards.format.dtypes import DTYPES
from gdsload.shards.format.index import INDEX_NAME, Index, IndexEntry, parse_index
from gdsload.shards.format.layout import ShardLayout
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.stored import StoredSchema, pack_rule, packed_by, read_packed
from tests.shards.format.shard_files import SHA, file_of, random_payloads, shard_of, tree_of

SETTINGS = settings(derandomize=True, deadline=None, max_examples=80)
SCALARS = {name: Field(kind) for name, kind in zip("abcd", ("bool", "int64", "float16", "int32"), strict=True)}


@st.composite
def stored_schemas(draw: st.DrawFn) -> StoredSchema:
    """Any fields, any of those that can be packed in any order in one to three columns."""
    fields: dict[str, Field] = {}
    for number in range(draw(st.integers(1, 8))):
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        code = draw(st.sampled_from(sorted(DTYPES)))
        ragged = draw(st.sampled_from([False, False, False, True]))
        fields[f"f{number}"] = Field(code, (None, *shape) if ragged else tuple(shape))
    schema = Schema(fields)
    able = [name for name, field in schema.items() if not field.ragged and field.row_bytes]
    chosen = draw(st.lists(st.sampled_from(able), unique=True)) if able else []
    edges = [0, *sorted(draw(st.sets(st.integers(1, max(len(chosen) - 1, 1)), max_size=2))), len(chosen)]
    columns = [tuple(chosen[low:high]) for low, high in pairwise(edges)]
    return StoredSchema(schema, tuple(names for names in columns if names))


@st.composite
def layouts(draw: st.DrawFn) -> ShardLayout:
    stored = draw(stored_schemas())
    ragged = [name for name, field in stored.schema.items() if field.ragged]
    rows = {name: draw(st.integers(0, 40)) for name in ragged}
    return ShardLayout(stored.schema, draw(st.integers(1, 300)), rows, {name: name for name in ragged}, stored.packed)


@SETTINGS
@given(layouts())
def test_shard_reads_back_what_was_laid_out(layout):
    payloads = random_payloads(layout)
    raw = file_of(layout, payloads)
    shard = shard_of(raw)
    assert (layout.stored, layout.samples) == (shard.stored, shard.samples)
    assert list(layout.stored.columns) == list(shard.columns)
    for name, column in shard.columns.items():
        nbytes = column.rows * shard.stored.columns[name].row_bytes
        assert column.begin % 4096 == 0
        assert raw[column.begin : column.begin + nbytes] == payloads[name]


@SETTINGS
@given(layouts())
def test_safetensors_finds_the_rows(layout):
    payloads = random_payloads(layout)
    found = dict(safetensors.deserialize(file_of(layout, payloads)))
    for number, names in enumerate(layout.packed):
        rows = found[f"gdsload:rows:{number}"]
        assert (rows["dtype"], rows["shape"][0]) == ("U8", layout.samples)
        assert bytes(rows["data"]) == payloads[f"gdsload:rows:{number}"]
        assert not found.keys() & set(names)


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
def test_rows_are_what_numpy_makes_of_them(stored, samples):
    """Also those bytes that are no field's: numpy's are zeros, too."""
    generator, values = np.random.default_rng(samples), {}
    for name, field in stored.schema.items():
        raw = generator.integers(0, 2, (samples, field.row_bytes), np.uint8)
        values[name] = (field, raw)
    batch = {
        name: torch.from_numpy(raw.reshape(-1)).view(_torch(field)).reshape(samples, *field.row_shape)
        if not field.ragged
        else (torch.empty((0, *field.row_shape), dtype=_torch(field)), np.zeros(samples + 1, np.int64))
        for name, (field, raw) in values.items()
    }
    found = column_rows(stored, batch_rows(stored.schema, batch))
    assert list(found) == list(stored.columns)
    for column, places in stored.places.items():
        row_bytes = stored.columns[column].row_bytes
        formats = [f"V{stored.schema[name].row_bytes}" for name in places]
        record = np.dtype(
            {"names": list(places), "formats": formats, "offsets": list(places.values()), "itemsize": row_bytes}
        )
        rows = np.zeros(samples, record)
        for name in places:
            raw = values[name][1]
            rows[name] = raw.view(f"V{raw.shape[1]}")[:, 0]
        assert rows.tobytes() == found[column].data.tobytes()


def _torch(field: Field) -> torch.dtype:
    return getattr(torch, field.dtype.name)


def test_version_is_the_lowest_that_says_it_all():
    schema = Schema({"x": Field("int32"), "y": Field("int32")})
    for packed, version in (((), 1), ((("x",),), 2)):
        tree = tree_of(ShardLayout(schema, 3, {}, {}, packed).header())
        assert tree["__metadata__"]["gdsload.version"] == str(version)
        assert ("packed" in json.loads(tree["__metadata__"]["gdsload.schema"])) == (version == 2)
        assert json.loads(Index(schema, (), packed).to_bytes())["version"] == version


def test_metadata_of_a_packed_shard():
    schema = Schema({"x": Field("int32"), "text": "str", "y": Field("int64")})
    tree = tree_of(ShardLayout(schema, 3, {"text": 5}, {"text": "text"}, (("y", "x"),)).header())
    metadata = tree.pop("__metadata__")
    assert json.loads(metadata["gdsload.schema"]) == {
        "fields": schema.to_json(),
        "offsets": {"text": "text"},
        "packed": [["y", "x"]],
    }
    assert tree["gdsload:rows:0"] == {"dtype": "U8", "shape": [3, 16], "data_offsets": [4096, 4144]}
    assert [name for name in tree if "pad" not in name] == ["gdsload:offsets:text", "gdsload:rows:0", "text"]


@SETTINGS
@given(stored_schemas(), st.lists(st.integers(1, 2**40), max_size=3))
def test_index_reads_back_what_was_written(stored, counts):
    shards = tuple(IndexEntry(f"{number}.safetensors", count, 8192, SHA) for number, count in enumerate(counts))
    index = Index(stored.schema, shards, stored.packed)
    found = parse_index(index.to_bytes(), INDEX_NAME)
    assert (index, stored) == (found, found.stored)
    assert index.to_bytes() == found.to_bytes()


def test_form_of_the_index():
    index = Index(Schema(SCALARS), (IndexEntry("0.safetensors", 7, 8192, SHA),), (("b", "a"), ("d",)))
    tree = json.loads(index.to_bytes())
    assert list(tree) == ["format", "version", "samples", "schema", "packed", "shards", "sha256"]
    assert (tree["version"], tree["packed"]) == (2, [["b", "a"], ["d"]])
    assert index.digest() != Index(index.schema, index.shards, (("a", "b"), ("d",))).digest()


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


@pytest.mark.parametrize("rule", ["a", None, 3, [1], b"a"])
def test_what_is_no_rule_is_refused(rule):
    with pytest.raises(OptionError, match="pack_fields is"):
        pack_rule(rule)


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


def test_rows_that_no_offset_could_address_are_refused():
    schema = Schema({name: Field("uint8", (2**62,)) for name in "abc"})
    assert read_packed(schema, {"packed": [["a"], ["b"]]}, (2,)) == ((("a",), ("b",)), [])
    assert read_packed(schema, {"packed": [["a", "b", "c"]]}, (2,))[1] == [
        "packed[0]: a row has more bytes than 64-bit offsets can address"
    ]
