"""CSV and TSV files, whose cells are numbers, texts, or paths of images and arrays."""

from __future__ import annotations

import codecs
import csv
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Unpack

from gdsload.conversion.input_files import SourceFiles, digest_of, open_file, stamps
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import USUAL_BYTES, check_columns, check_fields, filled, given, halved
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.arrays import decode_npy
from gdsload.conversion.sources.arrow_columns import column_values
from gdsload.conversion.sources.arrow_types import Leaf, TableForm
from gdsload.conversion.sources.csv_cells import (
    CELL_TYPES,
    CsvForm,
    Rows,
    cells_of,
    is_path,
    missing_among_numbers,
    not_utf8,
    number_type,
    other_delimiter,
    type_of,
    values_of,
)
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageForm, ImageSource, put
from gdsload.errors import FormatError, OptionError

_LOOKED_AT, _LOOK_BYTES = 1000, 2**16


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
    """

    kind = "CSV files"
    threads = False
    suffixes = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
    decisive = ("fill",)
    _known: dict[str, str] | None = None

    def __init__(self, path: str, **options: Unpack[CsvOptions]) -> None:
        self.path = path
        self.types, self.fill = dict(options.get("types") or {}), dict(options.get("fill") or {})
        delimiter, encoding = options.get("delimiter"), options.get("encoding", "utf-8")
        self.look, self.files = ImageForm.of(options), SourceFiles.of(path, options)
        for name, kind in self.types.items():
            if kind not in CELL_TYPES:
                raise OptionError(f"the type of {name!r} is {kind!r}", remedy=f"Supported are {', '.join(CELL_TYPES)}.")
        if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n'):
            raise OptionError(
                f"is {delimiter!r:.100}", option="delimiter", remedy="Pass a single character of ASCII, no quote."
            )
        try:
            self.text = CsvForm(delimiter, codecs.lookup(encoding).name)
        except LookupError:
            raise OptionError(
                f"is {encoding!r:.200}, which is not known", option="encoding", remedy="Pass 'latin-1', say."
            ) from None

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`. Files that cells name are known by a checksum of names, lengths and times."""
        return {
            **super().describe(),
            "columns": self._kinds(),
            "sha256": digest_of(self._stamps_in_cells()),
            "text": asdict(self.text),
        }

    def _stamps_in_cells(self) -> Iterator[list[list[int] | None]]:
        """The stamps of the files that the cells of each row name."""
        paths = self._paths()
        for file in self.all_files() if paths else []:
            for table in (table for rows in self._rows(file) for table in self._tables(rows, paths, file)):
                for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                    yield [_stamp(file, cell) for cell in row]

    def notes(self) -> list[str]:
        file, found = self.all_files()[0], list[str]()
        names, first = self._header(file), self._first_cells(file)
        if other := other_delimiter(names):
            found.append(
                f"there is one column, {names[0]!r:.100}: if cells are between {other!r}, pass `delimiter={other!r}`"
            )
        for name, kind in self._kinds().items():
            padded = filter(_is_padded, first[name].to_pylist() if kind in ("int", "uint") else ())
            if name not in self.types and (odd := next(padded, None)):
                found.append(
                    f"{name!r} is taken for {kind}, but {odd!r} begins with a zero: if it is a name, keep it as a "
                    f"text, `types={{{name!r}: 'str'}}`"
                )
            if name not in self.types and kind == "str" and (odd := missing_among_numbers(first[name])):
                found.append(
                    f"{name!r} is taken for texts, as {odd!r} is among its values: if that stands for a missing one, "
                    "leave the cell empty"
                )
        return found

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of rows, which are found again by their place in the file, or whole files."""
        self._leaves()  # refuses what cannot fill
        files, found = self.all_files(), list[Part]()
        names, first = self._header(files[0]), next(self._rows(files[0], _LOOK_BYTES), None)
        row_bytes = text_bytes = 1 if first is None else len(first.content) // len(first.begins)
        if self._paths():
            row_bytes = USUAL_BYTES
        step = max(target_bytes * text_bytes // row_bytes, 1)
        for file in files:
            if (header := self._header(file)) != names:
                raise FormatError(
                    f"its columns are {', '.join(header):.300}, but those of {files[0]} are {', '.join(names):.300}",
                    file=file,
                    remedy="Give all files the same first line, or convert them by themselves.",
                )
            if not self.text.seekable(file):
                found.append(Part(os.path.basename(file), (file, 0, 1, -1), nbytes=os.path.getsize(file)))
                continue
            for rows in self._rows(file, step):
                count, begin, line = len(rows.begins), int(rows.begins[0]), int(rows.lines[0])
                where = (file, rows.offset + begin, line, len(rows.content) - begin)
                name = f"{os.path.basename(file)}, {count} rows from line {line}"
                found.append(Part(name, where, count, count * row_bytes))
        return filled(found, "row", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        file, offset, line, nbytes = str(part.where[0]), *(int(number) for number in part.where[1:])
        found = self._rows(file) if nbytes < 0 else self.text.rows(file, offset=offset, line=line, nbytes=nbytes)
        names, leaves, paths = self._header(file), self._leaves(), self._paths()
        for rows in found:
            made = partial(self._made, rows, names=names, leaves=leaves, file=file)
            for low, high, values in halved(0, len(rows.begins), made):
                lines = rows.lines[low:high].tolist()
                if not paths or isinstance(values, FormatError):
                    key = f"line {lines[0]}" if len(lines) == 1 else f"lines {lines[0]} to {lines[-1]}"
                    yield Item(key, partial(given, values), high - low)
                    continue
                for number, line in enumerate(lines):
                    sample = {name: column[number] for name, column in values.items()}
                    yield Item(f"line {line}", partial(self._sample, sample, paths, file, f"{file}, line {line}"))

    def _made(
        self, rows: Rows, low: int, high: int, *, names: Sequence[str], leaves: Sequence[Leaf], file: str
    ) -> dict[str, Any]:
        """The values of the rows from one number to another; those of columns of paths are texts."""
        where, kinds = f"{file}, line {rows.lines[low]}", self._kinds()
        wanted = [leaf.name for leaf in leaves]
        cells = cells_of(rows, low, high, self.text.between(file), names, wanted, where).columns
        return {
            leaf.name: column_values(
                values_of(
                    column.combine_chunks(), leaf.name, kinds[leaf.name], where,
                    filled=leaf.fill is not None, rounds=leaf.name in self.types,
                ),
                leaf, where,
            )
            for leaf, column in zip(leaves, cells, strict=True)
        }  # fmt: skip

    def first_items(self) -> Iterator[Item]:
        if self._paths():
            yield from self.read(Part("the first rows", (self.all_files()[0], 0, 1, -1)))

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

    def all_files(self) -> list[str]:
        """The files, those in folders below left out."""
        return self.files.find(self.suffixes, below=False)

    def _kinds(self) -> dict[str, str]:
        if self._known is None:
            file = self.all_files()[0]
            names = self._header(file)
            check_fields([*self.types, *self.fill], names, file)
            first = self._first_cells(file)
            self._known = {name: self.types.get(name) or type_of(first[name], name, file) for name in first}
        return self._known

    def _paths(self) -> list[str]:
        return [name for name, kind in self._kinds().items() if kind == "file"]

    def _leaves(self) -> list[Leaf]:
        arrow, kinds = need("pyarrow"), self._kinds()
        schema = arrow.schema([(name, arrow.type_for_alias(CELL_TYPES[kind])) for name, kind in kinds.items()])
        fill = {name: value for name, value in self.fill.items() if name in kinds}
        return TableForm(None, fill).leaves(schema, self.all_files()[0])

    def _first_cells(self, file: str) -> dict[str, Any]:
        """The first cells of each wanted column that are not empty, as texts."""
        arrow, compute = need("pyarrow"), need("pyarrow.compute")
        wanted, found, seen = check_columns(self.fields, self._header(file), file), list[Any](), 0
        for rows in self._rows(file, _LOOK_BYTES):
            found += self._tables(rows, wanted, file)
            if (seen := seen + len(rows.begins)) >= _LOOKED_AT:
                break
        empty = arrow.schema(dict.fromkeys(wanted, arrow.string())).empty_table()
        cells = arrow.concat_tables([empty, *found]).slice(0, _LOOKED_AT).combine_chunks()
        columns = {name: arrow.concat_arrays(cells.column(name).chunks) for name in wanted}
        return {name: column.filter(compute.not_equal(column, "")) for name, column in columns.items()}

    def _tables(self, rows: Rows, wanted: Sequence[str], file: str) -> Iterator[Any]:
        """The cells of wanted columns of rows, without bad ones."""
        names, between = self._header(file), self.text.between(file)
        made = partial(cells_of, rows, between=between, names=names, wanted=wanted, where=file)
        for _, _, table in halved(0, len(rows.begins), made):
            if not isinstance(table, FormatError):
                yield table

    def _header(self, file: str) -> list[str]:
        rows = next(self.text.rows(file, _LOOK_BYTES), None)
        if rows is None:
            raise FormatError("it is empty", file=file)
        failed, line = "the first line does not name the columns", rows.text(0, 1)
        if reason := rows.odd.get(int(rows.begins[0])):
            raise FormatError(f"{failed}: {reason}", file=file)
        try:
            text = line.decode()
        except UnicodeError:
            raise not_utf8(line, file) from None
        with reading(failed, file, csv.Error):
            names = [name.strip() for name in next(csv.reader([text], delimiter=self.text.between(file)))]
        if not names[0] and "index" not in names:
            names[0] = "index"
        trouble = f"column {names.index('') + 1} has no name" if "" in names else None
        if any(map(is_path, names)) or number_type(need("pyarrow").array(names)) in ("int", "uint", "float"):
            trouble = f"{', '.join(names)!r:.200} are values"
        if trouble:
            raise FormatError(f"{failed}: {trouble}", file=file, remedy="Put a line with their names before it.")
        if twice := sorted(name for name, times in Counter(names).items() if times > 1):
            raise FormatError(f"two columns are called {twice[0]!r}", file=file)
        return names

    def _rows(self, file: str, step: int | None = None) -> Iterator[Rows]:
        """The rows of a file without the header."""
        for number, rows in enumerate(self.text.rows(file, step)):
            if number or len(rows.begins) > 1:
                yield rows if number else replace(rows, begins=rows.begins[1:], lines=rows.lines[1:])


def _is_padded(cell: str) -> bool:
    digits = cell.strip().lstrip("+-")
    return len(digits) > 1 and digits.startswith("0")


def _stamp(file: str, cell: str) -> list[int] | None:
    """Length and times of the last changes of a file beside another, if it is there."""
    try:
        return [int(number) for number in stamps([os.path.join(os.path.dirname(file), cell)])[0][1:]]
    except (OSError, ValueError):
        return None
