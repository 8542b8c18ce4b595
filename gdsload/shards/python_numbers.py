"""Python's numbers, and lists of them, as arrays: none of them is rounded."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import SchemaError

_EXACT = np.float64(2**53)  # up to which float64 has all whole numbers; float16 does not reach it


def python_numbers(value: object, field: str) -> NDArray[Any]:
    """Python numbers as an array: whole ones are int64 or uint64, others float64 or complex128.

    Raises:
        SchemaError: if lists have no shape, a number is masked, a whole one is missing, or one is among floats that do
            not have it.
    """
    try:
        array = np.asarray(value)
    except (UserWarning, ValueError):  # where warnings are errors, numpy's of a masked number is one
        _check_missing(value, field)
        raise SchemaError("nested lists of different lengths have no shape", field=field) from None
    except OverflowError:
        raise _too_long(field) from None
    if array.dtype.kind == "f" and np.isnan(array).any():
        _check_missing(value, field)
    listed, table = isinstance(value, list | tuple), hasattr(value, "columns")
    if array.dtype.kind in "fc" and (listed or table) and (np.abs(array) >= _EXACT).any():
        if listed:
            return _with_large_ones(value, array, field)
        what = "it is a table, and the whole numbers of one column may be rounded to the floats of another"
        raise SchemaError(what, field=field, remedy="Make a field of each column.")
    return array


def _with_large_ones(value: object, array: NDArray[Any], field: str) -> NDArray[Any]:
    """Numbers that numpy has made floats of, which round whole ones beyond 2**53: as whole numbers if all are such."""
    exact = np.array(value, dtype=object)
    # Whole numbers of which some need 64 bits and others could be negative are floats to numpy, too.
    if all(isinstance(number, Integral) for number in exact.flat):
        numbers = [int(number) for number in exact.flat]  # numpy's own would wrap around
        try:
            return np.array(numbers, np.int64 if min(numbers) < 0 else np.uint64).reshape(exact.shape)
        except OverflowError:
            raise _too_long(field) from None
    for one, became in zip(exact.flat, array.real.flat, strict=True):
        number = one.item() if hasattr(one, "item") else one
        if isinstance(number, Integral) and int(number) != int(became):
            raise SchemaError(
                f"{number!s:.80} is among floating-point numbers, which do not have it exactly",
                field=field,
                remedy="Keep whole numbers and others in separate fields, or make it a float: float(x).",
            )
    return array


def _too_long(field: str) -> SchemaError:
    return SchemaError("its numbers fit neither 64 bits with a sign nor without", field=field)


def _check_missing(value: object, field: str) -> None:
    """Refuse values that numpy makes NaN: masked ones in lists, and whole ones missing in pandas, polars or Arrow."""
    if isinstance(value, list | tuple):
        for one in value:
            _check_missing(one, field)
        return
    check_masks(value, field)
    is_column = hasattr(value, "__array__") and not isinstance(value, np.ndarray | np.generic)
    if is_column and "int" in repr(getattr(value, "dtype", getattr(value, "type", ""))).lower():
        remedy = "Write what stands for it: x.fillna(0) in pandas, x.fill_null(0) in polars and Arrow."
        raise SchemaError("a whole number is missing, and NumPy makes floats of the others", field=field, remedy=remedy)


def check_masks(value: object, field: str) -> None:
    """Refuse an array with masked values.

    Raises:
        SchemaError: if a value is masked.
    """
    if np.ma.is_masked(value):
        remedy = "Fill such values (array.filled(0)), and keep the mask in another field if it matters."
        raise SchemaError("a value of it is masked, and a shard holds no masks", field=field, remedy=remedy)
