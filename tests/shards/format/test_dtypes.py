"""Element types by any of their names."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from gdsload.errors import SchemaError
from gdsload.shards.format.dtypes import DTYPES, SUB_BYTE_DTYPES, dtype_of

NUMPY_NAMES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64", "complex64",
]  # fmt: skip


def scalar_type(name: str) -> type:
    """A type as ml_dtypes makes them: known by its name alone."""
    return type(name, (), {})


@pytest.mark.parametrize("code", sorted(DTYPES))
def test_code_and_name_and_dtype_name_the_same(code):
    dtype = DTYPES[code]
    assert code == dtype.code
    assert dtype == dtype_of(code)
    assert dtype == dtype_of(dtype.name)
    assert dtype == dtype_of(f"torch.{dtype.name}")
    assert dtype == dtype_of(dtype)
    assert dtype == dtype_of(scalar_type(dtype.name))
    assert dtype == dtype_of(getattr(torch, dtype.name))
    assert dtype == pickle.loads(pickle.dumps(dtype))
    assert dtype.itemsize == getattr(torch, dtype.name).itemsize


@pytest.mark.parametrize("name", NUMPY_NAMES)
def test_numpy_dtype_and_scalar_type(name):
    numpy_dtype = np.dtype(name)
    assert name == dtype_of(numpy_dtype).name
    assert name == dtype_of(numpy_dtype.type).name
    assert numpy_dtype.itemsize == dtype_of(numpy_dtype).itemsize


def test_python_bool_is_bool():
    assert dtype_of(bool).code == "BOOL"


def test_names_are_unique():
    assert len(DTYPES) == len({dtype.name for dtype in DTYPES.values()})
    assert not SUB_BYTE_DTYPES & DTYPES.keys()


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (np.dtype("complex128"), "complex128"),
        (torch.float4_e2m1fn_x2, "torch.float4_e2m1fn_x2"),
        ("F4", "F4"),
        (scalar_type("int4"), "int4"),
        (np.dtype(object), "object"),
        (np.dtype("datetime64[ns]"), "datetime64[ns]"),
        (np.dtype([("a", "f4"), ("b", "i4")]), "void64"),
        (np.dtype("U5"), "str160"),
        (float, "float"),
        (None, "None"),
        ("torch.F32", "torch.F32"),
        ("Float32", "Float32"),
    ],
    ids=repr,
)
def test_refused(value, named):
    with pytest.raises(SchemaError, match="cannot be stored") as caught:
        dtype_of(value, "image")
    assert f"field 'image': element type {named!r}" in str(caught.value)
    assert "Supported are bfloat16, bool, " in str(caught.value)
    assert caught.value.field == "image"
