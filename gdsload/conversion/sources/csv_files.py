"""CSV and TSV files, whose cells are numbers, texts, or paths of images and arrays."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import IO, Any, Unpack

import numpy as np

from gdsload.conversion.input_files import SourceFiles, open_file, stamps
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.npy import decode_npy
from gdsload.conversion.sources.pictures import SUFFIXES as PICTURES
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageForm, ImageSource, put
from gdsload.errors import FormatError, OptionError

__all__ = ["CsvSource"]

_SUFFIXES = (".csv", ".tsv")
_TYPES = ("int", "float", "str", "file")
_LOOKED_AT = 1000
_MAX_LINE_BYTES = 16 * 2**20
# Not all that int() and float() take: "1_000" is a text.
_INT = re.compile(r"[+-]?[0-9]{1,19}")
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)


class CsvSource(ImageSource):
    """Rows of CSV files, which are samples; their columns are fields.

    The first line names the columns. A column has one type, that of its first values (up to 1000 rows of the first
    file): ``"int"`` (int64) or ``"float"`` (float64) if all of them are such numbers, ``"file"`` if all end as an image
    or `.npy` file does, else ``"str"``. A cell of type ``"file"`` is a path from the folder of the CSV file, and what
    lies there is the value: an image as uint8 ``[channels, height, width]``, turned as its EXIF data says, or an
    array. No name leads out of that folder, and no symbolic link, if `follow_links` is not given. A row that is not as
    the others are is an error of that row.

    Args:
        path: a `.csv` or `.tsv` file, UTF-8, or a folder of such files with the same columns.
        types: the types of columns, where the first values do not tell them.
        delimiter: what stands between cells. None: a tab in `.tsv` files, else a comma.
        **options: `size`, `resize`, `mode` and `keep_encoded`, as all sources of images have them: see `ImageForm`.
            `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.

    Raises:
        OptionError: if an option has no such value.
    """

    kind = "CSV files"
    threads = False

    def __init__(
        self,
        path: str,
        types: Mapping[str, str] | None = None,
        delimiter: str | None = None,
        **options: Unpack[ImageFileOptions],
    ) -> None:
        self.path = path
        self.files = SourceFiles.of(path, options)
        self.types = dict(types or {})
        self.delimiter = delimiter
        self.look = ImageForm.of(options, upright=True)
        for name, kind in self.types.items():
            if kind not in _TYPES:
                raise OptionError(f"the type of {name!r} is {kind!r}", remedy=f"Supported are {', '.join(_TYPES)}.")
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
            raise OptionError(f"delimiter is {delimiter!r}, no single character")

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`. Files that cells name are told by a checksum of their names, lengths and times."""
        digest = hashlib.sha256()
        files = self._files()
        columns = self._columns()
        named = [number for number, kind in enumerate(columns.values()) if kind == "file"]
        for file in files if named else []:
            for row in self._rows(file):
                paths = [_joined(file, row.cells[number]) for number in named if number < len(row.cells)]
                digest.update(json.dumps([_stamp(path) for path in paths]).encode())
        return {
            "kind": self.kind,
            "files": stamps(files),
            "columns": columns,
            "sha256": digest.hexdigest(),
            "delimiter": self.delimiter,
            **self.form.to_json(),
        }

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of rows, which are found again by their place in the file."""
        columns, found = self._columns(), list[Part]()
        row_bytes = self._row_bytes(columns)
        step = max(target_bytes // row_bytes, 1)
        for file in self._files():
            if self._header(file) != list(columns):
                raise FormatError("its columns are not those of the first file", file=file)
            begins, count = list[_Row](), 0
            for row in self._rows(file):
                if count % step == 0:
                    begins.append(row)
                count += 1
            for number, row in enumerate(begins):
                rows = min(step, count - number * step)
                name = f"{os.path.basename(file)}, {rows} rows from line {row.line}"
                found.append(Part(name, (file, row.offset, row.line, rows), rows, rows * row_bytes))
        if not found:
            raise FormatError("there is not one row", file=self.path)
        return found

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        file, offset, line, rows = str(part.where[0]), *(int(number) for number in part.where[1:])
        columns = self._columns()
        for row in islice(self._rows(file, offset, line), rows):
            yield Item(f"line {row.line}", partial(self._sample, row, columns, file))

    def first_items(self) -> Iterator[Item]:
        """See `ImageSource.first_items`."""
        columns, file = self._columns(), self._files()[0]
        if "file" in columns.values():
            for row in self._rows(file):
                yield Item(f"line {row.line}", partial(self._sample, row, columns, file))

    def _sample(self, row: _Row, columns: Mapping[str, str], file: str) -> dict[str, Any]:
        where = f"{file}, line {row.line}"
        if row.trouble is not None:
            raise FormatError(f"the row cannot be read: {row.trouble}", file=where)
        if len(row.cells) != len(columns):
            raise FormatError(f"the row has {len(row.cells)} cells, but there are {len(columns)} columns", file=where)
        found: dict[str, Any] = {}
        for (name, kind), cell in zip(columns.items(), row.cells, strict=True):
            if kind == "str":
                found[name] = cell
            elif kind == "file":
                put(found, self._load(name, cell, file, where), where)
            elif not (_is_int if kind == "int" else _FLOAT.fullmatch)(cell.strip()):
                raise FormatError(f"column {name!r} has {cell!r:.200}, which is no {kind}", file=where)
            else:
                found[name] = int(cell) if kind == "int" else np.float64(cell)
        return found

    def _load(self, name: str, cell: str, file: str, where: str) -> dict[str, Any]:
        """What is made of what lies at a path, if that is a file in the folder of the CSV file."""
        path = self.files.inside(os.path.dirname(file), cell)
        try:
            with open_file(path) as opened:
                if cell.lower().endswith(".npy"):  # a link may lead to another name
                    return {name: decode_npy(opened.read())}
                return self.form.fields(name, opened, path)
        except (OSError, ValueError, SyntaxError) as error:
            if isinstance(error, FormatError | OptionError):
                raise
            raise FormatError(f"{cell!r:.200} cannot be read: {str(error)[:200]}", file=where) from None

    def _files(self) -> list[str]:
        return self.files.find(_SUFFIXES, below=False)

    def _columns(self) -> dict[str, str]:
        """Name and type of each column."""
        file = self._files()[0]
        names = self._header(file)
        for name in self.types:
            if name not in names:
                listed = ", ".join(map(repr, names[:50]))
                raise OptionError(f"there is no column {name!r}", file=file, remedy=f"There are {listed}.")
        values = self._first_values(file, len(names))
        return {name: self.types.get(name) or _type_of(column) for name, column in zip(names, values, strict=True)}

    def _first_values(self, file: str, columns: int) -> list[list[str]]:
        """The first cells of each column that are not empty."""
        rows = [row.cells for row in islice(self._rows(file), _LOOKED_AT) if len(row.cells) == columns]
        return [[cells[number] for cells in rows if cells[number]] for number in range(columns)]

    def _row_bytes(self, columns: Mapping[str, str]) -> int:
        file, found = self._files()[0], 0
        for kind, cells in zip(columns.values(), self._first_values(file, len(columns)), strict=True):
            if kind == "file" and cells and not cells[0].lower().endswith(".npy"):
                found += (self.look.size or 224) ** 2 * 3
            elif kind == "file" and cells:
                found += (_stamp(_joined(file, cells[0])) or [0])[0]
            else:
                found += 8 if kind in ("int", "float") else sum(map(len, cells)) // max(len(cells), 1)
        return max(found, 1)

    def _header(self, file: str) -> list[str]:
        for row in self._lines(file):
            names = [name.strip() for name in row.cells]
            if row.trouble is not None or "" in names:
                trouble = row.trouble or f"column {names.index('') + 1} has no name"
                raise FormatError(f"the first line does not name the columns: {trouble}", file=file)
            if any(_type_of([name]) == "file" for name in names) or all(_FLOAT.fullmatch(name) for name in names):
                raise FormatError(
                    f"the first line does not name the columns: {', '.join(names)!r:.200} are values",
                    file=file,
                    remedy="Put a line with their names before it.",
                )
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise FormatError(f"two columns are called {twice[0]!r}", file=file)
            return names
        raise FormatError("it is empty", file=file)

    def _rows(self, file: str, offset: int = 0, line: int = 1) -> Iterator[_Row]:
        """The rows from a place on, without the header."""
        return islice(self._lines(file, offset, line), 0 if offset else 1, None)

    def _lines(self, file: str, offset: int = 0, line: int = 1) -> Iterator[_Row]:
        delimiter = self.delimiter or ("\t" if file.lower().endswith(".tsv") else ",")
        try:
            with open_file(file) as opened:
                opened.seek(offset)
                lines = _Lines(opened, offset, line)
                reader = csv.reader(lines, delimiter=delimiter, strict=True)
                while True:
                    line, offset = lines.line, lines.offset
                    try:
                        row = _Row(line, offset, next(reader))
                    except StopIteration:
                        return
                    except csv.Error as error:
                        row = _Row(line, offset, [], str(error))
                    if row.cells or row.trouble:
                        yield row
        except OSError as error:
            raise FormatError(f"the file cannot be read: {error.strerror}", file=file) from None


@dataclass(frozen=True, slots=True)
class _Row:
    """A row: where it begins, counted in lines from 1 and in bytes, its cells, or what is wrong with it."""

    line: int
    offset: int
    cells: list[str]
    trouble: str | None = None


class _Lines:
    """Lines of a file for a reader that says not how far it has read."""

    def __init__(self, file: IO[bytes], offset: int, line: int) -> None:
        self._file = file
        self.offset, self.line = offset, line

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        raw = self._file.readline(_MAX_LINE_BYTES)
        if not raw:
            raise StopIteration
        if len(raw) == _MAX_LINE_BYTES:
            raise FormatError(f"line {self.line} has {_MAX_LINE_BYTES} bytes or more", file=str(self._file.name))
        # A text that is not UTF-8 is refused where it is written, with its row.
        text = raw.decode("utf-8" if self.offset else "utf-8-sig", "surrogateescape")
        self.offset += len(raw)
        self.line += 1
        return text


def _type_of(cells: list[str]) -> str:
    if not cells:
        return "str"
    if all(_is_int(cell.strip()) for cell in cells):
        return "int"
    if all(_FLOAT.fullmatch(cell.strip()) for cell in cells):
        return "float"
    return "file" if all(cell.lower().endswith((*PICTURES, ".npy")) for cell in cells) else "str"


def _is_int(cell: str) -> bool:
    return _INT.fullmatch(cell) is not None and -(2**63) <= int(cell) < 2**63


def _joined(file: str, cell: str) -> str:
    return os.path.join(os.path.dirname(file), cell)


def _stamp(path: str) -> list[int] | None:
    """Length and times of the last changes of a file, if it is there."""
    try:
        return [int(number) for number in stamps([path])[0][1:]]
    except (OSError, ValueError):
        return None
