"""Casts: every value comes out as it was, rounded where that is what the cast is for, or is refused by name."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload.errors import SchemaError
from gdsload.shards.casts import cast, clip
from gdsload.shards.format.dtypes import dtype_of
from gdsload.shards.values import bounds, torch_dtype, torch_dtypes

REAL = sorted({str(dtype).removeprefix("torch.") for dtype in torch_dtypes().values()} - {"complex64"})
SOURCES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
]  # fmt: skip
EDGES = [
    0, 1, -1, 2, 127, 128, 255, 256, 257, 300, 448, 449, 65504, 65519, 65520,
    2**24 + 1, 2**53 + 1, 2**63 - 1, 2**64 - 1,
]  # fmt: skip
SPECIAL = [
    0.5, -0.0, 1e6, -1e39, 1e300, 5e-324, math.inf, -math.inf, math.nan,
    3.4028235677973366e38, 2.0**63, 2.0**64, -129.0,
]  # fmt: skip


def as_list(values):
    found = values.double() if isinstance(values, torch.Tensor) else values
    return found if isinstance(found, list) else found.tolist()


def is_whole(name):
    return name == "bool" or "int" in name


def may_become(old, new, name):
    """Return whether a value may be made that one: the rule, said with Python's exact numbers and no word of numpy's."""
    if is_whole(name):
        return math.isfinite(old) and Fraction(old) == Fraction(int(new))
    if isinstance(old, int | bool):
        return math.isfinite(new) and Fraction(old) == Fraction(new)
    if math.isnan(old) or math.isnan(new):
        return math.isnan(old) and math.isnan(new)
    if math.isinf(old) or math.isinf(new):
        return old == new
    return not (old < 0 < new or new < 0 < old) and abs(old) <= torch.finfo(torch_dtype(dtype_of(name))).max * (
        1 + 2**-8
    )


def drawn(source, data):
    """Some numbers of an element type, edges among them."""
    if is_whole(source):
        low, high = (0, 1) if source == "bool" else (int(np.iinfo(source).min), int(np.iinfo(source).max))
        element = st.integers(low, high) | st.sampled_from(
            [low, high, *(edge for edge in EDGES if low <= edge <= high)]
        )
    else:
        element = st.floats(width=int(source[5:])) | st.sampled_from([*EDGES, *SPECIAL]).map(float)
    with np.errstate(all="ignore"):
        return np.array(data.draw(st.lists(element, min_size=1, max_size=5))).astype(source)


@settings(max_examples=100)
@given(source=st.sampled_from(SOURCES), target=st.sampled_from(REAL), data=st.data())
def test_a_value_is_kept_or_refused(source, target, data):
    array = drawn(source, data)
    wanted, old = dtype_of(target), array.tolist()
    for value in (array, array.astype(array.dtype.newbyteorder(">")), torch.from_numpy(array.copy()), old):
        try:
            found = cast(value, wanted, "x")
        except SchemaError as error:
            # Refused: one of the values has no counterpart; alone it is refused as well, and the others are not.
            alone = [bad for one in old if (bad := refused(np.array(one).astype(source), wanted)) is not None]
            assert alone
            assert "field 'x': " in str(error)
            assert f"does not fit {target} (" in str(error)
        else:
            assert str(dtype_of(found.dtype).name) == target
            pairs = list(zip(old, as_list(found), strict=True))
            assert all(may_become(*pair, target) for pair in pairs), pairs


def refused(value, wanted):
    try:
        cast(value, wanted, "x")
    except SchemaError as error:
        return error
    return None


@settings(max_examples=100)
@given(source=st.sampled_from(SOURCES), target=st.sampled_from(REAL), data=st.data())
def test_what_is_beyond_is_clipped_and_counted(source, target, data):
    array, wanted = drawn(source, data), dtype_of(target)
    low, high = bounds(wanted)
    one_by_one = [refused(np.array(one).astype(source), wanted) is None for one in array.tolist()]
    beyond = [
        not kept and math.isfinite(one) and not low < Fraction(one) < high
        for kept, one in zip(one_by_one, array.tolist(), strict=True)
    ]
    if all(kept or far for kept, far in zip(one_by_one, beyond, strict=True)):
        found, count = clip(array, wanted, "x")
        assert count == sum(beyond)
        for new, old, far in zip(as_list(found), array.tolist(), beyond, strict=True):
            assert new == (high if old > 0 else low) if far else may_become(old, new, target)
    else:
        with pytest.raises(SchemaError, match="does not fit"):
            clip(array, wanted, "x")


@pytest.mark.parametrize(("workers", "batches"), [(1, True), (2, True), (1, False)])
def test_a_conversion_counts_what_it_has_clipped(tmp_path, workers, batches):
    np.savez(tmp_path / "t.npz", x=np.arange(-100, 900).reshape(500, 2), y=np.arange(500.0))
    how = {"casts": {"x": "uint8:clip", "y": "float16:clip"}, "shard_bytes": 200, "workers": workers}
    how |= {} if batches else {"map": f"{__name__}:same"}
    report = gdsload.convert(tmp_path / "t.npz", tmp_path / "out", **how)
    assert report.notes == (f"{100 + 644} values of 'x' were clipped",)
    x, wanted = gdsload.ShardDataset(tmp_path / "out").column("x"), np.arange(-100, 900).clip(0, 255)
    assert x.reshape(-1).tolist() == wanted.tolist()


def same(sample):
    return sample


def test_what_is_clipped_in_a_sample_that_is_left_out_is_not_counted(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.array([300.0, 2.5, 7.0]))
    how = {"casts": {"x": "uint8:clip"}, "on_error": "skip", "max_skipped": 1, "workers": 1}
    report = gdsload.convert(tmp_path / "t.npz", tmp_path / "out", **how)
    assert report.notes == ("1 value of 'x' was clipped",)
    assert "2.5 does not fit uint8" in report.skipped[0].reason


@pytest.mark.parametrize(
    ("value", "target", "message"),
    [
        (np.array([1, 2, 65536, 128255]), "uint16", r"65536 at \[2\] does not fit uint16 \(whole numbers from 0 to 65535\)"),
        (np.array([[1, 300]]), "uint8", r"300 at \[0, 1\] does not fit uint8 \(whole numbers from 0 to 255\)"),
        (np.array([1.0, np.nan]), "int32", r"nan at \[1\] does not fit int32"),
        (np.array(2), "bool", r"2 does not fit bool \(0 and 1\)"),
        (np.array(1e6), "float16", r"1000000.0 does not fit float16 \(numbers up to 65504, whole numbers exactly up to 2048\)"),
        (np.array(2**53 + 1), "float64", "9007199254740993 does not fit float64 .*exactly up to 9007199254740992"),
        (np.array([1.0, 0.0]), "float8_e8m0fnu", r"0.0 at \[1\] does not fit float8_e8m0fnu \(numbers from 5.87"),
        (np.array(1e39 + 0j), "complex64", "does not fit complex64"),
        (np.array(1j), "float32", "1j is complex, but float32"),
        (torch.tensor(300.0, dtype=torch.bfloat16), "uint8", "300.0 does not fit uint8"),
        (["a"], "uint8", "'a'.* is no number"),
    ],
)  # fmt: skip
def test_what_would_be_lost(value, target, message):
    with pytest.raises(SchemaError, match=f"field 'x': .*{message}"):
        cast(value, dtype_of(target), "x")


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [
        (0.1, "float16", 0.0999755859375), (0.1, "bfloat16", 0.10009765625), (300.0, "float8_e4m3fn", 288.0),
        (1e-300, "float32", 0.0), (np.inf, "float16", np.inf), (-np.inf, "bfloat16", -np.inf),
        (2.0**62, "int64", 2**62), (255.0, "uint8", 255), (True, "float8_e5m2", 1.0), (2**63, "float64", 2.0**63),
    ],
)  # fmt: skip
def test_what_is_kept_or_rounded(value, target, expected):
    assert as_list(cast(np.array(value), dtype_of(target), "x")) == expected


@pytest.mark.parametrize("target", [name for name in REAL if "float" in name])
def test_nan_stays_nan(target):
    signalling = np.array([0x7FA00000, 0x40000000], np.uint32).view(np.float32)
    nan, two = as_list(cast(signalling, dtype_of(target), "x"))
    assert math.isnan(nan)
    assert two == 2


ROWS_OF_TOKENS = [[1, 2], [1, 65536], [1, 65535]]


@pytest.mark.parametrize("ragged", [False, True])
def test_a_conversion_names_the_sample_and_may_leave_it_out(tmp_path, left_out, ragged):
    """A cast that loses a value is a fault of that sample alone, whether samples come one by one or many at once."""
    if ragged:
        for number, row in enumerate(ROWS_OF_TOKENS):
            np.save(tmp_path / f"{number}.npy", np.array(row))
        place, options, key, name = tmp_path, {"each": "file"}, str(tmp_path / "1.npy"), "array"
    else:
        np.save(tmp_path / "tokens.npy", np.array(ROWS_OF_TOKENS))
        place, options, key, name = tmp_path / "tokens.npy", {}, "sample 1 of rows 0 to 2", "tokens"
    reasons = {key: f"field {name!r}: 65536 at [1] does not fit uint16 (whole numbers from 0 to 65535)"}
    dataset = left_out(place, reasons, casts={name: "uint16"}, **options)
    assert [dataset[n][name].tolist() for n in range(2)] == [[1, 2], [1, 65535]]
    assert dataset.schema[name].dtype.name == "uint16"


MASKED = np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False])


@pytest.mark.parametrize(
    "value", [MASKED, MASKED[1], [MASKED[1], 1.0], [[1.0, MASKED[1]]], [np.ones(3), MASKED], (MASKED, np.array([0, 3]))]
)
def test_masked_values_are_refused(tmp_path, value):
    writer = gdsload.ShardWriter(tmp_path / "d")
    write = writer.write_batch if isinstance(value, tuple) else writer.write
    with pytest.raises(SchemaError, match="field 'x': a value .*is masked.*Fill such values"):
        write({"x": value})
    with pytest.raises(SchemaError, match="field 'x': a value .*is masked"):
        cast(value[0] if isinstance(value, tuple) else value, dtype_of("float32"), "x")
    writer.abort()


def test_a_mask_of_nothing_is_no_mask(tmp_path):
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        writer.write({"x": np.ma.masked_array([1.0, 2.0], [False, False])})
    assert gdsload.ShardDataset(tmp_path / "d")[0]["x"].tolist() == [1.0, 2.0]
