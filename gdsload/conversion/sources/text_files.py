"""Text files: one text a line, or one a file."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from functools import partial
from typing import IO, Any, Literal, Unpack

from gdsload.conversion.input_files import FileOptions, FileSource, open_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import filled, given, halved, run_parts, spans
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.streams import read_line
from gdsload.errors import FormatError, OptionError

_MAX_TEXT_BYTES = 2**28
_BATCH_BYTES = 2**20
_BATCH_LINES = 4096
_LONG_LINES = "Pass `each='file'`."
_OTHER_ENCODING = "Pass `encoding='latin-1'`, say, if it is another one."


class TextSource(FileSource):
    """Texts, in the field ``text``. Lines, also empty ones, are taken without what ends them (LF or CR LF).

    A byte order mark at the beginning of a file is no part of its text.

    Args:
        path: a text file, or a folder of `.txt`, `.text` and `.md` files.
        each: what a sample is: ``"line"`` or ``"file"``. None: a line of a file; of a folder it must be said.
        encoding: how it is encoded, as Python calls it; with lines one of those in which a byte of a line's end is
            nothing else: UTF-8, Latin-1, and their like.
    """

    kind = "text files"
    threads = False
    suffixes = (".txt", ".text", ".md")
    decisive = ("each", "encoding")

    def __init__(
        self,
        path: str,
        *,
        each: Literal["line", "file"] | None = None,
        encoding: str = "utf-8",
        **files: Unpack[FileOptions],
    ) -> None:
        super().__init__(path, **files)
        try:
            self.encoding = codecs.lookup(encoding).name
            has_lines = "\r\n".encode(self.encoding) == b"\r\n"
        except (LookupError, TypeError, ValueError):
            raise OptionError(f"is {encoding!r:.200}, which Python does not know", option="encoding") from None
        if each != "file" and not has_lines:
            raise OptionError(f"lines of {encoding!r} are not read", remedy="Pass `each='file'`, or make it UTF-8.")
        self.each = each

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of files, or of bytes, in which lines begin."""
        files = self.all_files()
        if self.each is None and len(files) > 1:
            remedy = "Pass `each='file'` if each is one sample; `each='line'` if each line is."
            raise OptionError(f"it holds {len(files)} text files", file=self.path, remedy=remedy)
        sizes = [os.path.getsize(file) for file in files]
        if self.each == "file":
            return run_parts("files", sizes, target_bytes, files=files)
        found = [
            Part(f"{os.path.basename(file)}, bytes {low} to {high - 1}", (file, low, high), nbytes=high - low)
            for file, size in zip(files, sizes, strict=True)
            for low, high in spans(0, size, max(target_bytes, 1))
        ]
        return filled(found, "line", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        if self.each == "file":
            for file in part.where:
                yield Item(str(file), partial(self._document, str(file)))
            return
        file, low, high = str(part.where[0]), int(part.where[1]), int(part.where[2])
        with reading("the file cannot be read", file, OSError), open_file(file) as opened:
            yield from self._lines(opened, file, low, high)

    def _lines(self, opened: IO[bytes], file: str, low: int, high: int) -> Iterator[Item]:
        """The lines that begin from byte `low` to `high` - 1, many at once."""
        if low:  # the line that the byte before is in is another part's
            opened.seek(low - 1)
            read_line(opened, file, _LONG_LINES)
        places: list[int] = []
        lines: list[bytes] = []
        nbytes, place = 0, opened.tell()
        while place < high and (line := read_line(opened, file, _LONG_LINES)):
            places.append(place)
            lines.append(line)
            place += len(line)
            nbytes += len(line)
            if nbytes >= _BATCH_BYTES or len(lines) >= _BATCH_LINES:
                yield from self._items(lines, places, file)
                lines, places, nbytes = [], [], 0
        yield from self._items(lines, places, file)

    def _items(self, lines: list[bytes], places: list[int], file: str) -> Iterator[Item]:
        def made(low: int, high: int) -> dict[str, Any]:
            pairs = zip(lines[low:high], places[low:high], strict=True)
            with reading(f"it is no {self.encoding}", file, UnicodeError, remedy=_OTHER_ENCODING):
                return {"text": [self._text(line, place) for line, place in pairs]}

        for low, high, values in halved(0, len(lines), made):
            key = f"the line at byte {places[low]}" if high - low == 1 else f"lines from byte {places[low]} on"
            yield Item(key, partial(given, values), high - low)

    def _text(self, line: bytes, place: int) -> str:
        if line.endswith(b"\n"):
            line = line[: -2 if line.endswith(b"\r\n") else -1]
        return _decoded(line, self.encoding, marked=place == 0)

    def _document(self, file: str) -> dict[str, Any]:
        with reading("the file cannot be read", file, OSError), open_file(file) as opened:
            content = opened.read(_MAX_TEXT_BYTES + 1)
        if len(content) > _MAX_TEXT_BYTES:
            raise FormatError(f"the text has more than {_MAX_TEXT_BYTES} bytes", file=file)
        with reading(f"it is no {self.encoding}", file, UnicodeError, remedy=_OTHER_ENCODING):
            return {"text": _decoded(content, self.encoding, marked=True)}


def _decoded(content: bytes, encoding: str, *, marked: bool) -> str:
    """A text, without the mark that some editors begin files with."""
    text = content.decode(encoding)
    return text[1:] if marked and text.startswith("\ufeff") else text
