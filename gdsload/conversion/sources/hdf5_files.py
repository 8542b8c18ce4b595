"""HDF5 files, by h5py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Unpack

import numpy as np

from gdsload.conversion.input_files import FileOptions, SourceFiles, check_file, stamps
from gdsload.conversion.reasons import in_words
from gdsload.conversion.row_source import (
    BATCH_BYTES,
    check_fields,
    common_length,
    first_groups,
    groups_left_out,
    row_parts,
    spans,
)
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError, OptionError

__all__ = ["Hdf5Source", "opened_hdf5", "own_child"]

_SUFFIXES = (".h5", ".hdf5", ".hdf")
_VARYING_BYTES = 1024


class Hdf5Source(FieldChoice):
    """HDF5 files, in which the datasets of one group are the fields; their first dimension counts the samples.

    Text and lists of numbers of any length are taken, too. Links to other files are never followed.

    Args:
        path: a `.h5` or `.hdf5` file, or a folder of them, whose samples follow each other.
        group: the group, ``"/"`` if the datasets lie at the top. Groups in it are passed over.
        **files: `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.
    """

    kind = "HDF5 files"
    threads = False

    def __init__(self, path: str, *, group: str = "/", **files: Unpack[FileOptions]) -> None:
        self.path = path
        self.files = SourceFiles(path, **files)
        self.group = group

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        return {"kind": self.kind, "files": stamps(self.files.find(_SUFFIXES)), "group": self.group}

    def notes(self) -> list[str]:
        """What users should know of it: groups beside the datasets, of which nothing is made."""
        if self.fields is not None:
            return []
        file = self.files.find(_SUFFIXES)[0]
        with opened_hdf5(file) as opened:
            groups = self._inner(self._children(opened, file))
        return groups_left_out(groups, lambda name: f"group={name!r}")

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`."""
        found: list[Part] = []
        for file in self.files.find(_SUFFIXES):
            with opened_hdf5(file) as opened:
                fields = self._fields(opened, file)
                count = len(next(iter(fields.values())))
                row_bytes = _row_bytes(fields)
            step, name = max(target_bytes // row_bytes, 1), os.path.basename(file)
            found += row_parts(count, step, row_bytes, prefix=f"{name}, rows", where=(file,))
        if not found:
            raise FormatError("there is not one row", file=self.path)
        return found

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`. Items are made while the file is open: before the next one is asked for."""
        file, low, high = str(part.where[0]), int(part.where[1]), int(part.where[2])
        with opened_hdf5(file) as opened:
            fields = self._fields(opened, file)
            step = max(BATCH_BYTES // _row_bytes(fields), 1)
            for begin, end in spans(low, high, step):
                yield Item(f"rows {begin} to {end - 1}", partial(_rows, fields, begin, end, file), end - begin)

    def _children(self, opened: Any, file: str) -> dict[str, Any]:
        """What is in the group."""
        h5py = need("h5py")
        here = opened
        for name in self.group.strip("/").split("/") if self.group.strip("/") else []:
            here = own_child(here, name, file)
            if not isinstance(here, h5py.Group):
                raise OptionError(f"there is no group {self.group!r}", file=file)
        names = sorted(here) if isinstance(here, h5py.Group) else []
        return {name: own_child(here, name, file) for name in check_fields(self.fields, names, file)}

    def _inner(self, children: dict[str, Any]) -> list[str]:
        """The groups in the group that have something in them, as `group` names them."""
        h5py = need("h5py")
        inner = [name for name, child in children.items() if isinstance(child, h5py.Group) and len(child)]
        return [f"/{self.group.strip('/')}/{name}".replace("//", "/") for name in inner]

    def _fields(self, opened: Any, file: str) -> dict[str, Any]:
        h5py = need("h5py")
        children = self._children(opened, file)
        fields = {name: child for name, child in children.items() if isinstance(child, h5py.Dataset)}
        lengths = {name: len(field) if field.shape else -1 for name, field in fields.items()}
        if not fields:
            inner = first_groups(self._inner(children))
            raise FormatError(
                f"there is no dataset in group {self.group!r}",
                file=file,
                remedy=f"Pass one of the groups in it as group=: {inner}." if inner else None,
            )
        common_length(lengths, "datasets", file)
        for name, field in fields.items():
            _check(name, field, file)
        return fields


def own_child(group: Any, name: str, file: str) -> Any:
    """What a group has under a name, if it is in the same file: a link must not make us read another one."""
    h5py = need("h5py")
    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink):
        raise FormatError(f"{name!r} is a link to another file", file=file, remedy="Copy what it links to (h5copy).")
    child = group.get(name)
    if child is not None and child.file.filename != group.file.filename:
        raise FormatError(f"{name!r} lies in another file", file=file, remedy="Copy what it links to (h5copy).")
    if isinstance(child, h5py.Dataset) and (child.is_virtual or child.external):
        raise FormatError(f"{name!r} keeps its data in other files", file=file, remedy="Copy it whole (h5repack).")
    return child


def _check(name: str, field: Any, file: str) -> None:
    h5py = need("h5py")
    varying = h5py.check_vlen_dtype(field.dtype)
    kind = np.dtype(varying).kind if varying is not None and varying not in (str, bytes) else field.dtype.kind
    if (kind == "O" and h5py.check_string_dtype(field.dtype)) or (kind == "S" and field.ndim == 1):
        if field.ndim == 1:
            return
    elif kind in "biufc" and (varying is None or field.ndim == 1):
        return
    raise FormatError(
        f"dataset {name!r} is of type {field.dtype!s:.200} and shape {field.shape}, which no field can have",
        file=file,
        remedy="Fields are numbers, lists of numbers and texts, one for each sample.",
    )


def _row_bytes(fields: dict[str, Any]) -> int:
    found = 1
    for field in fields.values():
        found += int(field.nbytes) // max(len(field), 1) if field.dtype.kind != "O" else _VARYING_BYTES
    return found


def _rows(fields: dict[str, Any], begin: int, end: int, file: str) -> dict[str, Any]:
    try:
        return {name: _values(field, begin, end) for name, field in fields.items()}
    except (OSError, RuntimeError, ValueError) as error:
        raise FormatError(f"rows {begin} to {end - 1} cannot be read: {in_words(error)}", file=file) from None


def _values(field: Any, begin: int, end: int) -> Any:
    string = need("h5py").check_string_dtype(field.dtype)
    if string is not None:
        values = field[begin:end].tolist()
        as_text = string.encoding == "utf-8" or string.length is None
        return [value.decode() for value in values] if as_text else values
    rows = field[begin:end]
    if field.dtype.kind != "O":
        return rows
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    return np.concatenate([np.empty(0, need("h5py").check_vlen_dtype(field.dtype)), *rows]), offsets


@contextmanager
def opened_hdf5(file: str) -> Iterator[Any]:
    """A file, open for reading; whatever is wrong with it is a FormatError."""
    h5py = need("h5py", file=file)
    check_file(file)
    try:
        with h5py.File(file, "r") as opened:
            yield opened
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        if isinstance(error, FormatError | OptionError):
            raise
        raise FormatError(f"the HDF5 file cannot be read: {in_words(error)}", file=file) from None
