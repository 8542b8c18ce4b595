"""NumPy arrays: `.npy` files, `.npz` archives, and folders of them. Nothing in them is ever unpickled."""

from __future__ import annotations

import io
import math
import os
import re
import threading
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from typing import IO, Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.folders import is_path_passed_over, names_in
from gdsload.conversion.input_files import FileOptions, FileSource, check_file, open_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import (
    array_items,
    array_parts,
    bytes_notes,
    check_fields,
    classes_of,
    run_parts,
    sample_fields,
)
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.errors import FormatError, OptionError

_parsing = threading.RLock()
"""numpy reads headers by Python's parser, which now and then fails where several threads use it at once: Python 3.11
counts how deep it is for all of them together (https://github.com/python/cpython/issues/106905)."""
os.register_at_fork(before=_parsing.acquire, after_in_parent=_parsing.release, after_in_child=_parsing.release)


def decode_npy(content: bytes) -> NDArray[Any]:
    """An array of a `.npy` file. Memory is asked for only once its bytes are known to be there.

    Raises:
        ValueError: if it is damaged, or an array of objects.
    """
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with _parsing:
        shape, fortran, dtype = reader(stream)
    if dtype.hasobject:
        raise ValueError("an array of objects is a pickle, which is never loaded")
    left, wanted = len(content) - stream.tell(), math.prod(shape) * dtype.itemsize
    if wanted != left or min(shape, default=0) < 0:
        raise ValueError(f"its header promises {wanted} bytes, but {left} are there")
    array = np.frombuffer(content, dtype, offset=stream.tell()) if left else np.empty(0, dtype)
    return array.reshape(shape, order="F" if fortran else "C").copy()


def map_npy(file: str) -> NDArray[Any]:
    """The array of a file, mapped, as `numpy.load` gives it.

    Raises:
        OSError, ValueError, EOFError, SyntaxError: as `numpy.load`.
    """
    with _parsing:
        return np.lib.format.open_memmap(file, mode="r")


class NpzArchive:
    """The arrays of an archive, each of which is read once, for all readers of its rows; zipfile compares checksums.

    A damaged archive raises errors of many types, which are those of `zipfile`.
    """

    def __init__(self, file: str | IO[bytes]) -> None:
        self._file = file
        self._read: dict[str, NDArray[Any]] = {}
        self._lock = threading.Lock()

    def names(self, *, beside: bool = False) -> list[str]:
        """The names of the arrays, and of what is no array; or of what macOS packs beside arrays."""
        with zipfile.ZipFile(self._file) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist() if _is_beside(name) == beside]

    def arrays(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Some of its arrays, by name."""
        with self._lock, zipfile.ZipFile(self._file) as archive:
            there = set(archive.namelist())
            for name in names:
                if name not in self._read:
                    if f"{name}.npy" not in there:
                        raise ValueError(f"member {name!r:.100} is no array")
                    self._read[name] = decode_npy(archive.read(f"{name}.npy"))
            return {name: self._read[name] for name in names}

    def __reduce__(self) -> tuple[object, ...]:
        return NpzArchive, (self._file,)


def _is_beside(member: str) -> bool:
    """Return whether macOS packs a member of this name beside arrays. An array itself may have almost any name."""
    folder, _, base = member.rpartition("/")
    return base == ".DS_Store" or base.startswith("._") or is_path_passed_over(folder)


_DIGITS = re.compile(r"\d+")
_FAILED = "the arrays cannot be read"
_DAMAGED = "What is damaged, copy again. Arrays of objects are pickles, which are never loaded: save numbers."


class ArraySource(FieldChoice, FileSource):
    """Arrays whose first dimension counts the samples, or of which each is a sample.

    A `.npy` file is one field, called after the file, and the files of a folder are the fields of one dataset. An
    `.npz` archive has a field for each of its arrays, and is read into memory, where `.npy` files are mapped.

    With `each` = ``"file"`` each file of a folder, and of the folders in it, is a sample: a `.npy` file the field
    ``array``, an `.npz` archive a field for each of its arrays. If they are in folders side by side, the number of its
    folder, in the order of their names, is the field ``label``.

    Args:
        path: a `.npy` file, a folder of such files, or an `.npz` file.
        each: what a sample is: ``"row"`` or ``"file"``. None: a row, but it must be said of a folder whose files have
            names that differ in numbers alone, or are in other folders.
    """

    kind = "NumPy arrays"
    threads = True
    suffixes = (".npy", ".npz")
    decisive = ("each",)

    def __init__(self, path: str, *, each: Literal["row", "file"] | None = None, **files: Unpack[FileOptions]) -> None:
        super().__init__(path, **files)
        self.each = each
        self._archive = NpzArchive(path) if path.lower().endswith(".npz") else None
        self._files = self._find()

    def all_files(self) -> list[str]:
        return self._files

    def _find(self) -> list[str]:
        if self.each == "file":
            return super().all_files()
        folder = os.path.isdir(self.path)
        if folder and not any(name.endswith(".npy") for name in names_in(self.path)):
            what = f"its {len(super().all_files())} arrays are archives, or are in folders"
            raise OptionError(what, file=self.path, remedy=_WAY_OUT)
        return self.files.find((".npy",), below=False)

    def metadata(self) -> dict[str, Any]:
        return {"classes": {"label": self._classes}} if self._classes else {}

    def notes(self) -> list[str]:
        """Notes for users: zeros that bytes lose. Members that are passed over are noted with files that are."""
        if self.each == "file":
            return []
        if self._archive is not None:
            self.files.pass_over(self._archive.names(beside=True))
        return bytes_notes(self._open())

    def parts(self, target_bytes: int) -> list[Part]:
        if self.each == "file":
            sizes = [os.path.getsize(file) for file in self._files]
            return run_parts("files", sizes, target_bytes)
        names = {_DIGITS.sub("", os.path.basename(file)) for file in self._files}
        if self.each is None and self.fields is None and len(names) == 1 < len(self._files):
            raise OptionError(
                f"it holds {len(self._files)} arrays whose names differ in numbers alone",
                file=self.path,
                remedy=_WAY_OUT,
            )
        return array_parts(self._open(), target_bytes, self.path)

    def read(self, part: Part) -> Iterator[Item]:
        low, high = (int(edge) for edge in part.where)
        if self.each == "file":
            classes = self._classes
            for file in self._files[low:high]:
                yield Item(file, partial(self._sample, file, classes))
            return
        yield from array_items(self._open(), low, high)

    @property
    def _classes(self) -> list[str]:
        return classes_of(self._files) if self.each == "file" else []

    def _sample(self, file: str, classes: list[str]) -> dict[str, Any]:
        label = {"label": classes.index(os.path.basename(os.path.dirname(file)))} if classes else {}
        with reading(_FAILED, file, remedy=_DAMAGED), open_file(file) as opened:
            is_array = file.lower().endswith(".npy")
            archive = NpzArchive(opened)
            found = {"array": decode_npy(opened.read())} if is_array else archive.arrays(archive.names())
        if label and "label" in found:
            raise FormatError("it has an array 'label', and is in a folder of a class", file=file)
        everything = {**found, **label}
        return {name: everything[name] for name in sample_fields(self.fields, everything, file)}

    def _open(self) -> dict[str, NDArray[Any]]:
        for file in self._files:
            check_file(file)
        with reading(_FAILED, self.path, remedy=_DAMAGED):
            if self._archive is not None:
                return self._archive.arrays(check_fields(self.fields, self._archive.names(), self.path))
            files = {os.path.basename(file).removesuffix(".npy"): file for file in self._files}
            names = check_fields(self.fields, files, self.path)
            return {name: map_npy(files[name]) for name in names}


_WAY_OUT = (
    "Pass `each='file'` if each file is one sample; `each='row'` if each file is one field, and its first dimension "
    "counts the samples."
)
