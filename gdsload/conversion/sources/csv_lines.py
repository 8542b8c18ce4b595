"""Rows of CSV files: one by one as Python's own module reads them, or many at once where all is ordinary.

A stretch of a file is ordinary if each quote opens or closes a cell, and no carriage return or NUL is in it. Then its
rows are found by their line ends, and Arrow reads them as Python would. All else is read row by row.
"""

from __future__ import annotations

import codecs
import gzip
import importlib.util
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import IO

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import open_file
from gdsload.conversion.reasons import in_words
from gdsload.errors import FormatError, OptionError

__all__ = ["CsvForm", "Row", "Stretch", "check_text", "other_delimiter"]

STRETCH_BYTES = 8 * 2**20
MAX_LINE_BYTES = 2**28
_LONE_RETURN = "a carriage return alone is in it; if such end its lines, convert them (dos2unix -c mac)"
_BOM = b"\xef\xbb\xbf"
_NO_TEXT = re.compile("[\udc80-\udcff]")  # how Python has bytes that are not UTF-8
_QUOTE, _NEWLINE, _RETURN = (ord(mark) for mark in '"\n\r')


@dataclass(frozen=True, slots=True)
class Row:
    """A row: where it begins, counted in lines from 1 and in bytes, its cells, or what is wrong with it."""

    line: int
    offset: int
    cells: list[str]
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Ordinary rows.

    Attributes:
        content: their bytes, the last line end included.
        begins: where each begins in these; lines without anything are none.
        offset: where the first one begins in the file.
        line: the line of that, counted from 1.
        ends: where the lines end.
    """

    content: bytes
    begins: NDArray[np.int64]
    offset: int
    line: int
    ends: NDArray[np.int64]

    def line_of(self, row: int) -> int:
        """The line that a row begins in."""
        return self.line + int(np.searchsorted(self.ends, self.begins[row]))

    def first(self, count: int) -> Stretch:
        """The first rows alone."""
        if count >= len(self.begins):
            return self
        return replace(self, content=self.content[: self.begins[count]], begins=self.begins[:count])

    def rows(self, delimiter: str, file: str) -> Iterator[Row]:
        """The rows one by one."""
        return _parsed(_Lines(io.BytesIO(self.content), self.offset, self.line, file), delimiter)


@dataclass(frozen=True, slots=True)
class CsvForm:
    """How files are to be read.

    Attributes:
        delimiter: what stands between cells; None: a tab in `.tsv` files, else a comma.
        encoding: that of the text.
    """

    delimiter: str | None
    encoding: str

    def between(self, file: str) -> str:
        """What stands between cells of a file."""
        return self.delimiter or ("\t" if file.lower().removesuffix(".gz").endswith(".tsv") else ",")

    def seekable(self, file: str) -> bool:
        """Whether rows can be found again by their place."""
        return self.encoding == "utf-8" and not file.lower().endswith(".gz")

    def rows(self, file: str, offset: int = 0, line: int = 1) -> Iterator[Row]:
        """The rows from a place on, the header as well, one by one.

        Raises:
            FormatError: if the file cannot be read, or has a line without an end.
        """
        with self._opened(file) as opened:
            opened.seek(offset)
            yield from self._rows(opened, file, offset, line)

    def pieces(self, file: str, offset: int, line: int) -> Iterator[Row | Stretch]:
        """The rows from a place on, many at once where that can be.

        Raises:
            FormatError: as `rows`.
        """
        delimiter = self.between(file)
        with self._opened(file) as opened:
            while True:
                opened.seek(offset)
                content = opened.read(STRETCH_BYTES)
                if not content:
                    return
                found = _ordinary(content, offset, line, delimiter, whole=len(content) < STRETCH_BYTES)
                if found is not None:
                    yield found
                    offset, line = offset + len(found.content), line + len(found.ends)
                    continue
                opened.seek(offset)
                end, lines = offset + len(content), _Lines(opened, offset, line, file)
                for row in _parsed(lines, delimiter):
                    yield row
                    if lines.offset >= end:
                        break
                else:
                    return
                offset, line = lines.offset, lines.line

    def _rows(self, opened: IO[bytes], file: str, offset: int, line: int) -> Iterator[Row]:
        return _parsed(_Lines(opened, offset, line, file), self.between(file))

    @contextmanager
    def _opened(self, file: str) -> Iterator[IO[bytes]]:
        """A file as UTF-8; what cannot be read by its place is unpacked, or written again, in memory."""
        try:
            with open_file(file) as raw:
                if self.seekable(file):
                    _refuse_utf16(raw.read(2), file)
                    yield raw
                    return
                packed = file.lower().endswith(".gz")
                content = (gzip.GzipFile(fileobj=raw) if packed else raw).read()
                if self.encoding == "utf-8":
                    _refuse_utf16(content[:2], file)
                yield io.BytesIO(content if self.encoding == "utf-8" else content.decode(self.encoding).encode())
        except (OSError, EOFError, zlib.error, UnicodeError) as error:
            if isinstance(error, FormatError | OptionError):
                raise
            reason = in_words(error)
            raise FormatError(f"the file cannot be read: {reason}", file=file) from None


def other_delimiter(names: Sequence[str]) -> str | None:
    """What cells may be between, if the only column's name holds that; else None."""
    return next((one for one in ";\t|" if one in names[0]), None) if len(names) == 1 else None


def check_text(cell: str, what: str, where: str) -> None:
    """Refuse a cell that is no UTF-8.

    Raises:
        FormatError: naming the bytes.
    """
    if _NO_TEXT.search(cell):
        content = cell.encode("utf-8", "surrogateescape")
        raise FormatError(
            f"the file is not UTF-8: {what} is {content!r:.100}", file=where, remedy="Pass encoding='latin-1', say."
        )


def _refuse_utf16(begin: bytes, file: str) -> None:
    """Refuse a text that says by its first bytes that it is no UTF-8, as spreadsheets write it."""
    if begin in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise FormatError("its text is UTF-16, but is read as UTF-8", file=file, remedy="Pass encoding='utf-16'.")


class _Lines:
    """Lines of a file for a reader that says not how far it has read."""

    def __init__(self, file: IO[bytes], offset: int, line: int, name: str) -> None:
        self._file, self._name = file, name
        self.offset, self.line = offset, line

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        raw = self._file.readline(MAX_LINE_BYTES)
        if not raw:
            raise StopIteration
        if len(raw) == MAX_LINE_BYTES:
            raise FormatError(f"line {self.line} has {MAX_LINE_BYTES} bytes or more", file=self._name)
        # A text that is not UTF-8 is refused with its row: see `check_text`.
        text = raw.decode("utf-8" if self.offset else "utf-8-sig", "surrogateescape")
        self.offset += len(raw)
        self.line += 1
        return text


def _own_csv() -> ModuleType:
    """Python's module for CSV, which nobody else has: its one bound of cells, for all readers of a module, is ours.

    The bound of the usual one is 131 072 characters, and to change it is up to the user's program. There must be a
    bound: a cell whose quote is never closed goes on to the end of the file.
    """
    spec = importlib.util.find_spec("_csv")
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - it is a part of Python
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.field_size_limit(MAX_LINE_BYTES)
    return made


_csv = _own_csv()


def _parsed(lines: _Lines, delimiter: str) -> Iterator[Row]:
    reader = _csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        line, offset = lines.line, lines.offset
        try:
            row = Row(line, offset, next(reader))
        except StopIteration:
            return
        except _csv.Error as error:
            row = Row(line, offset, [], _LONE_RETURN if "new-line character" in str(error) else str(error))
        if row.cells or row.trouble:
            yield row


def _ordinary(content: bytes, offset: int, line: int, delimiter: str, *, whole: bool) -> Stretch | None:
    """The rows that are whole in a stretch of a file, if they are ordinary.

    Args:
        content: the stretch, which begins with a row.
        offset: where that is in the file.
        line: in which line.
        delimiter: what stands between cells.
        whole: whether the file ends with it.
    """
    if (
        content.startswith(_BOM)
        or not delimiter.isascii()
        or b"\0" in content
        or (b"\r" in content and content.count(b"\r") != content.count(b"\r\n"))
    ):
        return None
    if whole and not content.endswith(b"\n"):
        content += b"\n"  # the reader of the stretch sees no difference
        added = 1
    else:
        added = 0
    data = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    quotes = np.flatnonzero(data == _QUOTE) if b'"' in content else np.zeros(0, np.int64)
    row_ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
    if not len(row_ends):
        return None
    stop = int(row_ends[-1]) + 1
    quotes = quotes[quotes < stop]
    if len(quotes) and not _well_quoted(data, quotes, ord(delimiter)):
        return None
    begins = np.concatenate([[0], row_ends[:-1] + 1])
    full = (data[begins] != _NEWLINE) & ~((data[begins] == _RETURN) & (row_ends - begins == 1))
    content = content[: stop - (added if stop == len(content) else 0)]
    return Stretch(content, begins[full], offset, line, ends[ends < stop])


def _well_quoted(data: NDArray[np.uint8], quotes: NDArray[np.int64], delimiter: int) -> bool:
    """Whether each quote opens a cell, closes one, or is one of two that stand for one in a cell."""
    if len(quotes) % 2:
        return False
    opening, closing = quotes[::2], quotes[1::2]
    doubled = closing[:-1] + 1 == opening[1:]
    first = opening[0] == 0
    before = data[opening[1:] - 1]
    begins = doubled | (before == delimiter) | (before == _NEWLINE)
    after = data[np.minimum(closing + 1, len(data) - 1)]
    stops = (after == delimiter) | (after == _NEWLINE) | (after == _RETURN)
    stops[:-1] |= doubled
    head = first or data[opening[0] - 1] in (delimiter, _NEWLINE)
    return bool(head and begins.all() and stops.all())
