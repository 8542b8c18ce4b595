"""From tensors, arrays and numbers to bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload import SchemaError
from gdsload.shards.format.dtypes import DTYPES, dtype_of
from gdsload.shards.values import as_bytes, checked, element_type, numpy_dtype, torch_dtype, torch_dtypes

SETTINGS = settings(derandomize=True, max_examples=150)


def test_numpys_type_is_that_of_torchs_arrays():
    kinds = {code: numpy_dtype(dtype) for code, dtype in DTYPES.items()}
    assert all(torch.empty(0, dtype=torch_dtypes()[code]).numpy().dtype == kind for code, kind in kinds.items() if kind)
    assert {DTYPES[code].name for code, kind in kinds.items() if kind is None} == {
        "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz",
    }  # fmt: skip


@SETTINGS
@given(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 3), st.booleans())
def test_bytes_of_a_tensor_of_any_strides(code, shape, axis, flip):
    dtype = DTYPES[code]
    raw = torch.arange(int(np.prod([*shape, 2, dtype.itemsize])), dtype=torch.int64).to(torch.uint8) & 1
    tensor = raw.view(torch_dtype(dtype)).reshape(*shape, 2)[..., axis % 2]
    if flip and tensor.ndim > 1:
        tensor = tensor.transpose(0, -1)
    found = as_bytes(tensor, dtype, "x")
    assert (*tensor.shape, dtype.itemsize) == found.shape
    assert (dtype, tuple(tensor.shape)) == element_type(tensor, "x")
    plain = torch.empty(tensor.shape, dtype=tensor.dtype)
    plain.copy_(tensor)
    assert bytes(plain.untyped_storage()) == found.tobytes()


@pytest.mark.parametrize("shape", [(0,), (1,), (1, 1), (0, 3), (3, 0)])
def test_strides_of_few_elements(shape):
    """torch calls a vector of one element contiguous whatever its stride, and then refuses to view its bytes."""
    tensor = torch.arange(100, dtype=torch.int32).as_strided(shape, (7,) * len(shape))
    assert tensor.contiguous().clone().numpy().tobytes() == as_bytes(tensor, DTYPES["I32"], "x").tobytes()


@pytest.mark.parametrize("tensor", [
    torch.complex(torch.ones(3), torch.arange(3.0)).conj(),
    torch.complex(torch.ones(3), torch.arange(3.0)).conj().imag,
    torch.nn.Parameter(torch.ones(3)), torch.ones(3, requires_grad=True) * 2,
    torch.ones(1).expand(3), torch.arange(9.0)[::4],
], ids=["conj", "neg", "parameter", "graph", "expanded", "steps"])  # fmt: skip
def test_bytes_of_tensors_that_are_not_plain(tensor):
    found = as_bytes(tensor, dtype_of(tensor.dtype), "x")
    assert (
        tensor.detach().resolve_conj().resolve_neg().tolist()
        == np.ascontiguousarray(found).view(np.complex64 if tensor.is_complex() else np.float32).reshape(-1).tolist()
    )


@SETTINGS
@given(
    st.sampled_from(["?", "u1", "i2", "u4", "i8", "f2", "f4", "f8", "c8"]),
    st.sampled_from(["<", ">", "="]),
    st.lists(st.integers(0, 4), max_size=3),
    st.booleans(),
)
def test_bytes_of_an_array_are_little_endian(kind, order, shape, turn):
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(order + kind)
    array = array.T if turn else array
    dtype, found_shape = element_type(array, "x")
    assert array.shape == found_shape
    assert array.astype("<" + kind).tobytes() == as_bytes(array, dtype, "x").tobytes()


@SETTINGS
@given(st.sampled_from(["float16", "float32", "float64", "bfloat16"]), st.floats(allow_nan=False))
def test_floats_are_rounded_or_refused(name, number):
    dtype = dtype_of(name)
    try:
        found = as_bytes(number, dtype, "x")
    except SchemaError as error:
        assert f"{number} does not fit {name}" in str(error)
        assert abs(number) > torch.finfo(torch_dtype(dtype)).max
    else:
        wanted = torch.tensor(number, dtype=torch.float64).to(torch_dtype(dtype))
        assert torch.equal(wanted, torch.from_numpy(found.copy()).view(torch_dtype(dtype))[0])


@pytest.mark.parametrize("code", sorted(DTYPES))
@pytest.mark.parametrize("zero", [0, 0.0, -0.0, np.float32(0.0)], ids=repr)
def test_zero_is_zero_or_refused(code, zero):
    dtype = DTYPES[code]
    if dtype.name == "float8_e8m0fnu":  # powers of two alone
        with pytest.raises(SchemaError, match=r"0 at \[1\] does not fit float8_e8m0fnu \(numbers from 5.87747e-39 to"):
            checked(np.asarray([1, zero]), zero, dtype, "x")
    else:
        assert not np.asarray(torch.as_tensor(checked(np.asarray([1, zero]), zero, dtype, "x"))[1].to(torch.complex64))


def test_bytes_are_a_view_where_they_can_be():
    array, tensor = np.arange(5), torch.arange(5)
    assert np.shares_memory(array, as_bytes(array, DTYPES["I64"], "x"))
    assert np.shares_memory(tensor.numpy(), as_bytes(tensor, DTYPES["I64"], "x"))


@pytest.mark.parametrize(("value", "message"), [
    ([[1], [2, 3]], "nested lists of different lengths have no shape"),
    (object(), "is no number or list of numbers"), ("a", "is no number or list of numbers"),
    (np.zeros(2, "M8[s]"), "element type 'datetime64\\[s\\]' cannot be stored"),
    (np.zeros(2, "S3"), "element type 'bytes24' cannot be stored"), (np.zeros(2, object), "element type 'object'"),
    (torch.zeros(2, dtype=torch.complex128), "element type 'torch.complex128' cannot be stored"),
    (torch.zeros(2, 2).to_sparse(), "a tensor of layout torch.sparse_coo cannot be stored. Make it dense"),
    ([torch.zeros(1), 3], "the list cannot be made one tensor"),
    ([-1, 2**63], "its numbers fit neither 64 bits with a sign nor without"),
])  # fmt: skip
def test_what_has_no_element_type(value, message):
    with pytest.raises(SchemaError, match=f"field 'x': .*{message}"):
        element_type(value, "x")


@pytest.mark.parametrize(
    "value",
    [
        [0.5, 2**53 + 1],
        [2**53 + 1, float("nan")],
        [[1, 2**53 + 1], [0.5, 1]],
        [np.int64(2**53 + 1), 0.5],
        [0.5, np.array(2**53 + 1)],
        [torch.tensor(2**24 + 1), torch.tensor(0.5)],
        [np.array([2**53 + 1]), np.array([0.5])],
    ],
)
def test_whole_numbers_among_floats_are_never_rounded(value):
    with pytest.raises(SchemaError, match=r"9007199254740993 (is among|at \[0\])|16777217 does not fit float32"):
        element_type(value, "x")


def test_whole_numbers_of_two_types_stay_what_they_are():
    """NumPy makes floats of them."""
    assert as_bytes([np.uint64(2**53 + 1), np.int64(-1)], dtype_of("int64"), "x").view("<i8")[:, 0].tolist() == [
        2**53 + 1,
        -1,
    ]
    with pytest.raises(SchemaError, match="its numbers fit neither 64 bits with a sign nor without"):
        element_type([np.uint64(2**63), np.int64(-1)], "x")


def _columns(numbers):
    pandas, polars, arrow = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    return [
        pandas.Series(numbers, dtype="Int64"),
        pandas.Series(numbers, dtype="UInt64"),
        pandas.Series(numbers, dtype="category"),
        polars.Series(numbers),
        arrow.array(numbers),
        arrow.chunked_array([numbers[:1], numbers[1:]]),
    ]


def test_columns_that_lack_a_whole_number_are_refused():
    """NumPy makes floats of them, which round the others."""
    for column in _columns([2**53 + 1, None]):
        for value in (column, [column, column]):
            with pytest.raises(SchemaError, match="a whole number is missing, .* x.fillna"):
                element_type(value, "x")
    for column in _columns([2**53 + 1, 2]):
        assert as_bytes(column, element_type(column, "x")[0], "x").view("<i8")[:, 0].tolist() == [2**53 + 1, 2]


def test_a_table_of_whole_numbers_and_floats_is_no_value():
    for library in map(pytest.importorskip, ("pandas", "polars")):
        with pytest.raises(SchemaError, match="it is a table, .* Make a field of each column"):
            element_type(library.DataFrame({"a": [2**53 + 1], "b": [0.5]}), "x")
        assert element_type(library.DataFrame({"a": [2**53 + 1]}), "x")[1] == (1, 1)


@given(st.lists(st.floats(allow_nan=False) | st.integers(-(2**53), 2**53), min_size=1, max_size=3))
def test_python_floats_and_whole_numbers_among_them_are_what_they_were(values):
    dtype, _ = element_type([0.5, *values], "x")
    assert as_bytes([0.5, *values], dtype, "x").view("<f8")[1:, 0].tolist() == values
    for kind in (np.float16, np.float32, np.float64):
        assert element_type([kind(0.5), kind(2)], "x") == (dtype_of(np.dtype(kind)), (2,))
