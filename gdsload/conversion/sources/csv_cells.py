"""Cells of CSV files: Arrow tells rows and cells apart, and makes numbers of them.

Cells are read as bytes first, so that a cell that is no number, or no UTF-8, is at fault alone.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from gdsload.conversion.sources.csv_text import Piece
from gdsload.conversion.sources.extras import need
from gdsload.conversion.suffixes import PICTURES
from gdsload.errors import FormatError, OptionError

__all__ = [
    "CELL_TYPES",
    "NUMBERS",
    "CellReader",
    "Column",
    "Rows",
    "beyond",
    "beyond_whole",
    "check_text",
    "header_cells",
    "is_path",
    "kept_or_rounded",
    "missing_among_numbers",
    "other_delimiter",
    "read_cells",
    "type_of",
]

NUMBERS = ("int", "uint", "float", "bool")
CELL_TYPES = (*NUMBERS, "str", "file")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_WHOLE_FLOAT = re.compile(r"[+-]?[0-9]+(\.0*)?")
_EXACT = 2**53  # up to which float64 has all whole numbers
_DIGITS = len(str(_EXACT))
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_NO_NUMBER = {"int": ("x", "X"), "uint": ("x", "X"), "float": ("(",), "bool": ()}
"""Parts of texts that Arrow takes for numbers, and that are none here: 0x1F, nan(1)."""
_MISSING = frozenset({"na", "n/a", "#n/a", "<na>", "null", "none", "nil", "-", "?"})  # in lower case


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


class Rows(NamedTuple):
    """Rows of a piece that go together: the values of their columns, or what is wrong with a row that is alone."""

    rows: Sequence[int]
    values: Mapping[str, Any]
    trouble: FormatError | None = None


def header_cells(row: bytes, delimiter: str) -> list[str]:
    """The cells of one row, however many it has."""
    csv = need("pyarrow.csv")
    width = _parsed(row, delimiter, csv.ReadOptions(autogenerate_column_names=True), {}, None).num_columns
    cells, _ = read_cells(Piece(row, 0, 1, np.zeros(1, np.int64)), delimiter, width)
    return [_text(column[0].as_py()).strip() for column in cells]


def read_cells(piece: Piece, delimiter: str, width: int) -> tuple[list[Any], dict[int, int]]:
    """The cells of a piece, as an array of bytes for each column; and how many cells rows have that have others."""
    arrow, csv = need("pyarrow"), need("pyarrow.csv")
    names, odd = [str(number) for number in range(width)], dict[int, int]()

    def skip(row: Any) -> str:
        odd[row.number - 1] = row.actual_columns
        return "skip"

    # Arrow takes a mark of the byte order away wherever it begins, and passes over an empty line.
    content = b"\n" + piece.content if piece.content.startswith(codecs.BOM_UTF8) else piece.content
    options = csv.ReadOptions(use_threads=False, block_size=len(content) + 1, column_names=names)
    table = _parsed(content, delimiter, options, dict.fromkeys(names, arrow.binary()), skip)
    if table.num_rows + len(odd) != len(piece.begins):  # a cut and Arrow would have to differ
        raise FormatError(f"line {piece.line} and those after it are read in two ways")
    return [arrow.concat_arrays(column.chunks) for column in table.columns], odd


def _parsed(content: bytes, delimiter: str, options: Any, types: Mapping[str, Any], skip: Any) -> Any:
    arrow, csv = need("pyarrow"), need("pyarrow.csv")
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=skip)
    convert = csv.ConvertOptions(column_types=types, null_values=[], strings_can_be_null=False)
    return csv.read_csv(arrow.py_buffer(content), options, parse, convert)


def type_of(cells: Any) -> str:
    """The type of a column, by cells that are not empty."""
    if not len(cells):
        return "str"
    for kind in NUMBERS:
        try:
            _numbers(cells, kind)
        except ValueError:
            continue
        return kind
    return "file" if all(is_path(_text(cell)) for cell in cells.to_pylist()) else "str"


def is_path(cell: str) -> bool:
    """Return whether a cell ends as the name of an image or of an array does."""
    return cell.lower().endswith((*PICTURES, ".npy"))


def _numbers(cells: Any, kind: str) -> Any:
    """The values of cells, of which none is empty.

    Raises:
        ValueError: if one is no such number, or no text.
    """
    arrow, compute = need("pyarrow"), need("pyarrow.compute")
    texts = compute.utf8_trim_whitespace(cells.cast(arrow.string()))
    if any(compute.any(compute.match_substring(texts, mark)).as_py() for mark in _NO_NUMBER[kind]):
        raise ValueError("it is no number")
    if kind == "bool":
        places = compute.index_in(texts, arrow.array([*_TRUE, *_FALSE]))
        if places.null_count:
            raise ValueError("it is neither true nor false")
        return compute.less(places, len(_TRUE))
    if compute.any(compute.starts_with(texts, "+")).as_py():  # Arrow has whole numbers without
        texts = compute.replace_substring_regex(texts, r"^\+([0-9.])", r"\1")
    return texts.cast({"int": arrow.int64(), "uint": arrow.uint64(), "float": arrow.float64()}[kind])


def beyond_whole(cells: Any) -> str | None:
    """A cell of a column of floats that is a number which these round; None if there is none.

    Rounded, different names become the same. In a column of whole numbers alone it is one that int64 does not hold,
    where uint64 does not hold all.
    """
    if type_of(cells) != "float":
        return None
    texts = [_text(cell).strip() for cell in cells.to_pylist()]
    if not all(map(_WHOLE.fullmatch, texts)):
        return next(filter(_is_rounded, texts), None)
    return next(text for text in texts if _WHOLE_FLOAT.fullmatch(text) and not -(2**63) <= Decimal(text) < 2**63)


def _is_rounded(cell: str) -> bool:
    """Return whether a cell is a whole number that float64 does not have, or a number that is infinite as one."""
    if len(cell) >= _DIGITS and _WHOLE_FLOAT.fullmatch(cell):
        return Decimal(cell) != Decimal(float(cell))
    return math.isinf(float(cell)) and "inf" not in cell.lower()


def missing_among_numbers(cells: Any) -> str | None:
    """A cell that others write for a missing value, if all else in the column are numbers; None if it is not so."""
    texts = [_text(cell) for cell in cells.to_pylist()]
    odd = [text for text in texts if text.strip().lower() in _MISSING]
    others = [text.encode("utf-8", "surrogateescape") for text in texts if text.strip().lower() not in _MISSING]
    return odd[0] if odd and type_of(need("pyarrow").array(others, "binary")) in NUMBERS else None


class CellReader:
    """Makes values of the wanted columns of rows, which have `width` columns in all.

    Raises:
        OptionError: if a value that fills does not fit its column.
    """

    def __init__(self, delimiter: str, columns: Sequence[Column], width: int, fill: Mapping[str, Any]) -> None:
        self.delimiter, self.columns, self.width = delimiter, list(columns), width
        self._fill = {column.name: _filling(fill[column.name], column) for column in columns if column.name in fill}

    def read(self, piece: Piece, file: str) -> Iterator[Rows]:
        """The rows of a piece: good ones that follow each other together, each bad one alone."""
        if piece.trouble is not None:
            trouble = FormatError(f"the row cannot be read: {piece.trouble}", file=f"{file}, line {piece.line}")
            yield Rows((0,), {}, trouble)
            return
        cells, odd = read_cells(piece, self.delimiter, self.width)
        good = np.setdiff1d(np.arange(len(piece.begins)), list(odd), assume_unique=True)
        edges = np.searchsorted(good, list(odd))
        low = 0
        for number, edge in zip(odd, edges.tolist(), strict=True):
            yield from self._between(cells, good, (low, edge), piece, file)
            yield Rows((number,), {}, self._other_width(odd[number], f"{file}, line {piece.line_of(number)}"))
            low = edge
        yield from self._between(cells, good, (low, len(good)), piece, file)

    def _between(
        self, cells: Sequence[Any], rows: Any, edges: tuple[int, int], piece: Piece, file: str
    ) -> Iterator[Rows]:
        """The rows between two edges: all at once, or, if one is bad, each half by itself."""
        low, high = edges
        if low == high:
            return
        where = f"{file}, line {piece.line_of(int(rows[low]))}"
        try:
            values = {
                column.name: self._values(cells[column.place].slice(low, high - low), column, where)
                for column in self.columns
            }
        except (FormatError, ValueError) as error:
            if high - low > 1:
                middle = (low + high) // 2
                yield from self._between(cells, rows, (low, middle), piece, file)
                yield from self._between(cells, rows, (middle, high), piece, file)
                return
            trouble = error if isinstance(error, FormatError) else FormatError(str(error), file=where)
            yield Rows(rows[low:high].tolist(), {}, trouble)
        else:
            yield Rows(rows[low:high].tolist(), values)

    def _values(self, cells: Any, column: Column, where: str) -> Any:
        """The values of cells.

        Raises:
            FormatError: if one is none; of one cell it says what is wrong.
        """
        arrow, compute = need("pyarrow"), need("pyarrow.compute")
        cell, fill = _text(cells[0].as_py()), self._fill.get(column.name)
        if column.kind in ("str", "file"):
            try:
                texts: list[str] = cells.cast(arrow.string()).to_pylist()
            except arrow.ArrowInvalid:
                check_text(cell, f"column {column.name!r}", where)
                raise
            return texts if fill is None else [text or fill for text in texts]
        there = compute.not_equal(compute.binary_length(cells), 0)
        full = cells.filter(there)
        if len(full) < len(cells) and fill is None and column.kind != "float":
            raise _no_such(cell, column, where)
        try:
            numbers = _numbers(full, column.kind)
        except ValueError:
            raise _no_such(cell, column, where) from None
        found = numbers.to_numpy(zero_copy_only=False)
        if column.kind == "float" and not column.rounds:
            large = np.flatnonzero(np.abs(found) >= _EXACT)
            if any(_is_rounded(_text(one).strip()) for one in full.take(arrow.array(large)).to_pylist()):
                reason = f"column {column.name!r} {beyond(cell)}"
                raise FormatError(reason, file=where, remedy=kept_or_rounded(column.name))
        if len(full) == len(cells):
            return found
        values = np.full(len(cells), np.nan if fill is None else fill, found.dtype)
        values[there.to_numpy(zero_copy_only=False)] = found
        return values

    def _other_width(self, width: int, where: str) -> FormatError:
        said = "there is one column" if self.width == 1 else f"there are {self.width} columns"
        between = other_delimiter([column.name for column in self.columns]) if self.width == 1 else None
        return FormatError(
            f"the row has {width} cells, but {said}",
            file=where,
            remedy=None if between is None else f"If cells are between {between!r}, pass `delimiter={between!r}`.",
        )


def other_delimiter(names: Sequence[str]) -> str | None:
    """The delimiter that a file may have instead, as its only column's name holds one; else None."""
    return next((one for one in ";\t|" if one in names[0]), None) if len(names) == 1 else None


def check_text(cell: str, what: str, where: str) -> None:
    """Refuse a cell that is no UTF-8.

    Raises:
        FormatError: naming the bytes.
    """
    content = cell.encode("utf-8", "surrogateescape")
    try:
        content.decode()
    except UnicodeError:
        raise FormatError(
            f"the file is not UTF-8: {what} is {content!r:.100}", file=where, remedy="Pass `encoding='latin-1'`, say."
        ) from None


def _text(cell: bytes) -> str:
    """A cell as a text, which has bytes that are not UTF-8 as Python has them in the names of files."""
    return cell.decode("utf-8", "surrogateescape")


def beyond(cell: str) -> str:
    """The fault of a number that no type of a column of numbers has."""
    if not _WHOLE_FLOAT.fullmatch(cell.strip()):
        return f"has the number {cell.strip():.100}, which is beyond those of float64"
    return f"has the whole number {cell.strip():.100}, which would be rounded: int64 and uint64 do not hold all cells"


def kept_or_rounded(name: str) -> str:
    """The remedy for such a number."""
    return f"Keep them as texts, `types={{{name!r}: 'str'}}`; or round them, `types={{{name!r}: 'float'}}`."


def _number(text: str, kind: str) -> Any:
    """The number that a text is; None if it is none of that kind."""
    try:
        return _numbers(need("pyarrow").array([text.encode("utf-8", "surrogateescape")]), kind)[0].as_py()
    except ValueError:
        return None


def _filling(value: Any, column: Column) -> Any:
    """The value that fills, as it is in the column."""
    text = value if isinstance(value, str) else str(value)
    found = _number(text, column.kind) if column.kind in NUMBERS else value if column.kind == "str" else None
    lost = column.kind == "float" and found is not None and not column.rounds and _is_rounded(text)
    if found is None or lost or (column.kind == "str" and not isinstance(value, str)):
        raise OptionError(
            f"has {value!r:.100} for column {column.name!r}, which is {column.kind}",
            option="fill",
            remedy=f"Pass a value of that type, or another type: `types={{{column.name!r}: ...}}`.",
        )
    return found


def _no_such(cell: str, column: Column, where: str) -> FormatError:
    text, name = cell.strip(), column.name
    others = ("uint",) if _WHOLE.fullmatch(text) else ("float",)  # a float would round a whole number
    kind = next((kind for kind in others if _number(text, kind) is not None), "str")
    rounds = ", which rounds whole numbers beyond 2**53" if kind == "float" else ""
    return FormatError(
        f"column {name!r} has {cell!r:.200}, which is no {column.kind}",
        file=where,
        remedy=f"If the column is of another type, say so: `types={{{name!r}: {kind!r}}}`{rounds}."
        if text
        else f"Say what stands for an empty cell: `fill={{{name!r}: 0}}`, say.",
    )
