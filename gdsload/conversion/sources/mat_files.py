"""MATLAB files of version 5, and of version 7.3, which are HDF5: arrays of numbers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import FileOptions, FileSource, open_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import array_items, array_parts, check_fields, filled
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.hdf5_files import own_child
from gdsload.errors import FormatError

_HDF5 = b"\x89HDF\r\n\x1a\n"
NUMBERS = {
    "double": "float64", "single": "float32", "logical": "bool",
    **{name: name for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")},
}  # fmt: skip
"""The classes that are numbers, and their element types."""

_VERSION_5 = (b"\0\1IM", b"\1\0MI")  # the lowest byte of a number first, or the highest


class MatSource(FieldChoice, FileSource):
    """The variables of MATLAB files that are arrays of numbers; their first dimension counts the samples.

    They keep the shape that MATLAB gives them, so a column is ``[samples, 1]``. Structures, cells, objects and texts
    are refused, unless `fields` names others. A file is read whole, those of version 7.3 by h5py, others by scipy.

    Args:
        path: a `.mat` file, or a folder of them, whose samples follow each other.
        last: those whose last dimension counts the samples instead, as MATLAB's own examples have it; it becomes the
            first one. ``["X"]`` for SVHN.
    """

    kind = "MATLAB files"
    threads = False
    crashes = True
    suffixes = (".mat",)
    decisive = ("last",)

    def __init__(self, path: str, *, last: Sequence[str] = (), **files: Unpack[FileOptions]) -> None:
        super().__init__(path, **files)
        self.last = list(last)

    def parts(self, target_bytes: int) -> list[Part]:
        found: list[Part] = []
        for file in self.all_files():
            prefix, arrays = f"{os.path.basename(file)}, rows", self._arrays(file, None)
            _refuse_row_vectors(arrays, file)
            found += array_parts(arrays, target_bytes, file, prefix=prefix, where=(file,))
        return filled(found, "row", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        file, low, high = str(part.where[0]), int(part.where[1]), int(part.where[2])
        return array_items(self._arrays(file, (low, high)), low, high, first=low)

    def _arrays(self, file: str, rows: tuple[int, int] | None) -> dict[str, NDArray[Any]]:
        """Some rows of the variables; None: arrays of their shapes and element types, which hold no values."""
        with open_file(file) as opened:
            is_hdf5 = _HDF5 in (opened.read(8), opened.seek(512) and opened.read(8))
        with reading("the MATLAB file cannot be read", file):
            arrays = self._by_h5py(file) if is_hdf5 else self._by_scipy(file, values=rows is not None)
        # A copy, or all of the file would stay in memory.
        return arrays if rows is None else {name: array[slice(*rows)].copy() for name, array in arrays.items()}

    def _chosen(self, classes: dict[str, str], file: str) -> list[str]:
        names = check_fields(self.fields, classes, file)
        if not names:
            raise FormatError("there is no variable in it", file=file)
        for name in names:
            if classes[name] not in NUMBERS:
                raise FormatError(
                    f"variable {name!r} is a {classes[name]:.100}, no array of numbers",
                    file=file,
                    remedy="Choose the variables to take: `fields=[...]`.",
                )
        return names

    def _moved(self, arrays: dict[str, NDArray[Any]], file: str) -> dict[str, NDArray[Any]]:
        """The variables, each with the dimension that counts the samples as its first one."""
        wanted = [name for name in self.last if self.fields is None or name in self.fields]
        last = check_fields(wanted, arrays, file)
        return {name: np.moveaxis(array, -1, 0) if name in last else array for name, array in arrays.items()}

    def _by_scipy(self, file: str, *, values: bool) -> dict[str, NDArray[Any]]:
        """The variables of a file of version 5, without those that MATLAB keeps for itself, or their shapes alone.

        Their element types are those of their classes. They may be stored in fewer bytes: how they are stored differs
        from file to file, what a variable is does not.
        """
        scipy = need("scipy.io", file=file)
        with open_file(file) as opened, warnings.catch_warnings():
            warnings.simplefilter("error")  # scipy warns of what it cannot read, and goes on
            opened.seek(124)
            if opened.read(4) not in _VERSION_5:
                raise ValueError("it does not begin as a MATLAB file of version 5; save it with -v7")
            opened.seek(0)
            listed = [one for one in scipy.whosmat(opened) if one[0] != "__function_workspace__"]
            shapes = {name: shape for name, shape, _ in listed}
            classes = {name: kind for name, _, kind in listed}
            if len(classes) < len(listed):
                raise ValueError("two variables have one name")
            names = self._chosen(classes, file)
            dtypes = {name: np.dtype(NUMBERS[classes[name]]) for name in names}
            if not values:
                empty = {name: np.broadcast_to(np.zeros((), dtypes[name]), shapes[name]) for name in names}
                return self._moved(empty, file)
            opened.seek(0)
            found = scipy.loadmat(opened, variable_names=names)
        return self._moved({name: _of_class(found.get(name), name, shapes[name], dtypes[name]) for name in names}, file)

    def _by_h5py(self, file: str) -> dict[str, NDArray[Any]]:
        h5py = need("h5py", file=file)
        with h5py.File(file, "r") as opened:
            there = [name for name in opened if not name.startswith("#")]
            children = {name: own_child(opened, name, file) for name in check_fields(self.fields, there, file)}
            names = self._chosen({name: _class_of(child) for name, child in children.items()}, file)
            # MATLAB's first dimension is the one that varies fastest, HDF5's last.
            return self._moved({name: _numbers(children[name]).T for name in names}, file)


def _refuse_row_vectors(arrays: Mapping[str, NDArray[Any]], file: str) -> None:
    """Refuse labels that are a row, 1 × N, beside variables of N rows."""
    lengths = {len(array) for array in arrays.values() if array.ndim}
    row_vectors = {(1, length) for length in lengths}
    rows = [name for name, array in arrays.items() if array.shape in row_vectors]
    if rows and len(lengths) > 1:
        raise FormatError(
            f"variable {rows[0]!r} is a row of {arrays[rows[0]].size} values, as many as other variables have rows",
            file=file,
            remedy=f"Pass `last={rows}`: the last dimension of it counts the samples.",
        )


def _class_of(child: Any) -> str:
    found = getattr(child, "attrs", {}).get("MATLAB_class", b"unknown")
    name = found.decode(errors="replace") if isinstance(found, bytes) else str(found)
    return name if hasattr(child, "dtype") and "MATLAB_empty" not in child.attrs else f"{name} (no dataset)"


def _numbers(child: Any) -> NDArray[Any]:
    array: NDArray[Any] = child[()]
    return array.astype(bool) if _class_of(child) == "logical" else array


def _of_class(stored: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array that scipy has read, of the element type of its class."""
    if not isinstance(stored, np.ndarray) or stored.shape != shape or stored.dtype.kind not in "biufc":
        raise ValueError(f"variable {name!r:.100} cannot be read: {stored!s:.100}")
    if stored.dtype.kind == "c":
        dtype = np.dtype(np.complex64 if dtype == np.float32 else np.complex128)
    return stored.astype(dtype, copy=False)
