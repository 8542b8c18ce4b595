"""The text of CSV files, cut where rows end, so that Arrow can read any rows of it by themselves; and their cells.

A row ends at a line's end that is in no quotes. A quote at the beginning of a cell opens quotes, the next one closes
them and ends the cell, and two in between stand for one; other cells have quotes as characters. A row that breaks these
rules is known by the reason: Arrow would read it without an error. It tells cells apart, as texts, and makes numbers of
them.
"""

from __future__ import annotations

import codecs
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.folders import PICTURES
from gdsload.conversion.input_files import open_file
from gdsload.conversion.reasons import in_words, reading
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.streams import DAMAGED, unpacked
from gdsload.errors import FormatError

STRETCH_BYTES = 8 * 2**20
MAX_ROW_BYTES = 2**28
_NEWLINE, _RETURN = b"\n\r"
_LONE_RETURN = "a carriage return alone is in it; if such end its lines, convert them (dos2unix -c mac)"


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a file that follow each other.

    Attributes:
        content: their bytes, in UTF-8.
        offset: where it begins in the file.
        begins: where each row begins in the content; lines without anything are none.
        lines: the lines that they begin in, counted from 1.
        odd: what is wrong with a row, by where it begins.
    """

    content: bytes
    offset: int
    begins: NDArray[np.int64]
    lines: NDArray[np.int64]
    odd: Mapping[int, str]

    def text(self, low: int, high: int) -> bytes:
        """The bytes of the rows from one number to another."""
        end = int(self.begins[high]) if high < len(self.begins) else len(self.content)
        return self.content[int(self.begins[low]) : end]


@dataclass(frozen=True, slots=True)
class CsvForm:
    """The form of the text of files; without a delimiter it is a tab in `.tsv` files, else a comma."""

    delimiter: str | None
    encoding: str

    def between(self, file: str) -> str:
        """The character between the cells of a file."""
        return self.delimiter or ("\t" if file.lower().removesuffix(".gz").endswith(".tsv") else ",")

    def seekable(self, file: str) -> bool:
        """Return whether rows can be found again by their place."""
        return self.encoding == "utf-8" and not file.lower().endswith(".gz")

    def rows(
        self, file: str, step: int | None = None, *, offset: int = 0, line: int = 1, nbytes: int = -1
    ) -> Iterator[Rows]:
        """The rows of a file, about `step` bytes at once, from an offset and its line on; `nbytes` of them, or all.

        Raises:
            FormatError: if the file cannot be read, or has a row without an end.
        """
        usual = read = step or STRETCH_BYTES
        pattern = _pattern(self.between(file))
        with self._opened(file, offset) as read_bytes:
            content = b"" if offset else read_bytes(len(codecs.BOM_UTF8))
            if self.encoding == "utf-8" and content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                # as spreadsheets write it
                remedy = "Pass `encoding='utf-16'`."
                raise FormatError("its text is UTF-16, but is read as UTF-8", file=file, remedy=remedy)
            if content == codecs.BOM_UTF8:
                content, offset = b"", len(content)
            left = nbytes - len(content) if nbytes >= 0 else 2**63
            more = b"..."
            while more:
                more = read_bytes(min(read, left))
                left -= len(more)
                content += more or b"\n"
                begins, odd, end = _cut(content, pattern)
                ends = np.flatnonzero(np.frombuffer(content, np.uint8)[:end] == _NEWLINE)
                if len(begins):
                    yield Rows(content[:end], offset, begins, line + np.searchsorted(ends, begins), odd)
                line, offset, content = line + len(ends), offset + end, content[end:]
                if len(content) >= MAX_ROW_BYTES:
                    reason = f"the row in line {line} has {MAX_ROW_BYTES} bytes or more"
                    raise FormatError(reason, file=file, remedy="If a quote in it is never closed, close it.")
                read = usual if end else 2 * read
            if content:
                one = np.zeros(1, np.int64)
                yield Rows(content, offset, one, one + line, {0: "a quote in it is never closed"})

    @contextmanager
    def _opened(self, file: str, offset: int) -> Iterator[Callable[[int], bytes]]:
        """A function that reads the next bytes of a file, as UTF-8."""
        with reading("the file cannot be read", file, *DAMAGED, UnicodeError), open_file(file) as raw:
            raw.seek(offset)
            stream = unpacked(raw, packed=file.lower().endswith(".gz"))
            if self.encoding == "utf-8":
                yield stream.read
            else:
                text = io.TextIOWrapper(stream, self.encoding, newline="")
                yield lambda size: text.read(size).encode()


@cache
def _pattern(delimiter: str) -> re.Pattern[bytes]:
    """A row with its end: a good one, an odd one, or the rest of the text."""
    mark = re.escape(delimiter.encode())
    rest, quoted = rb"[^\r\n%b]*+" % mark, rb'"[^"]*+(?:""[^"]*+)*+"'
    plain = rb'[^"\r\n%b]%b' % (mark, rest)

    def row(cell: bytes, end: bytes) -> bytes:
        return rb"(?:%b)?+(?:%b(?:%b)?+)*+%b" % (cell, mark, cell, end)

    good = row(rb"%b(?=[\r\n%b])|%b" % (quoted, mark, plain), rb"\r?\n")
    odd = row(rb"%b%b|%b" % (quoted, rest, plain), rb"(?:\r?\n|(?P<alone>\r)[^\n]*+\n)")
    return re.compile(rb"(?P<good>%b)|(?P<odd>%b)|(?P<rest>.)" % (good, odd), re.DOTALL)


def _cut(content: bytes, pattern: re.Pattern[bytes]) -> tuple[NDArray[np.int64], dict[int, str], int]:
    """Where the rows begin that are whole in a text which begins with one, what is wrong with some, and their end."""
    if b'"' not in content and (b"\r" not in content or content.count(b"\r") == content.count(b"\r\n")):
        data = np.frombuffer(content, np.uint8)[: content.rfind(b"\n") + 1]
        starts = (data != _NEWLINE) & (data != _RETURN)
        starts[1:] &= data[:-1] == _NEWLINE
        return np.flatnonzero(starts), {}, len(data)
    begins, odd, end = list[int](), dict[int, str](), 0
    for row in pattern.finditer(content):
        if row.lastgroup == "rest":
            break
        if row.lastgroup == "odd":
            odd[end] = _LONE_RETURN if row["alone"] else "a quote inside a quoted cell is not doubled"
        if end in odd or content[end] not in b"\r\n":
            begins.append(end)
        end = row.end()
    return np.array(begins, np.int64), odd, end


CELL_TYPES = {
    "int": "int64", "uint": "uint64", "float": "float64", "bool": "bool", "str": "string", "file": "string",
}  # fmt: skip
"""The types that cells may have, and what they are for Arrow."""
_NUMBERS = ("int", "uint", "float", "bool")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_WHOLE_FLOAT = re.compile(r"[+-]?[0-9]+(\.0*)?")
_EXACT = 2**53  # up to which float64 has all whole numbers
_DIGITS = len(str(_EXACT))
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_NO_NUMBER = {"int": ("x", "X"), "uint": ("x", "X"), "float": ("(",)}
"""Parts of texts that Arrow takes for numbers, and that are none here: 0x1F, nan(1)."""
_MISSING = frozenset({"na", "n/a", "#n/a", "<na>", "null", "none", "nil", "-", "?"})  # in lower case


def cells_of(
    rows: Rows, low: int, high: int, between: str, names: Sequence[str], wanted: Sequence[str], where: str
) -> Any:
    """The cells of wanted columns, of the rows from one number to another, as a table of texts.

    Raises:
        FormatError: if a row is not as it should be; of a single one it says what is wrong.
    """
    arrow, csv = need("pyarrow"), need("pyarrow.csv")
    if odd := rows.odd.keys() & set(rows.begins[low:high].tolist()) if rows.odd else set():
        raise FormatError(f"the row cannot be read: {rows.odd[min(odd)]}", file=where)
    content = rows.text(low, high)
    # Arrow takes a mark of the byte order away wherever it begins, and passes over an empty line.
    content = b"\n" + content if content.startswith(codecs.BOM_UTF8) else content
    types = dict.fromkeys(wanted, arrow.string())
    try:
        found = csv.read_csv(
            arrow.py_buffer(content),
            csv.ReadOptions(use_threads=False, block_size=len(content) + 1, column_names=names),
            csv.ParseOptions(delimiter=between, newlines_in_values=True),
            csv.ConvertOptions(column_types=types, include_columns=wanted, null_values=[], strings_can_be_null=False),
        )
    except arrow.ArrowInvalid as error:
        if "UTF8" in str(error):
            raise not_utf8(content, where) from None
        other = other_delimiter(names)
        remedy = None if other is None else f"If cells are between {other!r}, pass `delimiter={other!r}`."
        reason = in_words(error).removeprefix("CSV parse error: ").removeprefix("Row #1: ")
        raise FormatError(f"the row cannot be read: {reason}", file=where, remedy=remedy) from None
    if found.num_rows != high - low:  # a cut and Arrow would have to differ
        raise FormatError("the row and those after it are read in two ways", file=where)
    return found


def not_utf8(content: bytes, where: str) -> FormatError:
    """The error of a text that is not UTF-8."""
    remedy = "Pass `encoding='latin-1'`, say."
    return FormatError(f"the file is not UTF-8: {content!r:.100}", file=where, remedy=remedy)


def other_delimiter(names: Sequence[str]) -> str | None:
    """The delimiter that a file may have instead, as its only column's name holds one; else None."""
    return next((one for one in ";\t|" if one in names[0]), None) if len(names) == 1 else None


def type_of(cells: Any, name: str, file: str) -> str:
    """The type of a column, by cells that are not empty.

    Raises:
        FormatError: if they are numbers that float64 would round, or whole ones that neither int64 nor uint64 has:
            different names would become the same.
    """
    if not len(cells):
        return "str"
    kind = number_type(cells)
    if kind == "float":
        values_of(cells, name, kind, file, filled=False, rounds=False)
        whole = [cell.strip() for cell in cells.to_pylist()]
        if all(map(_WHOLE.fullmatch, whole)):
            raise _rounded(name, max(whole, key=lambda cell: abs(int(cell))), file)
    return kind or ("file" if all(map(is_path, cells.to_pylist())) else "str")


def number_type(cells: Any) -> str | None:
    """The first type that all cells have, of numbers and of truth values, empty ones aside; None if none does."""
    return next((kind for kind in _NUMBERS if _typed(cells, kind) is not None), None)


def is_path(cell: str) -> bool:
    """Return whether a cell ends as the name of an image or of an array does."""
    return cell.lower().endswith((*PICTURES, ".npy"))


def _typed(cells: Any, kind: str) -> Any:
    """Cells as an array of a type of numbers, in which empty ones are missing; None if one is no such number."""
    arrow, compute = need("pyarrow"), need("pyarrow.compute")
    texts, empty = compute.utf8_trim_whitespace(cells), compute.equal(cells, "")
    if compute.any(empty).as_py():
        texts = compute.if_else(empty, arrow.scalar(None, arrow.string()), texts)
    if kind == "bool":
        places = compute.index_in(texts, arrow.array([*_TRUE, *_FALSE]))
        if places.null_count > texts.null_count:
            return None
        return compute.less(places, len(_TRUE))
    if any(compute.any(compute.match_substring(texts, mark)).as_py() for mark in _NO_NUMBER[kind]):
        return None
    if compute.any(compute.starts_with(texts, "+")).as_py():  # Arrow has whole numbers without
        texts = compute.replace_substring_regex(texts, r"^\+([0-9.])", r"\1")
    try:
        return texts.cast(CELL_TYPES[kind])
    except arrow.ArrowInvalid:
        return None


def values_of(cells: Any, name: str, kind: str, where: str, *, filled: bool, rounds: bool) -> Any:
    """The values of cells as an array of Arrow's, in which empty ones are missing: texts only if they are `filled`.

    Raises:
        FormatError: if one is none, or would be rounded though `rounds` is not given; of one cell it says why.
    """
    arrow, compute = need("pyarrow"), need("pyarrow.compute")
    if kind in ("str", "file"):
        none = arrow.scalar(None, arrow.string())
        return compute.if_else(compute.equal(cells, ""), none, cells) if filled else cells
    if (found := _typed(cells, kind)) is None:
        raise FormatError(
            f"column {name!r} has {cells[0].as_py()!r:.200}, which is no {kind}",
            file=where,
            remedy=f"If the column is of another type, say so: `types={{{name!r}: 'str'}}`, say.",
        )
    if kind == "float" and not rounds:
        large = np.flatnonzero(np.abs(found.to_numpy(zero_copy_only=False)) >= _EXACT)
        for cell in cells.take(arrow.array(large)).to_pylist():
            if _is_rounded(cell.strip()):
                raise _rounded(name, cell, where)
    return found


def _is_rounded(cell: str) -> bool:
    """Return whether a cell is a whole number that float64 does not have, or a number that is infinite as one."""
    if len(cell) >= _DIGITS and _WHOLE_FLOAT.fullmatch(cell):
        return Decimal(cell) != Decimal(float(cell))
    return math.isinf(float(cell)) and "inf" not in cell.lower()


def _rounded(name: str, cell: str, where: str) -> FormatError:
    """The error of a number that no type of numbers has."""
    return FormatError(
        f"column {name!r} has the number {cell.strip():.100}, which would be rounded: int64, uint64 and float64 do not "
        "hold all cells",
        file=where,
        remedy=f"Keep them as texts, `types={{{name!r}: 'str'}}`; or round them, `types={{{name!r}: 'float'}}`.",
    )


def missing_among_numbers(cells: Any) -> str | None:
    """A cell that others write for a missing value, if all else in the column are numbers; None if it is not so."""
    texts = cells.to_pylist()
    odd = next((text for text in texts if text.strip().lower() in _MISSING), None)
    others = [text for text in texts if text.strip().lower() not in _MISSING]
    return odd if odd and others and number_type(need("pyarrow").array(others, "string")) else None
