"""HDF5 files, by h5py."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Unpack

import numpy as np

from gdsload.conversion.input_files import FileOptions, FileSource, open_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import (
    batches,
    bytes_notes,
    check_fields,
    common_length,
    filled,
    first_groups,
    groups_left_out,
    plain_rows,
    row_parts,
)
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.cf_conventions import (
    ATTRIBUTES,
    StoredNumbers,
    array_notes,
    of_first_dimension,
    units_metadata,
    with_values,
)
from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError, OptionError

_VARYING_BYTES = 1024
_NETCDF_3 = b"CDF"


class Hdf5Source(FieldChoice, FileSource):
    """HDF5 files, in which the datasets of one group are the fields; their first dimension counts the samples.

    Text and lists of numbers of any length are taken, too. Where datasets have dimension scales, as those of netCDF
    have, the scale of their first dimension is a field, and others are left out. Links to other files are never
    followed.

    Args:
        path: a `.h5`, `.hdf5` or netCDF-4's `.nc` file, or a folder of them, whose samples follow each other.
        group: the group, ``"/"`` if the datasets are at the top. Groups in it are passed over.
        unpack: make the values that attributes tell of (``scale_factor``, ``add_offset``, ``_FillValue``,
            ``missing_value``, ``_Unsigned``), with NaN for missing ones; else numbers are taken as they are stored.
    """

    kind = "HDF5 files"
    threads = False
    suffixes = (".h5", ".hdf5", ".hdf", ".nc", ".nc4")
    decisive = ("group", "unpack")

    def __init__(self, path: str, *, group: str = "/", unpack: bool = False, **files: Unpack[FileOptions]) -> None:
        super().__init__(path, **files)
        self.group, self.unpack = group, unpack

    def notes(self) -> list[str]:
        """Notes for users on groups and coordinates that are left out, and on the meaning of stored numbers."""
        file = self.all_files()[0]
        with opened_hdf5(file) as opened:
            fields, children = self._fields(opened, file), self._children(opened, file)
            beside = {name: child for name, child in children.items() if self.fields is None and name not in fields}
            left_out = [name for name, child in beside.items() if _is_variable(child)]
            found = array_notes(_meanings(fields), left_out, unpack=self.unpack)
            found += bytes_notes({name: one for name, one in fields.items() if not _is_utf8(one)})
            return found + groups_left_out(self._inner(beside), "`group=` takes one alone")

    def metadata(self) -> dict[str, Any]:
        file = self.all_files()[0]
        with opened_hdf5(file) as opened:
            return units_metadata(_meanings(self._fields(opened, file)), unpack=self.unpack)

    def parts(self, target_bytes: int) -> list[Part]:
        found: list[Part] = []
        first: dict[str, tuple[StoredNumbers, str]] = {}
        for file in self.all_files():
            with opened_hdf5(file) as opened:
                fields = self._fields(opened, file)
                for name, one in _meanings(fields).items():
                    known, where = first.setdefault(name, (one, file))
                    known.check_same(one, name, (where, file), unpack=self.unpack)
                count = len(next(iter(fields.values())))
                row_bytes = _row_bytes(fields)
            prefix = f"{os.path.basename(file)}, rows"
            found += row_parts(count, row_bytes, target_bytes, prefix=prefix, where=(file,))
        return filled(found, "row", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`. Items are made while the file is open: before the next one is asked for."""
        file, low, high = str(part.where[0]), int(part.where[1]), int(part.where[2])
        with opened_hdf5(file) as opened:
            fields = self._fields(opened, file)
            for begin, end in batches(low, high, _row_bytes(fields)):
                make = partial(_rows, fields, begin, end, file, unpack=self.unpack)
                yield Item(f"rows {begin} to {end - 1}", make, end - begin)

    def _children(self, opened: Any, file: str) -> dict[str, Any]:
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
        if self.fields is None:
            fields = {name: child for name, child in fields.items() if _is_variable(child)}
            coordinates = [name for name, child in fields.items() if h5py.h5ds.is_scale(child.id)]
            dimensions = {name: _first_dimension(child) for name, child in fields.items()}
            fields = {name: fields[name] for name in of_first_dimension(dimensions, coordinates, file)}
        lengths = {name: len(field) if field.shape else -1 for name, field in fields.items()}
        if not fields:
            inner = first_groups(self._inner(children))
            remedy = f"Pass one of the groups in it as `group=`: {inner}." if inner else None
            raise FormatError(f"there is no dataset in group {self.group!r}", file=file, remedy=remedy)
        common_length(lengths, "datasets", file)
        for name, field in fields.items():
            _check(name, field, file)
        return fields


def own_child(group: Any, name: str, file: str) -> Any:
    """The member of a group under a name, which must be in the same file: a link must not make us read another one."""
    h5py = need("h5py")
    is_link = isinstance(group.get(name, getlink=True), h5py.ExternalLink)
    child = None if is_link else group.get(name)
    elsewhere = is_link or (child is not None and child.file.filename != group.file.filename)
    if elsewhere or (isinstance(child, h5py.Dataset) and (child.is_virtual or child.external)):
        what = f"{name!r} is a link to another file, or has its data in one"
        raise FormatError(what, file=file, remedy="Copy it here whole (h5copy, h5repack).")
    return child


def _is_variable(child: Any) -> bool:
    """Return whether a member is a dataset with values, and no mere dimension of netCDF's."""
    if not isinstance(child, need("h5py").Dataset):
        return False
    label = child.attrs.get("NAME")
    text = label.decode("latin-1") if isinstance(label, bytes) else str(label)
    return not text.startswith("This is a netCDF dimension but not a netCDF variable")


def _first_dimension(field: Any) -> str | None:
    """The name of the scale of a dataset's first dimension; of a scale it is its own."""
    h5ds = need("h5py").h5ds
    if h5ds.is_scale(field.id):
        return str(field.name)
    return str(field.dims[0][0].name) if field.shape and h5ds.get_num_scales(field.id, 0) else None


def _meanings(fields: dict[str, Any]) -> dict[str, StoredNumbers]:
    return {
        name: StoredNumbers.of({key: field.attrs.get(key) for key in ATTRIBUTES}, field.dtype)
        for name, field in fields.items()
    }


def _is_utf8(field: Any) -> bool:
    string = need("h5py").check_string_dtype(field.dtype)
    return string is not None and string.encoding == "utf-8"


def _check(name: str, field: Any, file: str) -> None:
    h5py = need("h5py")
    varying = h5py.check_vlen_dtype(field.dtype)
    kind = np.dtype(varying).kind if varying is not None and varying not in (str, bytes) else field.dtype.kind
    is_text = (kind == "O" and h5py.check_string_dtype(field.dtype)) or kind == "S"
    if is_text or (kind == "V" and field.dtype.names is None):
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
    found = 0
    for field in fields.values():
        found += int(field.nbytes) // max(len(field), 1) if field.dtype.kind != "O" else _VARYING_BYTES
    return found


def _rows(fields: dict[str, Any], begin: int, end: int, file: str, *, unpack: bool) -> dict[str, Any]:
    with reading(f"rows {begin} to {end - 1} cannot be read", file, OSError, RuntimeError, ValueError):
        found = {name: _values(field, begin, end) for name, field in fields.items()}
        return with_values(found, _meanings(fields)) if unpack else found


def _values(field: Any, begin: int, end: int) -> Any:
    string = need("h5py").check_string_dtype(field.dtype)
    if string is not None:
        values = field[begin:end].tolist()
        as_text = string.encoding == "utf-8" or string.length is None
        return [value.decode() for value in values] if as_text else values
    rows = field[begin:end]
    if field.dtype.kind != "O":
        return plain_rows(rows)
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    return np.concatenate([np.empty(0, need("h5py").check_vlen_dtype(field.dtype)), *rows]), offsets


@contextmanager
def opened_hdf5(file: str) -> Iterator[Any]:
    """A file, open for reading; whatever is wrong with it is a FormatError."""
    h5py = need("h5py", file=file)
    with reading("the HDF5 file cannot be read", file, OSError, RuntimeError, ValueError, KeyError, TypeError):
        with open_file(file) as raw:
            if raw.read(len(_NETCDF_3)) == _NETCDF_3:
                remedy = f"Make one of netCDF 4 of it: nccopy -k netCDF-4 {shlex.quote(file)} new.nc"
                raise FormatError("it is a file of netCDF 3, which is not HDF5", file=file, remedy=remedy)
        with h5py.File(file, "r") as opened:
            yield opened
