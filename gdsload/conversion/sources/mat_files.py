"""MATLAB files of version 5, and of version 7.3, which are HDF5: arrays of numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import FileOptions, SourceFiles, open_file, stamps
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import check_fields, filled
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.array_rows import array_items, array_parts
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.hdf5_files import own_child
from gdsload.conversion.sources.mat_variables import NUMBERS, MatVariable, list_variables, read_rows
from gdsload.conversion.sources.reading_process import read_apart
from gdsload.errors import FormatError

__all__ = ["MatSource"]

_SUFFIXES = (".mat",)
_HDF5 = b"\x89HDF\r\n\x1a\n"


class MatSource(FieldChoice):
    """The variables of MATLAB files that are arrays of numbers; their first dimension counts the samples.

    They keep the shape that MATLAB gives them, so a column is ``[samples, 1]``. Structures, cells, objects and texts
    are refused, unless `fields` names others. A file is read whole, those of version 7.3 by h5py, others by scipy.

    Args:
        path: a `.mat` file, or a folder of them, whose samples follow each other.
        last: those whose last dimension counts the samples instead, as MATLAB's own examples have it; it becomes the
            first one. ``["X"]`` for SVHN.
        **files: `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.
    """

    kind = "MATLAB files"
    threads = False

    def __init__(self, path: str, *, last: Sequence[str] = (), **files: Unpack[FileOptions]) -> None:
        self.path = path
        self.files = SourceFiles(path, **files)
        self.last = list(last)

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        files = stamps(self.files.find(_SUFFIXES))
        return {"kind": self.kind, "files": files, "last": self.last}

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: rows of a file."""
        found: list[Part] = []
        for file in self.files.find(_SUFFIXES):
            prefix, arrays = f"{os.path.basename(file)}, rows", self._arrays(file, None)
            _refuse_row_vectors(arrays, file)
            found += array_parts(arrays, target_bytes, file, prefix=prefix, where=(file,))
        return filled(found, "row", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        file, low, high = str(part.where[0]), int(part.where[1]), int(part.where[2])
        return array_items(self._arrays(file, (low, high)), low, high, first=low)

    def _arrays(self, file: str, rows: tuple[int, int] | None) -> dict[str, NDArray[Any]]:
        """Some rows of the variables; None: arrays of their shapes and element types, which hold no values."""
        with open_file(file) as opened:
            is_hdf5 = _HDF5 in (opened.read(8), opened.seek(512) and opened.read(8))
        with reading("the MATLAB file cannot be read", file):
            return self._by_h5py(file, rows) if is_hdf5 else self._by_scipy(file, rows)

    def _chosen(self, classes: dict[str, str], file: str) -> list[str]:
        """The variables to read, of those that a file has."""
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

    def _last(self, names: Sequence[str], file: str) -> list[str]:
        """The variables whose last dimension counts the samples, of those to read."""
        return check_fields([name for name in self.last if self.fields is None or name in self.fields], names, file)

    def _by_scipy(self, file: str, rows: tuple[int, int] | None) -> dict[str, NDArray[Any]]:
        listed: list[MatVariable] = read_apart(list_variables, file)
        variables = {one.name: one for one in listed}
        names = self._chosen({name: one.kind for name, one in variables.items()}, file)
        if twice := [name for name in names if [one.name for one in listed].count(name) > 1]:
            raise FormatError(f"two variables are called {twice[0]!r:.100}", file=file)
        last = self._last(names, file)
        if rows is not None:
            found: dict[str, NDArray[Any]] = read_apart(read_rows, file, list(map(variables.get, names)), last, *rows)
            return found
        shapes = {name: np.broadcast_to(np.zeros((), variables[name].dtype), variables[name].shape) for name in names}
        return {name: np.moveaxis(array, -1, 0) if name in last else array for name, array in shapes.items()}

    def _by_h5py(self, file: str, rows: tuple[int, int] | None) -> dict[str, NDArray[Any]]:
        h5py = need("h5py", file=file)
        with h5py.File(file, "r") as opened:
            there = [name for name in opened if not name.startswith("#")]
            children = {name: own_child(opened, name, file) for name in check_fields(self.fields, there, file)}
            names = self._chosen({name: _class_of(child) for name, child in children.items()}, file)
            last = self._last(names, file)
            # MATLAB's first dimension is the one that varies fastest, HDF5's last.
            arrays = {name: _numbers(children[name]).T for name in names}
        found = {name: np.moveaxis(array, -1, 0) if name in last else array for name, array in arrays.items()}
        return found if rows is None else {name: array[rows[0] : rows[1]] for name, array in found.items()}


def _refuse_row_vectors(arrays: Mapping[str, NDArray[Any]], file: str) -> None:
    """Refuse labels that are a row, 1 × N, beside variables of N rows."""
    lengths = {len(array) for array in arrays.values() if array.ndim}
    rows = [
        name for name, array in arrays.items() if array.shape[:1] == (1,) and array.shape[1:] in {(n,) for n in lengths}
    ]
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
