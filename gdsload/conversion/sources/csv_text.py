"""The text of CSV files, cut where rows end: so that Arrow can read any piece of it by itself.

A row ends at a line's end that is in no quotes. A quote at the beginning of a cell opens quotes, the next one closes
them and ends the cell, and two in between stand for one; other cells have quotes as characters. A row that breaks these
rules is a piece by itself, with the reason: Arrow would read it without an error.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import open_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.sources.streams import DAMAGED, unpacked
from gdsload.errors import FormatError

__all__ = ["CsvForm", "Piece"]

STRETCH_BYTES = 8 * 2**20
MAX_ROW_BYTES = 2**28
_NEWLINE, _RETURN = b"\n\r"
_LONE_RETURN = "a carriage return alone is in it; if such end its lines, convert them (dos2unix -c mac)"


@dataclass(frozen=True)
class Piece:
    """Some rows of a file that follow each other.

    Attributes:
        content: their bytes, in UTF-8.
        offset: where it begins in the file.
        line: the line of that, counted from 1.
        begins: where each row begins in the content; lines without anything are none.
        trouble: what is wrong with the one row that it is; None: nothing.
    """

    content: bytes
    offset: int
    line: int
    begins: NDArray[np.int64]
    trouble: str | None = None

    def line_of(self, row: int) -> int:
        """The line that a row begins in."""
        return self.line + int(np.searchsorted(self._ends, self.begins[row]))

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Where lines end, in quotes as well."""
        return np.flatnonzero(np.frombuffer(self.content, np.uint8) == _NEWLINE)

    def since(self, row: int) -> Piece:
        """The same from a row on."""
        begin = int(self.begins[row])
        begins = self.begins[row:] - begin
        return Piece(self.content[begin:], self.offset + begin, self.line_of(row), begins, self.trouble)


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

    def pieces(
        self, file: str, step: int | None = None, *, offset: int = 0, line: int = 1, nbytes: int = -1
    ) -> Iterator[Piece]:
        """The rows of a file, without a byte order mark.

        Args:
            file: the file.
            step: about how many bytes a piece has; None: as many as are well read at once.
            offset: where to begin, if rows can be found by their place.
            line: the line of that.
            nbytes: how many bytes to read; -1: all.

        Raises:
            FormatError: if the file cannot be read, or has a row without an end.
        """
        usual = read = step or STRETCH_BYTES
        patterns = _patterns(self.between(file))
        with self._opened(file, offset) as read_bytes:
            content = b"" if offset else read_bytes(len(codecs.BOM_UTF8))
            if not offset and self.encoding == "utf-8":
                _refuse_utf16(content, file)
            if content == codecs.BOM_UTF8:
                content, offset = b"", len(content)
            left = nbytes - len(content) if nbytes >= 0 else 2**63
            while True:
                more = read_bytes(min(read, left))
                left -= len(more)
                content += more
                end = 0
                for piece in _cut(content if more else content + b"\n", patterns):
                    begin, end = end, end + len(piece.content)
                    if len(piece.begins):
                        yield replace(piece, offset=offset + begin, line=line)
                    line += piece.content.count(b"\n")
                offset, content = offset + end, content[end:]
                if not more:
                    break
                if len(content) >= MAX_ROW_BYTES:
                    reason = f"the row in line {line} has {MAX_ROW_BYTES} bytes or more"
                    raise FormatError(reason, file=file, remedy="If a quote in it is never closed, close it.")
                read = usual if end else 2 * read
            if content:
                yield Piece(content, offset, line, np.zeros(1, np.int64), "a quote in it is never closed")

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


def _refuse_utf16(begin: bytes, file: str) -> None:
    """Refuse a text that says by its first bytes that it is no UTF-8, as spreadsheets write it."""
    if begin[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise FormatError("its text is UTF-16, but is read as UTF-8", file=file, remedy="Pass `encoding='utf-16'`.")


@cache
def _patterns(delimiter: str) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """A row with its end; and one that is not as it should be."""
    mark = re.escape(delimiter.encode())
    rest, quoted = rb"[^\r\n%b]*+" % mark, rb'"[^"]*+(?:""[^"]*+)*+"'
    plain = rb'[^"\r\n%b]%b' % (mark, rest)

    def row(cell: bytes, end: bytes) -> re.Pattern[bytes]:
        return re.compile(rb"(?:%b)?+(?:%b(?:%b)?+)*+%b" % (cell, mark, cell, end))

    good = row(rb"%b(?=[\r\n%b])|%b" % (quoted, mark, plain), rb"\r?\n")
    return good, row(rb"%b%b|%b" % (quoted, rest, plain), rb"(?:\r?\n|(?P<alone>\r)[^\n]*+\n)")


def _cut(content: bytes, patterns: tuple[re.Pattern[bytes], re.Pattern[bytes]]) -> Iterator[Piece]:
    """The rows that are whole in a text which begins with one: all together, but each that is not as it should be."""
    if b'"' not in content and (b"\r" not in content or content.count(b"\r") == content.count(b"\r\n")):
        data = np.frombuffer(content, np.uint8)[: content.rfind(b"\n") + 1]
        starts = (data != _NEWLINE) & (data != _RETURN)
        starts[1:] &= data[:-1] == _NEWLINE
        yield Piece(content[: len(data)], 0, 0, np.flatnonzero(starts))
        return
    good, odd = patterns
    begins, low, end = list[int](), 0, 0
    while (row := good.match(content, end) or odd.match(content, end)) is not None:
        if row.re is odd:
            yield Piece(content[low:end], 0, 0, np.array(begins, np.int64) - low)
            trouble = _LONE_RETURN if row["alone"] else "a quote inside a quoted cell is not doubled"
            low = row.end()
            yield Piece(content[end:low], 0, 0, np.zeros(1, np.int64), trouble)
            begins = []
        elif content[end] not in b"\r\n":
            begins.append(end)
        end = row.end()
    yield Piece(content[low:end], 0, 0, np.array(begins, np.int64) - low)
