"""Element types by any of their names."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from gdsload.errors import SchemaError
from gdsload.shards.format.dtypes import DTYPES, dtype_of


def scalar_type(name: str) -> type:
    """A type as ml_dtypes makes them: known by its name alone."""
    return type(name, (), {})


@pytest.mark.parametrize("code", sorted(DTYPES))
def test_code_and_name_and_dtype_name_the_same(code):
    dtype = DTYPES[code]
    assert code == dtype.code
    theirs = getattr(torch, dtype.name)
    ways = [code, dtype.name, f"torch.{dtype.name}", dtype, scalar_type(dtype.name), theirs]
    ways += [bool] * (code == "BOOL")
    if hasattr(np, dtype.name):
        ways += [np.dtype(dtype.name), np.dtype(dtype.name).type]
        assert np.dtype(dtype.name).itemsize == dtype.itemsize
    assert {dtype_of(way) for way in ways} == {dtype} == {pickle.loads(pickle.dumps(dtype))}
    assert dtype.itemsize == theirs.itemsize


@pytest.mark.parametrize(("value", "named"), [
    (np.dtype("complex128"), "complex128"), (torch.float4_e2m1fn_x2, "torch.float4_e2m1fn_x2"), ("F4", "F4"),
    (scalar_type("int4"), "int4"), (np.dtype(object), "object"), (np.dtype("datetime64[ns]"), "datetime64[ns]"),
    (np.dtype([("a", "f4"), ("b", "i4")]), "void64"), (np.dtype("U5"), "str160"), (float, "float"), (None, "None"),
    ("torch.F32", "torch.F32"), ("Float32", "Float32"),
], ids=repr)  # fmt: skip
def test_refused(value, named):
    with pytest.raises(SchemaError, match="cannot be stored") as caught:
        dtype_of(value, "image")
    assert f"field 'image': element type {named!r}" in str(caught.value)
    assert "Supported are bfloat16, bool, " in str(caught.value)
    assert caught.value.field == "image"
