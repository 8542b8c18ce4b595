"""The text of CSV files, cut where rows end: so that Arrow can read any rows of it by themselves.

A row ends at a line's end that is in no quotes. A quote at the beginning of a cell opens quotes, the next one closes
them and ends the cell, and two in between stand for one; other cells have quotes as characters. A row that breaks these
rules is known by the reason: Arrow would read it without an error.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import open_file
from gdsload.conversion.reasons import reading
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
