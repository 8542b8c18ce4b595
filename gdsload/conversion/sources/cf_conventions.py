"""The meaning of arrays' attributes for numbers and dimensions, by netCDF's conventions (CF), as xarray has them."""

from __future__ import annotations

import base64
import binascii
import struct
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.row_source import choice_of
from gdsload.errors import FormatError
from gdsload.shards.casts import cast
from gdsload.shards.format.dtypes import dtype_of

_FACTORS = ("scale_factor", "add_offset")
ATTRIBUTES = (*_FACTORS, "_FillValue", "missing_value", "_Unsigned", "units", "calendar")
_FLOAT64 = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class StoredNumbers:
    """The meaning of the numbers stored in an array.

    Attributes:
        dtype: the element type that they are stored in.
        scale: a value is number * scale + offset.
        offset: see above.
        missing: the numbers that stand for no value.
        read_as: the whole type of the same bytes that they are of; None: the one they are stored in.
        units: the unit of values.
    """

    dtype: np.dtype[Any]
    scale: float = 1.0
    offset: float = 0.0
    missing: tuple[float, ...] = ()
    read_as: np.dtype[Any] | None = None
    units: str | None = None

    @classmethod
    def of(cls, attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> StoredNumbers:
        """The meaning that attributes give to the numbers of a type.

        Raises:
            FormatError: if a factor is no number.
        """
        if dtype.kind not in "iuf":
            return cls(dtype)
        scale, offset = (_factor(attributes, name, dtype) for name in _FACTORS)
        lost = [*_numbers(attributes.get("_FillValue"), dtype), *_numbers(attributes.get("missing_value"), dtype)]
        word, whole = _text(attributes.get("_Unsigned")), {"i": "u", "u": "i"}.get(dtype.kind)
        turned = whole is not None and word == {"i": "true", "u": "false"}[dtype.kind]
        units, calendar = _text(attributes.get("units")), _text(attributes.get("calendar"))
        return cls(
            dtype,
            1.0 if scale is None else scale,
            0.0 if offset is None else offset,
            tuple(dict.fromkeys(number for number in lost if number == number)),  # noqa: PLR0124 - NaN is none anyway
            np.dtype(f"{dtype.byteorder}{whole}{dtype.itemsize}") if turned else None,
            f"{units} ({calendar})" if units and calendar else units or None,
        )

    @property
    def formula(self) -> str:
        """The rule that makes a value of a number; empty if the number is the value."""
        parts = [f"of the type {self.read_as}"] if self.read_as is not None else []
        parts += [f"the number * {self.scale!r} + {self.offset!r}"] if (self.scale, self.offset) != (1, 0) else []
        parts += [f"missing for {', '.join(map(str, self.missing))}"] if self.missing else []
        return " and ".join(parts)

    def notes(self, name: str, *, unpack: bool) -> list[str]:
        """Notes for users on the numbers, which are unpacked or taken as they are stored."""
        if self.formula and not unpack:
            meaning = f"by its attributes a value is {self.formula}"
            return [f"{name!r} has the numbers as they are stored; {meaning}: `unpack=True` makes values of them"]
        return [f"{name!r} is in {self.units}"] if self.units and " since " in self.units else []

    def unit(self, *, unpack: bool) -> str | None:
        """The unit of numbers, if attributes give it; stored numbers have it once they are unpacked."""
        as_stored = bool(self.units and self.formula and not unpack)
        return f"{self.units}, where a value is {self.formula}" if as_stored else self.units

    def check_same(self, other: StoredNumbers, name: str, files: tuple[str, str], *, unpack: bool) -> None:
        """Refuse numbers of an array that mean something else in another one of two files.

        Raises:
            FormatError: if they do.
        """
        here, there = ("" if unpack else one.formula for one in (self, other))
        if here != there or self.units != other.units:
            shown = (self.formula, other.formula) if here != there else (self.units, other.units)
            before, found = (one or "the number" for one in shown)
            raise FormatError(
                f"by the attributes of {name!r} a value is {found}, but {before} in {files[0]}: one number would mean "
                "two things",
                file=files[1],
                remedy="Pass `unpack=True`, which makes values of both."
                if here != there
                else "Convert each file by itself; or choose other fields: `fields=[...]`.",
            )

    def unpacked(self, numbers: NDArray[Any], name: str) -> NDArray[Any]:
        """The values: float64 if they are scaled, or some whole ones are missing, which become NaN.

        Raises:
            SchemaError: if float64 does not have a number.
        """
        lost = np.isin(numbers, np.array(self.missing).astype(self.dtype)) if self.missing else None
        found = numbers if self.read_as is None else numbers.view(self.read_as)
        scaled = (self.scale, self.offset) != (1, 0)
        if not scaled and (lost is None or found.dtype.kind == "f"):
            return found if lost is None else np.where(lost, np.array(np.nan, found.dtype), found)
        found = np.asarray(cast(found if lost is None else np.where(lost, 0, found), dtype_of("float64"), name))
        found = found * self.scale + self.offset
        return found if lost is None else np.where(lost, np.nan, found)


def units_metadata(meanings: Mapping[str, StoredNumbers], *, unpack: bool) -> dict[str, Any]:
    """The part of a dataset's metadata about arrays: the units of those whose attributes give them."""
    units = {name: unit for name, one in meanings.items() if (unit := one.unit(unpack=unpack))}
    return {"units": units} if units else {}


def with_values(rows: Mapping[str, Any], meanings: Mapping[str, StoredNumbers]) -> dict[str, Any]:
    """Rows of arrays, with values in place of stored numbers.

    Raises:
        SchemaError: if float64 does not have a number.
    """
    return {name: meanings[name].unpacked(one, name) if meanings[name].formula else one for name, one in rows.items()}


def of_first_dimension(dimensions: Mapping[str, str | None], coordinates: Collection[str], file: str) -> list[str]:
    """The arrays that have a row for each sample; the others are coordinates of another dimension.

    Args:
        dimensions: the first dimension of each array; None if it has no name.
        coordinates: the arrays that are values of a dimension.
        file: where they are, for errors.

    Raises:
        FormatError: if the first dimensions of arrays differ.
    """
    counted = Counter(one for name, one in dimensions.items() if one is not None and name not in coordinates)
    if len(counted) > 1:
        usual = counted.most_common(1)[0][0]
        listed = ", ".join(f"{name!r} {one!r}" for name, one in dimensions.items() if name not in coordinates)
        together = [name for name, one in dimensions.items() if one in (usual, None)]
        remedy = f"Choose those that go together: {choice_of(together)}."
        raise FormatError(f"the first dimensions of the arrays differ: {listed:.500}", file=file, remedy=remedy)
    rows = {*counted, None} if counted else {None, *dimensions.values()}
    return [name for name, one in dimensions.items() if one in rows]


def array_notes(meanings: Mapping[str, StoredNumbers], left_out: Collection[str], *, unpack: bool) -> list[str]:
    """Notes for users on the meaning of stored numbers, and on coordinates that are left out."""
    return [note for name, one in meanings.items() for note in one.notes(name, unpack=unpack)] + [
        f"{name!r} is left out: it belongs to another dimension than the first, and `metadata={{...}}` may keep it"
        for name in left_out
    ]


def _factor(attributes: Mapping[str, Any], name: str, dtype: np.dtype[Any]) -> float | None:
    if (given := attributes.get(name)) is None:
        return None
    found = _numbers(given, dtype)
    if len(found) != 1:
        raise FormatError(f"the attribute {name} is {given!r:.100}, no single number")
    return float(found[0])


def _numbers(given: Any, dtype: np.dtype[Any]) -> list[Any]:
    """The numbers of an attribute; xarray writes those of floats to Zarr in base64."""
    if isinstance(given, str) and dtype.kind == "f":
        with suppress(binascii.Error, struct.error, ValueError):
            return list(_FLOAT64.unpack(base64.b64decode(given, validate=True)))
    with suppress(TypeError, ValueError, OverflowError):
        found = np.asarray(given).reshape(-1)
        if found.dtype.kind in "SU":
            found = found.astype(np.float64)
        return found.tolist() if found.dtype.kind in "iuf" else []
    return []


def _text(given: Any) -> str:
    if isinstance(given, np.ndarray) and given.size == 1:
        given = given.reshape(-1)[0]
    if isinstance(given, bytes):
        given = given.decode("utf-8", "replace")
    return str(given)[:200] if isinstance(given, str) else ""
