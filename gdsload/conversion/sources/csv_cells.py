"""Cells of CSV files: of which type a column is, and what its cells are then.

One row is read by Python's rules, which decide. Many at once are read by Arrow, where it agrees with these; where it
may not, they are read one by one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np

from gdsload.conversion.sources.csv_lines import Row, Stretch, check_text, other_delimiter
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import put
from gdsload.conversion.suffixes import PICTURES
from gdsload.errors import FormatError, OptionError

__all__ = [
    "CELL_TYPES",
    "NUMBERS",
    "CellReader",
    "Column",
    "beyond",
    "beyond_whole",
    "is_float",
    "kept_or_rounded",
    "missing_among_numbers",
    "type_of",
]

NUMBERS = ("int", "uint", "float", "bool")
CELL_TYPES = (*NUMBERS, "str", "file")
# Not all that int() and float() take: "1_000" is a text.
_INT = re.compile(r"[+-]?0*[0-9]{1,20}")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_WHOLE_FLOAT = re.compile(r"[+-]?[0-9]+(\.0*)?")
_EXACT = 2**53  # up to which float64 has all whole numbers
_DIGITS = len(str(_EXACT))
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_LIMITS = {"int": (-(2**63), 2**63 - 1), "uint": (0, 2**64 - 1)}
_MISSING = frozenset({"na", "n/a", "#n/a", "<na>", "null", "none", "nil", "-", "?"})  # in lower case
# What Arrow takes for a number, and Python does not.
_HEX = (b"0x", b"0X")


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        name: the field's.
        kind: the type of its cells.
        place: its place in a row.
        rounds: whether a float may be another number than the whole one in its cell, as the user has named the type.
    """

    name: str
    kind: str
    place: int
    rounds: bool = False


def type_of(cells: Sequence[str]) -> str:
    """The type of a column, by cells that are not empty."""
    if not cells:
        return "str"
    for kind in NUMBERS:
        if all(_number(cell.strip(), kind) is not None for cell in cells):
            return kind
    return "file" if all(cell.lower().endswith((*PICTURES, ".npy")) for cell in cells) else "str"


def beyond_whole(cells: Sequence[str]) -> str | None:
    """A cell of a column of floats that is a number which these round; None if there is none.

    Rounded, different names become the same. In a column of whole numbers alone it is one that int64 does not hold,
    where uint64 does not hold all.
    """
    stripped = [cell.strip() for cell in cells]
    if type_of(stripped) != "float":
        return None
    if not all(map(_WHOLE.fullmatch, stripped)):
        return next((cell for cell in cells if _is_rounded(cell.strip())), None)
    return next(cell for cell in cells if _number(cell.strip(), "int") is None)


def _is_rounded(cell: str) -> bool:
    """Whether a cell is a whole number that float64 does not have, or a number that is infinite as one."""
    if len(cell) >= _DIGITS and _WHOLE_FLOAT.fullmatch(cell):
        return Decimal(cell) != Decimal(float(cell))
    return _is_infinite(cell)


def _is_infinite(cell: str) -> bool:
    return math.isinf(float(cell)) and "inf" not in cell.lower()


def missing_among_numbers(cells: Sequence[str]) -> str | None:
    """A cell that others write for a missing value, if all else in the column are numbers; None if it is not so."""
    odd = [cell for cell in cells if cell.strip().lower() in _MISSING]
    others = [cell for cell in cells if cell.strip().lower() not in _MISSING]
    return odd[0] if odd and type_of(others) in NUMBERS else None


def is_float(cell: str) -> bool:
    """Whether a cell is a number."""
    return _FLOAT.fullmatch(cell) is not None


def _number(cell: str, kind: str) -> Any:
    """The value of a cell, or None if it is none of that kind."""
    if kind == "bool":
        return _BOOLS.get(cell)
    if kind == "float":
        return np.float64(cell) if is_float(cell) else None
    if _INT.fullmatch(cell) is None:
        return None
    low, high = _LIMITS[kind]
    value = int(cell)
    if not low <= value <= high:
        return None
    return np.uint64(value) if kind == "uint" else value


class CellReader:
    """Makes samples of rows.

    Args:
        delimiter: what stands between cells.
        columns: the columns that are wanted.
        width: how many there are in all.
        fill: what stands for an empty cell, by column.

    Raises:
        OptionError: if a value that fills does not fit its column.
    """

    def __init__(self, delimiter: str, columns: Sequence[Column], width: int, fill: Mapping[str, Any]) -> None:
        self.delimiter, self.columns, self.width = delimiter, list(columns), width
        self._fill = {column.name: _filling(fill[column.name], column) for column in columns if column.name in fill}

    def sample(self, row: Row, where: str, load: Callable[[str, str], Mapping[str, Any]]) -> dict[str, Any]:
        """The sample of a row.

        Args:
            row: the row.
            where: where it is, for errors.
            load: gives the fields of what is at a path, by column and path.

        Raises:
            FormatError: if the row is damaged, or a cell is not of its column's type.
        """
        if row.trouble is not None:
            raise FormatError(f"the row cannot be read: {row.trouble}", file=where)
        if len(row.cells) != self.width:
            said = "there is one column" if self.width == 1 else f"there are {self.width} columns"
            between = other_delimiter([column.name for column in self.columns]) if self.width == 1 else None
            raise FormatError(
                f"the row has {len(row.cells)} cells, but {said}",
                file=where,
                remedy=None if between is None else f"If cells lie between {between!r}, pass delimiter={between!r}.",
            )
        found: dict[str, Any] = {}
        for column in self.columns:
            cell = row.cells[column.place]
            is_path = column.kind == "file"
            put(found, load(column.name, cell) if is_path else {column.name: self._value(cell, column, where)}, where)
        return found

    def _value(self, cell: str, column: Column, where: str) -> Any:
        if not cell and column.name in self._fill:
            return self._fill[column.name]
        if column.kind == "str":
            check_text(cell, f"column {column.name!r}", where)
            return cell
        if not cell and column.kind == "float":
            return np.float64("nan")
        value = _number(cell.strip(), column.kind)
        if value is None:
            raise FormatError(
                f"column {column.name!r} has {cell!r:.200}, which is no {column.kind}",
                file=where,
                remedy=_way_out(cell.strip(), column),
            )
        if column.kind == "float" and not column.rounds and _is_rounded(cell.strip()):
            raise FormatError(f"column {column.name!r} {beyond(cell)}", file=where, remedy=kept_or_rounded(column.name))
        return value

    def batch(self, stretch: Stretch) -> dict[str, Any] | None:
        """The samples of many rows, as `ShardWriter.write_batch` takes them; None if Python is to read them."""
        if any(column.kind == "file" for column in self.columns) or not len(stretch.begins):
            return None
        table = self._read(stretch)
        if table is None or table.num_rows != len(stretch.begins):
            return None
        found = {column.name: self._values(table.column(number), column) for number, column in enumerate(self.columns)}
        if any(values is None for values in found.values()) or self._has_rounded(stretch, found):
            return None
        return found

    def _has_rounded(self, stretch: Stretch, found: Mapping[str, Any]) -> bool:
        """Whether a number has been rounded: the cells of large numbers are read again, as texts."""
        for column in self.columns:
            if column.kind == "float" and not column.rounds:
                large = np.flatnonzero(np.abs(found[column.name]) >= _EXACT)
                texts = self._read(stretch, replace(column, kind="str")).column(0).take(large) if len(large) else []
                if any(_is_rounded(str(text).strip()) for text in texts):
                    return True
        return False

    def _read(self, stretch: Stretch, column: Column | None = None) -> Any:
        """The columns of a stretch, or one; None if Arrow does not take it, or may take what is no number."""
        arrow, reader = need("pyarrow"), need("pyarrow.csv")
        kinds = {column.kind for column in self.columns}
        content = stretch.content
        if kinds & {"int", "uint"} and any(mark in content for mark in _HEX):
            return None
        if "float" in kinds and b"(" in content and b"nan(" in content.lower():
            return None
        parse, convert = self._options if column is None else self._options_for([column])
        try:
            return reader.read_csv(
                arrow.py_buffer(content),
                reader.ReadOptions(
                    use_threads=False,
                    block_size=len(content) + 1,
                    column_names=[str(number) for number in range(self.width)],
                ),
                parse,
                convert,
            )
        except arrow.ArrowException:
            return None

    @cached_property
    def _options(self) -> tuple[Any, Any]:
        return self._options_for(self.columns)

    def _options_for(self, columns: Sequence[Column]) -> tuple[Any, Any]:
        arrow, reader = need("pyarrow"), need("pyarrow.csv")
        kinds = {"int": arrow.int64(), "uint": arrow.uint64(), "float": arrow.float64(), "bool": arrow.bool_()}
        names = [str(column.place) for column in columns]
        return (
            reader.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            reader.ConvertOptions(
                include_columns=names,
                column_types={
                    name: kinds.get(column.kind, arrow.string()) for name, column in zip(names, columns, strict=True)
                },
                null_values=[""],
                strings_can_be_null=False,
                quoted_strings_can_be_null=True,
                true_values=[text for text, value in _BOOLS.items() if value],
                false_values=[text for text, value in _BOOLS.items() if not value],
            ),
        )

    def _values(self, column: Any, which: Column) -> Any:
        array = column.combine_chunks()
        array = array.chunk(0) if hasattr(array, "chunk") else array
        if which.kind == "str":
            values = array.to_pylist()
            return values if which.name not in self._fill else [text or self._fill[which.name] for text in values]
        if array.null_count and which.name in self._fill:
            array = array.fill_null(self._fill[which.name])
        if array.null_count and which.kind != "float":
            return None
        return array.to_numpy(zero_copy_only=False)


def beyond(cell: str) -> str:
    """What is wrong with a number that no type of a column of numbers has."""
    if not _WHOLE_FLOAT.fullmatch(cell.strip()):
        return f"has the number {cell.strip():.100}, which is beyond those of float64"
    return f"has the whole number {cell.strip():.100}, which would be rounded: int64 and uint64 do not hold all cells"


def kept_or_rounded(name: str) -> str:
    """What users can do about it."""
    return f"Keep them as texts, types={{{name!r}: 'str'}}; or round them, types={{{name!r}: 'float'}}."


def _filling(value: Any, column: Column) -> Any:
    """The value that fills, as it is in the column."""
    text = value if isinstance(value, str) else str(value)
    found = text if column.kind == "str" else None if column.kind == "file" else _number(text, column.kind)
    lost = column.kind == "float" and not column.rounds and _is_rounded(text)
    if found is None or lost or (column.kind == "str" and not isinstance(value, str)):
        raise OptionError(
            f"fill has {value!r:.100} for column {column.name!r}, which is {column.kind}",
            remedy=f"Pass a value of that type, or another type: types={{{column.name!r}: ...}}.",
        )
    return found


def _way_out(cell: str, column: Column) -> str:
    if not cell:
        return f"Say what stands for an empty cell: fill={{{column.name!r}: 0}}, say."
    others = ("uint",) if _WHOLE.fullmatch(cell) else ("float",)  # a float would round a whole number
    kind = next((kind for kind in others if _number(cell, kind) is not None), "str")
    rounds = ", which rounds whole numbers beyond 2**53" if kind == "float" else ""
    return f"If the column is of another type, say so: types={{{column.name!r}: {kind!r}}}{rounds}."
