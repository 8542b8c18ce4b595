"""Zarr arrays, by zarr: one array, or the arrays of a group."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from functools import partial
from typing import Any, Unpack

import numpy as np

from gdsload.conversion.folders import is_passed_over
from gdsload.conversion.input_files import FileOptions, FileSource
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
from gdsload.errors import FormatError
from gdsload.system.paths import absolute

_CHUNKS, _CHUNKS_OF_FILE = 2**16, 2**10
"""Chunks that a store may have, and more for each of its files: one that is not there is made of the fill value."""
_METADATA = ("zarr.json", ".zarray", ".zgroup")


class ZarrSource(FieldChoice, FileSource):
    """A Zarr array, or a group of arrays, which are the fields; their first dimension counts the samples.

    A single array is a field called after its folder. Where arrays name their dimensions, as xarray does it, the values
    of the first dimension are a field, and those of others are left out. Nothing is unpickled.

    Args:
        path: the folder.
        unpack: make the values that attributes tell of (``scale_factor``, ``add_offset``, ``_FillValue``,
            ``missing_value``, ``_Unsigned``), with NaN for missing ones; else numbers are taken as they are stored.
    """

    kind = "Zarr arrays"
    threads = False
    decisive = ("unpack",)

    def __init__(self, path: str, *, unpack: bool = False, **files: Unpack[FileOptions]) -> None:
        super().__init__(path, **files)
        self.unpack = unpack

    def notes(self) -> list[str]:
        """Notes for users on groups and coordinates that are left out, and on the meaning of stored numbers."""
        arrays = self._open()
        listed, groups = self._listed() if self.fields is None else ({}, [])
        left_out = [name for name in listed if name not in arrays]
        found = array_notes(_meanings(arrays), left_out, unpack=self.unpack) + bytes_notes(arrays)
        return found + groups_left_out(groups, "the path of one takes it alone")

    def metadata(self) -> dict[str, Any]:
        return units_metadata(_meanings(self._open()), unpack=self.unpack)

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: whole chunks, which would otherwise be decoded twice."""
        files = self.all_files()  # zarr opens them by itself, without a check of links
        arrays = self._open()
        for name, array in arrays.items():
            if (promised := _chunks(array)) > _CHUNKS + _CHUNKS_OF_FILE * len(files):
                raise FormatError(
                    f"array {name!r} promises {promised} chunks, but the store has {len(files)} files",
                    file=self.path,
                    remedy="Get the store again, or save the array with larger chunks.",
                )
        lengths = {name: array.shape[0] if array.shape else -1 for name, array in arrays.items()}
        count = common_length(lengths, "arrays", self.path)
        parts = row_parts(count, _row_bytes(arrays), target_bytes, chunk=_chunk_rows(arrays))
        return filled(parts, "row", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        arrays = self._open()
        low, high = (int(edge) for edge in part.where)
        for begin, end in batches(low, high, _row_bytes(arrays), chunk=_chunk_rows(arrays)):
            make = partial(_rows, arrays, begin, end, self.path, unpack=self.unpack)
            yield Item(f"rows {begin} to {end - 1}", make, end - begin)

    def _folder(self) -> str:
        folder = self.files.folder(*_METADATA)
        if not any(os.path.exists(os.path.join(folder, name)) for name in _METADATA):
            raise FormatError("there is no Zarr array or group", file=self.path)
        return folder

    def all_files(self) -> list[str]:
        return list(self.files.walk(self._folder(), ("",), whole=True))

    def _listed(self) -> tuple[dict[str, Any], list[str]]:
        """The arrays at the path, and the names of groups beside them."""
        zarr, folder = need("zarr", file=self.path), self._folder()
        with reading("the arrays cannot be opened", self.path):
            # Arrays are found by their folders: names in consolidated metadata may be of any place.
            found = zarr.open(folder, mode="r", use_consolidated=False)
            if isinstance(found, zarr.Array):
                return {os.path.basename(absolute(folder)).removesuffix(".zarr"): found}, []
            arrays = {name: array for name, array in sorted(found.arrays()) if not is_passed_over(name)}
            return arrays, [name for name in sorted(found.group_keys()) if not is_passed_over(name)]

    def _open(self) -> dict[str, Any]:
        arrays, groups = self._listed()
        if not arrays:
            inner = first_groups(groups)
            remedy = f"In it are the groups {inner}: pass the path of one." if groups else None
            raise FormatError("there is no array in the group", file=self.path, remedy=remedy)
        arrays = {name: arrays[name] for name in check_fields(self.fields, arrays, self.path)}
        if self.fields is None:
            dimensions = {name: _dimensions(array) for name, array in arrays.items()}
            firsts = {name: next(iter(names), None) for name, names in dimensions.items()}
            coordinates = [name for name, names in dimensions.items() if names == [name]]
            arrays = {name: arrays[name] for name in of_first_dimension(firsts, coordinates, self.path)}
        for name, array in arrays.items():
            _check(name, array, self.path)
        return arrays


def _dimensions(array: Any) -> list[str | None]:
    """The names of an array's dimensions, if it has such: in Zarr 2 they are an attribute of xarray's."""
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS") or ()
    return [name if isinstance(name, str) else None for name in names] if isinstance(names, list | tuple) else []


def _meanings(arrays: dict[str, Any]) -> dict[str, StoredNumbers]:
    return {name: _meaning(array) for name, array in arrays.items()}


def _meaning(array: Any) -> StoredNumbers:
    found = {name: array.attrs[name] for name in ATTRIBUTES if name in array.attrs}
    if array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in array.attrs:
        found.setdefault("_FillValue", array.metadata.fill_value)  # where xarray keeps it in Zarr 2
    return StoredNumbers.of(found, np.dtype(array.dtype))


def _check(name: str, array: Any, file: str) -> None:
    stored = {key: value for key, value in array.metadata.to_dict().items() if key != "attributes"}
    # Before 3.1, zarr has made the codecs by now, and numcodecs calls the one in question "Pickle(protocol=5)".
    if "pickle" in json.dumps(stored, default=str).lower():
        raise FormatError(
            f"array {name!r} is stored as a pickle, which is never loaded",
            file=file,
            remedy="Save numbers, with a codec for numbers.",
        )
    dtype = np.dtype(array.dtype)
    if dtype.kind not in "biufc" and not (dtype.kind in "SV" and dtype.names is None and array.ndim == 1):
        raise FormatError(f"array {name!r} is of type {array.dtype!s:.200}, which no field can have", file=file)


def _chunks(array: Any) -> int:
    """How many chunks an array has, or shards if it has those: each is a file. Dimensions of no length count, too."""
    sides = zip(array.shape, getattr(array, "shards", None) or array.chunks, strict=True)
    return math.prod(max(-(-int(length) // max(int(side), 1)), 1) for length, side in sides)


def _row_bytes(arrays: dict[str, Any]) -> int:
    return sum(int(array.nbytes) // max(int(array.shape[0]), 1) for array in arrays.values())


def _chunk_rows(arrays: dict[str, Any]) -> int:
    return max(1, *(int(array.chunks[0]) for array in arrays.values()))


def _rows(arrays: dict[str, Any], begin: int, end: int, file: str, *, unpack: bool) -> dict[str, Any]:
    with reading(f"rows {begin} to {end - 1} cannot be read", file):
        found = {name: plain_rows(np.asarray(array[begin:end])) for name, array in arrays.items()}
        return with_values(found, _meanings(arrays)) if unpack else found
