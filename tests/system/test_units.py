"""Byte sizes as people write them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.errors import OptionError
from gdsload.system.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (4096, 4096), ("0", 0), ("4096 B", 4096), ("256 mib", 256 * 2**20), ("  2TiB  ", 2 * 2**40), ("1 kB", 1000),
        ("1.5GiB", 3 * 2**29), ("0.5b", 0),
        ("999999999999999999", 999_999_999_999_999_999),
    ],
)  # fmt: skip
def test_parse_bytes(value, expected):
    assert expected == parse_bytes(value, "budget")


@pytest.mark.parametrize(
    "value",
    [
        "", "MiB", "-1", "-1 MiB", "1 MiBs", "1 XB", "1e9", "1,5 GB", "1.GB", ".5GB", "1 2", "0x10", "inf", "nan",
        "\u0663MiB", "1\u00a0MiB", "9" * 5000, "1 \u212aB", None, 1.5, True, b"1MiB", [1],
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_no_size(value):
    with pytest.raises(OptionError, match="^budget is .* which is no size"):
        parse_bytes(value, "budget")


@pytest.mark.parametrize(("value", "shown"), [("1KiB", 1024), (4095, 4095), (-5, -5)])
def test_size_below_the_least(value, shown):
    with pytest.raises(OptionError, match=f"^budget is {shown} bytes, but must be at least 4096$"):
        parse_bytes(value, "budget", at_least=4096)
    assert parse_bytes("4KiB", "budget", at_least=4096) == 4096


@pytest.mark.parametrize(
    ("size", "expected"), [(1000, "1000 B"), (1536, "1.5 KiB"), (1500 * 2**40, "1500 TiB"), (-2048, "-2 KiB")]
)
def test_format_bytes(size, expected):
    assert expected == format_bytes(size)


@settings(derandomize=True)
@given(st.integers(0, 2**49))
def test_formatted_size_can_be_parsed_again(size):
    assert abs(parse_bytes(format_bytes(size), "size") - size) <= size * 5e-4 + 1
