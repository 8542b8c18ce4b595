"""Schemas: equality, hash, JSON, and what they refuse."""

import pickle

import numpy as np
import pytest
import torch

from gdsload.errors import SchemaError
from gdsload.shards.format.schema import Field, Schema


def test_as_text_for_people():
    schema = Schema({
        "picture": Field("uint8", (3, 4, 5)), "label": Field("int64"), "tokens": Field("int32", (None,)), "text": "str",
        "photo": "image", "jpegs": Field("image", codecs=["jpeg"]),
    })  # fmt: skip
    said = "picture: uint8 [3, 4, 5], label: int64 [], tokens: int32 [*], text: str, photo: image, jpegs: image (jpeg)"
    assert str(schema) == said


def test_field_equality_and_hash():
    assert Field("float32", (2,)) == Field(torch.float32, [2]) == Field(np.float32, (2,))
    assert hash(Field("float32", (2,))) == hash(Field(torch.float32, [2]))
    assert Field("float32", (2,)) != Field("float32", (2, 1))
    assert Field("float32", (2,)) != Field("int32", (2,))
    assert Field("uint8", (None,)) != Field("str")
    assert Field("str") == Field(str) != Field("bytes")
    assert Field("str") != "str"


def test_schema_is_a_mapping_whose_order_counts():
    schema = Schema({"b": "int8", "a": Field("float32", (2,))})
    assert (list(schema), len(schema), schema["b"], "c" in schema) == (["b", "a"], 2, Field("int8"), False)
    with pytest.raises(KeyError, match="c"):
        schema["c"]
    same = Schema({"b": Field("int8"), "a": Field("float32", (2,))})
    assert (schema, hash(schema)) == (same, hash(same))
    assert schema not in (Schema({"a": Field("float32", (2,)), "b": "int8"}), Schema({"b": "int8"}), dict(schema))


def test_fixed_bytes_count_what_every_sample_takes():
    schema = Schema({"a": Field("float32", (2, 3)), "b": "int64", "c": "str", "d": Field("int8", (None, 7))})
    assert schema.fixed_bytes == 32


def test_repr_and_pickle():
    schema = Schema({"a": Field("float8_e4m3fn", (None, 3)), "b": "str", "c": "bool"})
    assert repr(schema).startswith("Schema({'a': Field('float8_e4m3fn', (None, 3)), 'b': Field('str'), 'c':")
    assert schema == eval(repr(schema), {"Schema": Schema, "Field": Field}) == pickle.loads(pickle.dumps(schema))


def test_json_form():
    schema = Schema({"a": Field("F8_E4M3", (None, 3)), "b": "str", "c": "bool", "d": bytes})
    tree = {
        "a": {"dtype": "float8_e4m3fn", "shape": [None, 3]},
        "b": {"dtype": "str"},
        "c": {"dtype": "bool", "shape": []},
        "d": {"dtype": "bytes"},
    }
    assert tree == schema.to_json()
    assert schema == Schema.from_json(tree)


@pytest.mark.parametrize(
    ("dtype", "shape", "complaint"),
    [
        ("float32", (2, None), "dimension 1 is None"),
        ("float32", (-1,), "dimension 0 is -1"),
        ("float32", (2.0,), "dimension 0 is 2.0"),
        ("float32", (True,), "dimension 0 is True"),
        ("float32", (0, 2**61), "more bytes than 64-bit"),
        ("float32", (2**31, 2**31), "more bytes than 64-bit"),
        ("float32", (1,) * 65, "65 dimensions"),
        *[(dtype, (3,), "has no shape") for dtype in ("str", "bytes", str, bytes)],
    ],
    ids=repr,
)
def test_shape_that_cannot_be_stored(dtype, shape, complaint):
    with pytest.raises(SchemaError, match=complaint):
        Field(dtype, shape)


def test_shape_at_the_limits():
    assert Field("uint8", (2**63 - 1,)).row_bytes == 2**63 - 1
    assert Field("uint8", (None, *(1,) * 63)).row_bytes == 1


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("", "at least one character"),
        (3, "at least one character"),
        ("__metadata__", "is reserved"),
        ("gdsload:pad:0", "is reserved"),
        ("\ud800", "no valid Unicode"),
    ],
    ids=repr,
)
def test_name_that_cannot_be_stored(name, complaint):
    with pytest.raises(SchemaError, match=complaint):
        Schema({name: "int8"})


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (None, "describes no field"),
        ({}, "describes no field"),
        ({"dtype": ["float32"]}, "describes no field"),
        ({"dtype": "float32", "shape": [], "order": "F"}, "is to be written"),
        ({"dtype": "float32", "shape": None}, "describes no field"),
        ({"dtype": "float32", "shape": {"0": 3}}, "describes no field"),
        ({"dtype": "float32", "shape": [3.0]}, "dimension 0 is 3.0"),
        ({"dtype": "float33", "shape": []}, "element type 'float33'"),
        ({"dtype": "str", "shape": [3]}, "has no shape"),
        ({"dtype": "str", "shape": []}, "is to be written"),
        ({"dtype": "float32"}, "is to be written"),
        ({"dtype": "F32", "shape": []}, "is to be written"),
        ({"dtype": "torch.float32", "shape": []}, "is to be written"),
    ],
    ids=repr,
)
def test_json_that_is_no_field(entry, complaint):
    with pytest.raises(SchemaError, match=complaint) as caught:
        Schema.from_json({"good": {"dtype": "bool", "shape": []}, "image": entry})
    assert caught.value.field == "image"


def test_a_schema_has_a_field():
    with pytest.raises(SchemaError, match="at least one field"):
        Schema({})
