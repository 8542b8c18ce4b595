"""The variables of MATLAB files of version 5, as scipy reads them: arrays of numbers.

A damaged file may kill the process that calls these functions. They raise scipy's errors, and `ValueError`: the caller
knows which file it is.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import open_file
from gdsload.conversion.sources.extras import need

__all__ = ["NUMBERS", "MatVariable", "list_variables", "read_rows"]

NUMBERS = {
    "double": "float64", "single": "float32", "logical": "bool",
    **{name: name for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")},
}  # fmt: skip
"""The classes that are numbers, and their element types."""

_VERSION_5 = (b"\0\1IM", b"\1\0MI")  # the lowest byte of a number first, or the highest
_MAX_BYTES = 2**33


class MatVariable(NamedTuple):
    """A variable of a file; its kind is its class: ``"double"``, ``"logical"``, ``"struct"``."""

    name: str
    shape: tuple[int, ...]
    kind: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type of its class, which is one of numbers."""
        return np.dtype(NUMBERS[self.kind])


def list_variables(file: str) -> list[MatVariable]:
    """The variables of a file, without those that MATLAB keeps for itself."""
    scipy = need("scipy.io", file=file)
    with open_file(file) as opened:
        opened.seek(124)
        if opened.read(4) not in _VERSION_5:
            raise ValueError("it does not begin as a MATLAB file of version 5; save it with -v7")
        opened.seek(0)
        found = [MatVariable(*one) for one in scipy.whosmat(opened)]
    return [one for one in found if one.name != "__function_workspace__"]


def read_rows(
    file: str, wanted: Sequence[MatVariable], last: Container[str], low: int, high: int
) -> dict[str, NDArray[Any]]:
    """The rows from `low` to `high` - 1 of variables of numbers; the last dimension of those in `last` counts them.

    Their element types are those of their classes. They may be stored in fewer bytes: how they are stored differs from
    file to file, what a variable is does not.
    """
    for one in wanted:
        if math.prod(one.shape) * one.dtype.itemsize > _MAX_BYTES:
            raise ValueError(f"variable {one.name!r:.100} has {math.prod(one.shape)} values")
    scipy = need("scipy.io", file=file)
    with open_file(file) as opened, warnings.catch_warnings():
        warnings.simplefilter("error")  # scipy warns of what it cannot read, and goes on
        found = scipy.loadmat(opened, variable_names=[one.name for one in wanted])
    arrays = {one.name: _of_class(found.get(one.name), one) for one in wanted}
    return {
        name: (np.moveaxis(array, -1, 0) if name in last else array)[low:high].copy() for name, array in arrays.items()
    }


def _of_class(stored: Any, variable: MatVariable) -> NDArray[Any]:
    """An array that scipy has read, of the element type of its class."""
    dtype, name = variable.dtype, f"variable {variable.name!r:.100}"
    if not isinstance(stored, np.ndarray) or stored.shape != variable.shape or stored.dtype.kind not in "biufc":
        raise ValueError(f"{name} cannot be read: {stored!s:.100}")
    if stored.dtype.kind == "c":
        dtype = np.dtype(np.complex64 if dtype == np.float32 else np.complex128)
    with np.errstate(invalid="ignore"):
        found = stored.astype(dtype)
        same = (
            np.can_cast(stored.dtype, dtype) or dtype.kind == "b" or np.array_equal(found.astype(stored.dtype), stored)
        )
    if not same:
        raise ValueError(f"{name} has values beyond its class")
    return found
