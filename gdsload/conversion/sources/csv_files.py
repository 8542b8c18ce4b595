"""CSV and TSV files, whose cells are numbers, texts, or paths of images and arrays."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Unpack

from gdsload.conversion.input_files import SourceFiles, digest_of, open_file, stamps
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import check_columns, check_fields, filled
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.csv_cells import (
    CELL_TYPES,
    NUMBERS,
    CellReader,
    Column,
    Rows,
    beyond,
    beyond_whole,
    check_text,
    header_cells,
    is_path,
    kept_or_rounded,
    missing_among_numbers,
    other_delimiter,
    read_cells,
    type_of,
)
from gdsload.conversion.sources.csv_text import CsvForm, Piece
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.npy import decode_npy
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageForm, ImageSource, put
from gdsload.errors import FormatError, OptionError

__all__ = ["CsvSource"]

_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_LOOKED_AT, _LOOK_BYTES = 1000, 2**16
_NAMED_NEVER = ("int", "uint", "float")
"""A first line whose cells are of one of these types has values, and no names."""


class CsvOptions(ImageFileOptions, total=False):
    """The options of CSV files.

    Attributes:
        types: the types of columns, where the first values do not tell them.
        delimiter: what stands between cells, one character of ASCII. None: a tab in `.tsv` files, else a comma.
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
            packed one, and one that is not UTF-8, is read by one worker.
        **options: see `CsvOptions`. `size`, `resize`, `mode` and `keep_encoded`, as all sources of images have them:
            see `ImageForm`. `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.
    """

    kind = "CSV files"
    threads = False
    _known: list[Column] | None = None

    def __init__(self, path: str, **options: Unpack[CsvOptions]) -> None:
        self.path = path
        self.types, self.fill = dict(options.get("types") or {}), dict(options.get("fill") or {})
        delimiter = options.get("delimiter")
        self.look, self.files = ImageForm.of(options), SourceFiles.of(path, options)
        for name, kind in self.types.items():
            if kind not in CELL_TYPES:
                raise OptionError(f"the type of {name!r} is {kind!r}", remedy=f"Supported are {', '.join(CELL_TYPES)}.")
        if delimiter is not None and not _is_delimiter(delimiter):
            raise OptionError(
                f"is {delimiter!r:.100}", option="delimiter", remedy="Pass a single character of ASCII, no quote."
            )
        self.text = CsvForm(delimiter, _encoding(options.get("encoding", "utf-8")))

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`. Files that cells name are known by a checksum of names, lengths and times."""
        return {
            "kind": self.kind,
            "files": stamps(self._files()),
            "columns": {column.name: column.kind for column in self._columns()},
            "sha256": digest_of(self._stamps_in_cells()),
            "delimiter": self.text.delimiter,
            "encoding": self.text.encoding,
            "fill": self.fill,
            **self.form.to_json(),
        }

    def _stamps_in_cells(self) -> Iterator[list[list[int] | None]]:
        """The stamps of the files that the cells of each row name."""
        named = [column.place for column in self._columns() if column.kind == "file"]
        for file in self._files() if named else []:
            for piece in self._pieces(file):
                cells = [] if piece.trouble else self._cells(piece, file)
                for row in zip(*(cells[place].to_pylist() for place in named if cells), strict=True):
                    yield [_stamp(_joined(file, os.fsdecode(cell))) for cell in row]

    def notes(self) -> list[str]:
        """Sentences that users should know of it."""
        file, found = self._files()[0], list[str]()
        names, values = self._header(file), self._first_cells(file)
        if other := other_delimiter(names):
            found.append(
                f"there is one column, {names[0]!r:.100}: if cells are between {other!r}, pass `delimiter={other!r}`"
            )
        for name, kind, place in ((one.name, one.kind, one.place) for one in self._columns()):
            texts = map(os.fsdecode, values[place].to_pylist())
            if name in self.types:
                continue
            if kind in ("int", "uint") and (odd := next(filter(_padded, texts), None)):
                found.append(
                    f"{name!r} is taken for {kind}, but {odd!r} begins with a zero: if it is a name, keep it as a "
                    f"text, `types={{{name!r}: 'str'}}`"
                )
            if kind == "str" and (odd := missing_among_numbers(values[place])):
                found.append(
                    f"{name!r} is taken for texts, as {odd!r} is among its values: if that stands for a missing one, "
                    "leave the cell empty"
                )
        return found

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of rows, which are found again by their place in the file, or whole files."""
        columns, found = self._columns(), list[Part]()
        names, row_bytes = self._header(self._files()[0]), self._row_bytes(columns)
        CellReader(",", columns, len(names), self.fill)  # refuses what cannot fill
        first = next(self._pieces(self._files()[0], _LOOK_BYTES), None)
        text_bytes = 1 if first is None else len(first.content) // len(first.begins)
        step = max(target_bytes * text_bytes // row_bytes, 1)
        for file in self._files():
            if (header := self._header(file)) != names:
                raise _other_columns(header, names, file, self._files()[0])
            if not self.text.seekable(file):
                found.append(Part(os.path.basename(file), (file, 0, 1, -1), nbytes=os.path.getsize(file)))
                continue
            for piece in self._pieces(file, step):
                rows, begin = len(piece.begins), int(piece.begins[0])
                name = f"{os.path.basename(file)}, {rows} rows from line {piece.line_of(0)}"
                where = (file, piece.offset + begin, piece.line_of(0), len(piece.content) - begin)
                found.append(Part(name, where, rows, rows * row_bytes))
        return filled(found, "row", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        file, offset, line, nbytes = str(part.where[0]), *(int(number) for number in part.where[1:])
        pieces = self._pieces(file) if nbytes < 0 else self.text.pieces(file, offset=offset, line=line, nbytes=nbytes)
        columns = self._columns()
        cells = CellReader(self.text.between(file), columns, len(self._header(file)), self.fill)
        paths = [column.name for column in columns if column.kind == "file"]
        for piece in pieces:
            for rows in cells.read(piece, file):
                yield from self._items(rows, piece, paths, file)

    def _items(self, rows: Rows, piece: Piece, paths: Sequence[str], file: str) -> Iterator[Item]:
        lines = list(map(piece.line_of, rows.rows if paths else [rows.rows[0], rows.rows[-1]]))
        if rows.trouble is not None:
            yield Item(f"line {lines[0]}", partial(_refuse, rows.trouble))
        elif not paths:
            count = len(rows.rows)
            key = f"line {lines[0]}" if count == 1 else f"lines {lines[0]} to {lines[1]}"
            yield Item(key, partial(dict, rows.values), count)
        else:
            for number, line in enumerate(lines):
                sample = {name: values[number] for name, values in rows.values.items()}
                yield Item(f"line {line}", partial(self._sample, sample, paths, file, f"{file}, line {line}"))

    def first_items(self) -> Iterator[Item]:
        """See `ImageSource.first_items`."""
        if any(column.kind == "file" for column in self._columns()):
            yield from self.read(Part("the first rows", (self._files()[0], 0, 1, -1)))

    def _sample(self, cells: Mapping[str, Any], paths: Sequence[str], file: str, where: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in cells.items():
            put(found, self._load(name, value, file, where) if name in paths else {name: value}, where)
        return found

    def _load(self, name: str, cell: str, file: str, where: str) -> dict[str, Any]:
        """The values of the file at a path, if it is in the folder of the CSV file."""
        path = self.files.inside(os.path.dirname(file), cell)
        failed = f"{cell!r:.200} cannot be read"
        with reading(failed, where, OSError, ValueError, SyntaxError), open_file(path) as opened:
            if cell.lower().endswith(".npy"):  # a link may lead to another name
                return {name: decode_npy(opened.read())}
            return self.form.fields(name, opened, path)

    def _files(self) -> list[str]:
        return self.files.find(_SUFFIXES, below=False)

    def _columns(self) -> list[Column]:
        self._known = self._known or self._wanted()
        return self._known

    def _wanted(self) -> list[Column]:
        file = self._files()[0]
        names = self._header(file)
        check_fields([*self.types, *self.fill], names, file)
        values, places = self._first_cells(file), {name: place for place, name in enumerate(names)}
        wanted = check_columns(self.fields, names, file)
        for name in wanted:
            check_text(name, f"the name of column {places[name] + 1}", file)
            if name not in self.types and (cell := beyond_whole(values[places[name]])) is not None:
                raise OptionError(f"column {name!r} {beyond(cell)}", file=file, remedy=kept_or_rounded(name))
        return [
            Column(name, self.types.get(name) or type_of(values[places[name]]), places[name], name in self.types)
            for name in wanted
        ]

    def _first_cells(self, file: str) -> list[Any]:
        """The first cells of each column that are not empty, as arrays of bytes."""
        compute, found, seen = need("pyarrow.compute"), list[list[Any]](), 0
        for piece in self._pieces(file, _LOOK_BYTES):
            if piece.trouble is None:
                found.append([cells[: _LOOKED_AT - seen] for cells in self._cells(piece, file)])
            if (seen := seen + len(piece.begins)) >= _LOOKED_AT:
                break
        empty = need("pyarrow").array([], "binary")
        joined = [need("pyarrow").concat_arrays([empty, *some]) for some in zip(*found, strict=True)]
        joined = joined or [empty] * len(self._header(file))
        return [cells.filter(compute.not_equal(compute.binary_length(cells), 0)) for cells in joined]

    def _cells(self, piece: Piece, file: str) -> list[Any]:
        """The cells of the rows of a piece that have as many as there are columns."""
        return read_cells(piece, self.text.between(file), len(self._header(file)))[0]

    def _row_bytes(self, columns: Sequence[Column]) -> int:
        file, found = self._files()[0], 0
        values = self._first_cells(file)
        for column in columns:
            kind, cells = column.kind, values[column.place]
            first = os.fsdecode(cells[0].as_py()) if kind == "file" and len(cells) else ""
            if first and not first.lower().endswith(".npy"):
                found += (self.look.size or 224) ** 2 * 3
            elif first:
                found += (_stamp(_joined(file, first)) or [0])[0]
            else:
                found += 8 if kind in NUMBERS else _mean_bytes(cells)
        return max(found, 1)

    def _header(self, file: str) -> list[str]:
        piece = next(self.text.pieces(file, _LOOK_BYTES), None)
        if piece is None:
            raise FormatError("it is empty", file=file)
        if piece.trouble is not None:
            raise FormatError(f"the first line does not name the columns: {piece.trouble}", file=file)
        end = int(piece.begins[1]) if len(piece.begins) > 1 else len(piece.content)
        names = header_cells(piece.content[:end], self.text.between(file))
        if not names[0] and "index" not in names:
            names[0] = "index"
        if "" in names:
            trouble = f"column {names.index('') + 1} has no name"
            raise FormatError(f"the first line does not name the columns: {trouble}", file=file)
        if any(map(is_path, names)) or type_of(need("pyarrow").array(list(map(os.fsencode, names)))) in _NAMED_NEVER:
            raise FormatError(
                f"the first line does not name the columns: {', '.join(names)!r:.200} are values",
                file=file,
                remedy="Put a line with their names before it.",
            )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise FormatError(f"two columns are called {twice[0]!r}", file=file)
        return names

    def _pieces(self, file: str, step: int | None = None) -> Iterator[Piece]:
        """The rows of a file without the header."""
        pieces = self.text.pieces(file, step)
        for piece in pieces:
            if len(piece.begins) > 1:
                yield piece.since(1)
            break
        yield from pieces


def _refuse(trouble: FormatError) -> NoReturn:
    raise trouble


def _is_delimiter(given: object) -> bool:
    return isinstance(given, str) and len(given) == 1 and given.isascii() and given not in '"\r\n'


def _mean_bytes(cells: Any) -> int:
    """About how many bytes a cell has."""
    return sum(map(len, cells.to_pylist())) // max(len(cells), 1)


def _other_columns(found: Sequence[str], names: Sequence[str], file: str, first: str) -> FormatError:
    lacks, more = ([one for one in ones if one not in others] for ones, others in ((names, found), (found, names)))
    differences = [f"it lacks {', '.join(map(repr, lacks))}"] if lacks else []
    differences += [f"it has {', '.join(map(repr, more))} beside"] if more else []
    differ = " and ".join(differences) or f"they come in another order, {', '.join(map(repr, found))}"
    return FormatError(
        f"its columns are not those of the first file, {first}: {differ:.500}",
        file=file,
        remedy="Give all files the same first line, or convert them by themselves.",
    )


def _encoding(given: Any) -> str:
    try:
        return codecs.lookup(given).name
    except (LookupError, TypeError):
        raise OptionError(
            f"is {given!r:.200}, which is not known", option="encoding", remedy="Pass 'latin-1', say."
        ) from None


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
