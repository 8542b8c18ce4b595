"""CSV and TSV files, whose cells are numbers, texts, or paths of images and arrays."""

from __future__ import annotations

import codecs
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Unpack

from gdsload.conversion.input_files import SourceFiles, open_file, stamps
from gdsload.conversion.reasons import in_words
from gdsload.conversion.row_source import check_columns, check_fields
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.csv_cells import (
    CELL_TYPES,
    NUMBERS,
    CellReader,
    Column,
    beyond,
    beyond_whole,
    is_float,
    kept_or_rounded,
    missing_among_numbers,
    type_of,
)
from gdsload.conversion.sources.csv_lines import CsvForm, Row, check_text, other_delimiter
from gdsload.conversion.sources.npy import decode_npy
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageForm, ImageSource
from gdsload.errors import FormatError, OptionError

__all__ = ["CsvSource"]

_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_LOOKED_AT = 1000


class CsvOptions(ImageFileOptions, total=False):
    """The options of CSV files.

    Attributes:
        types: the types of columns, where the first values do not tell them.
        delimiter: what stands between cells. None: a tab in `.tsv` files, else a comma.
        encoding: that of the text.
        fill: what stands for an empty cell, by field: ``{"age": -1}``.
    """

    types: Mapping[str, str] | None
    delimiter: str | None
    encoding: str
    fill: Mapping[str, Any]


class CsvSource(FieldChoice, ImageSource):
    """Rows of CSV files, which are samples; their columns are fields.

    The first line names the columns; a first one without a name is ``"index"``, as pandas writes it. A column has one
    type, that of its first values (up to 1000 rows of the first file): ``"int"`` (int64), ``"uint"`` (uint64) or
    ``"float"`` (float64) if all of them are such numbers, ``"bool"`` if all are ``true`` or ``false``, ``"file"`` if
    all end as an image or `.npy` file does, else ``"str"``. An empty cell is NaN in a column of floats; one of another
    number is an error of its row, if `fill` says nothing else. A cell of type ``"file"`` is a path from the folder of
    the CSV file, and what is there is the value: an image as uint8 ``[channels, height, width]``, turned as its EXIF
    data says, or an array. No name leads out of that folder, and no symbolic link, if `follow_links` is not given. A
    row that is not as the others are is an error of that row.

    Args:
        path: a `.csv` or `.tsv` file, maybe with `.gz` after it, or a folder of such files with the same columns. A
            packed one, and one that is not UTF-8, is held in memory whole.
        **options: see `CsvOptions`. `size`, `resize`, `mode` and `keep_encoded`, as all sources of images have them:
            see `ImageForm`. `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.

    Raises:
        OptionError: if an option has no such value.
    """

    kind = "CSV files"
    threads = False

    def __init__(self, path: str, **options: Unpack[CsvOptions]) -> None:
        self.path = path
        self.types, self.fill = (dict(_mapping(name, options.get(name))) for name in ("types", "fill"))
        delimiter = options.get("delimiter")
        self.look, self.files = ImageForm.of(options), SourceFiles.of(path, options)
        for name, kind in self.types.items():
            if kind not in CELL_TYPES:
                raise OptionError(f"the type of {name!r} is {kind!r}", remedy=f"Supported are {', '.join(CELL_TYPES)}.")
        if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n'):
            raise OptionError(f"delimiter is {delimiter!r}, no single character")
        self.text = CsvForm(delimiter, _encoding(options.get("encoding", "utf-8")))

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`. Files that cells name are known by a checksum of names, lengths and times."""
        digest = hashlib.sha256()
        files = self._files()
        columns = self._columns()
        named = [column.place for column in columns if column.kind == "file"]
        for file in files if named else []:
            for row in self._rows(file):
                paths = [_joined(file, row.cells[number]) for number in named if number < len(row.cells)]
                digest.update(json.dumps([_stamp(path) for path in paths]).encode())
        return {
            "kind": self.kind,
            "files": stamps(files),
            "columns": {column.name: column.kind for column in columns},
            "sha256": digest.hexdigest(),
            "delimiter": self.text.delimiter,
            "encoding": self.text.encoding,
            "fill": self.fill,
            **self.form.to_json(),
        }

    def notes(self) -> list[str]:
        """What users should know of it."""
        values = self._first_values(self._files()[0])
        return [*self._other_delimiter(), *self._padded_numbers(values), *self._texts_by_one_cell(values)]

    def _other_delimiter(self) -> list[str]:
        names = self._header(self._files()[0])
        if (other := other_delimiter(names)) is None:
            return []
        return [f"there is one column, {names[0]!r:.100}: if cells lie between {other!r}, pass delimiter={other!r}"]

    def _padded_numbers(self, values: Sequence[Sequence[str]]) -> list[str]:
        return [
            f"{column.name!r} is taken for {column.kind}, but {odd!r} begins with a zero: if it is a name, keep it as "
            f"a text, types={{{column.name!r}: 'str'}}"
            for column in self._columns()
            if column.kind in ("int", "uint") and column.name not in self.types
            for odd in [next((cell for cell in values[column.place] if _padded(cell)), None)]
            if odd is not None
        ]

    def _texts_by_one_cell(self, values: Sequence[Sequence[str]]) -> list[str]:
        return [
            f"{column.name!r} is taken for texts, as {odd!r} is among its values: if that stands for a missing one, "
            "leave the cell empty"
            for column in self._columns()
            if column.kind == "str" and column.name not in self.types
            for odd in [missing_among_numbers(values[column.place])]
            if odd is not None
        ]

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of rows, which are found again by their place in the file, or whole files."""
        columns, found = self._columns(), list[Part]()
        names, row_bytes = self._header(self._files()[0]), self._row_bytes(columns)
        CellReader(",", columns, len(names), self.fill)  # refuses what cannot fill
        step = max(target_bytes // row_bytes, 1)
        for file in self._files():
            if (header := self._header(file)) != names:
                raise _other_columns(header, names, file, self._files()[0])
            if not self.text.seekable(file):
                found.append(Part(os.path.basename(file), (file, 0, 1, -1), nbytes=os.path.getsize(file)))
                continue
            begins, count = self._begins(file, step)
            for number, (offset, line) in enumerate(begins):
                rows = min(step, count - number * step)
                name = f"{os.path.basename(file)}, {rows} rows from line {line}"
                found.append(Part(name, (file, offset, line, rows), rows, rows * row_bytes))
        if not found:
            raise FormatError("there is not one row", file=self.path)
        return found

    def _begins(self, file: str, step: int) -> tuple[list[tuple[int, int]], int]:
        """Where each run of rows begins, as byte and line, and how many rows there are."""
        begins, count = list[tuple[int, int]](), 0
        for piece in self.text.pieces(file, *self._behind_header(file)):
            if isinstance(piece, Row):
                begins += [(piece.offset, piece.line)] if count % step == 0 else []
                count += 1
                continue
            for row in range(-count % step, len(piece.begins), step):
                begins.append((piece.offset + int(piece.begins[row]), piece.line_of(row)))
            count += len(piece.begins)
        return begins, count

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        file, offset, line, rows = str(part.where[0]), *(int(number) for number in part.where[1:])
        columns, width = self._columns(), len(self._header(file))
        if rows < 0:
            offset, line = self._behind_header(file)
        cells = CellReader(self.text.between(file), columns, width, self.fill)
        left = rows if rows >= 0 else 2**62
        for piece in self.text.pieces(file, offset, line):
            if left <= 0:
                return
            if isinstance(piece, Row):
                yield Item(f"line {piece.line}", partial(self._sample, piece, cells, file))
                left -= 1
                continue
            piece = piece.first(left)  # noqa: PLW2901
            left -= len(piece.begins)
            batch = cells.batch(piece)
            if batch is None:
                for row in piece.rows(cells.delimiter, file):
                    yield Item(f"line {row.line}", partial(self._sample, row, cells, file))
            else:
                last = piece.line_of(len(piece.begins) - 1)
                yield Item(f"lines {piece.line_of(0)} to {last}", partial(dict, batch), len(piece.begins))

    def first_items(self) -> Iterator[Item]:
        """See `ImageSource.first_items`."""
        file, columns = self._files()[0], self._columns()
        if any(column.kind == "file" for column in columns):
            cells = CellReader(self.text.between(file), columns, len(self._header(file)), self.fill)
            for row in self._rows(file):
                yield Item(f"line {row.line}", partial(self._sample, row, cells, file))

    def _behind_header(self, file: str) -> tuple[int, int]:
        for place, row in enumerate(self.text.rows(file)):
            if place == 1:
                return row.offset, row.line
        return os.path.getsize(file), 1  # there is nothing

    def _sample(self, row: Row, cells: CellReader, file: str) -> dict[str, Any]:
        where = f"{file}, line {row.line}"
        return cells.sample(row, where, partial(self._load, file=file, where=where))

    def _load(self, name: str, cell: str, file: str, where: str) -> dict[str, Any]:
        """What is made of what is at a path, if that is a file in the folder of the CSV file."""
        path = self.files.inside(os.path.dirname(file), cell)
        try:
            with open_file(path) as opened:
                if cell.lower().endswith(".npy"):  # a link may lead to another name
                    return {name: decode_npy(opened.read())}
                return self.form.fields(name, opened, path)
        except (OSError, ValueError, SyntaxError) as error:
            if isinstance(error, FormatError | OptionError):
                raise
            raise FormatError(f"{cell!r:.200} cannot be read: {in_words(error)}", file=where) from None

    def _files(self) -> list[str]:
        return self.files.find(_SUFFIXES, below=False)

    def _columns(self) -> list[Column]:
        """The columns that are wanted."""
        file = self._files()[0]
        names = self._header(file)
        check_fields([*self.types, *self.fill], names, file)
        values, places = self._first_values(file), {name: place for place, name in enumerate(names)}
        wanted = check_columns(self.fields, names, file)
        for name in wanted:
            check_text(name, f"the name of column {places[name] + 1}", file)
            if name not in self.types and (cell := beyond_whole(values[places[name]])) is not None:
                self._refuse_beyond(name, places[name], cell, file)
        return [
            Column(name, self.types.get(name) or type_of(values[places[name]]), places[name], name in self.types)
            for name in wanted
        ]

    def _refuse_beyond(self, name: str, place: int, cell: str, file: str) -> None:
        line = next(row.line for row in self._rows(file) if cell in row.cells[place : place + 1])
        raise OptionError(f"column {name!r} {beyond(cell)}", file=f"{file}, line {line}", remedy=kept_or_rounded(name))

    def _first_values(self, file: str) -> list[list[str]]:
        """The first cells of each column that are not empty."""
        columns = len(self._header(file))
        rows = [row.cells for row in islice(self._rows(file), _LOOKED_AT) if len(row.cells) == columns]
        return [[cells[number] for cells in rows if cells[number]] for number in range(columns)]

    def _row_bytes(self, columns: Sequence[Column]) -> int:
        file, found = self._files()[0], 0
        values = self._first_values(file)
        for column in columns:
            kind, cells = column.kind, values[column.place]
            if kind == "file" and cells and not cells[0].lower().endswith(".npy"):
                found += (self.look.size or 224) ** 2 * 3
            elif kind == "file" and cells:
                found += (_stamp(_joined(file, cells[0])) or [0])[0]
            else:
                found += 8 if kind in NUMBERS else sum(map(len, cells)) // max(len(cells), 1)
        return max(found, 1)

    def _header(self, file: str) -> list[str]:
        for row in self.text.rows(file):
            names = [name.strip() for name in row.cells]
            if names and not names[0] and "index" not in names:
                names[0] = "index"
            if row.trouble is not None or "" in names:
                trouble = row.trouble or f"column {names.index('') + 1} has no name"
                raise FormatError(f"the first line does not name the columns: {trouble}", file=file)
            if any(type_of([name]) == "file" for name in names) or all(is_float(name) for name in names):
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

    def _rows(self, file: str) -> Iterator[Row]:
        """The rows, without the header."""
        return islice(self.text.rows(file), 1, None)


def _other_columns(found: Sequence[str], names: Sequence[str], file: str, first: str) -> FormatError:
    lacks, more = ([one for one in ones if one not in others] for ones, others in ((names, found), (found, names)))
    told = [f"it lacks {', '.join(map(repr, lacks))}"] if lacks else []
    told += [f"it has {', '.join(map(repr, more))} beside"] if more else []
    differ = " and ".join(told) or f"they come in another order, {', '.join(map(repr, found))}"
    return FormatError(
        f"its columns are not those of the first file, {first}: {differ:.500}",
        file=file,
        remedy="Give all files the same first line, or convert them by themselves.",
    )


def _mapping(name: str, given: Any) -> Mapping[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise OptionError(
            f"{name} is {given!r:.200}",
            remedy=f'Pass values by column: {name}={{"x": ...}}.',
        )
    return given or {}


def _encoding(given: Any) -> str:
    try:
        return codecs.lookup(given).name
    except (LookupError, TypeError):
        raise OptionError(f"encoding is {given!r:.200}, which is not known", remedy="Pass 'latin-1', say.") from None


def _padded(cell: str) -> bool:
    digits = cell.strip().lstrip("+-")
    return len(digits) > 1 and digits.startswith("0")


def _joined(file: str, cell: str) -> str:
    return os.path.join(os.path.dirname(file), cell)


def _stamp(path: str) -> list[int] | None:
    """Length and times of the last changes of a file, if it is there."""
    try:
        return [int(number) for number in stamps([path])[0][1:]]
    except (OSError, ValueError):
        return None
