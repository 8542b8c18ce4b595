"""Files of JSON lines: an object a line, whose keys are fields."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn, Unpack

from gdsload.conversion.input_files import FileOptions, SourceFiles, open_file, stamps
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import check_fields
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.arrow_columns import table_items
from gdsload.conversion.sources.arrow_types import ColumnOptions, Leaf, TableForm, TableSource
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.json_tables import parsed
from gdsload.conversion.sources.json_types import check_rounded, has_large_float, named_type, settled_type
from gdsload.conversion.sources.reading_process import read_apart
from gdsload.conversion.sources.streams import DAMAGED, read_line, unpacked
from gdsload.errors import FormatError

__all__ = ["JSON_LINES", "JsonLinesSource", "JsonOptions"]

JSON_LINES = (".jsonl", ".ndjson")
_SUFFIXES = (*JSON_LINES, *(f"{suffix}.gz" for suffix in JSON_LINES))
_LOOKED_AT, _LOOK_BYTES = 1000, 16 * 2**20
_BATCH_BYTES = 4 * 2**20


class JsonOptions(FileOptions, ColumnOptions, total=False):
    """The options of JSON lines.

    Attributes:
        types: the element types of keys, where the first lines do not tell them: ``{"x": "float64"}``; of a key that
            comes later, together with its `fill`; ``"string"`` for texts.
    """

    types: Mapping[str, str]


class JsonLinesSource(TableSource):
    """Lines of JSON, each an object: a sample, whose keys are fields.

    The first 1000 lines, or as many as have 16 MiB, tell which keys there are, and of what types: whole numbers
    (int64), floating-point ones (float64), ``true`` and ``false``, texts, lists of numbers (ragged). Of an object in
    one each part is a field, ``"s.x"``. A line with a key that those have not is an error of that line, unless `fields`
    says which are taken; one without a key has no value there, as a row of a table.

    Args:
        path: a `.jsonl` or `.ndjson` file, maybe with `.gz` after it, or a folder of such files with the same keys.
        **options: see `JsonOptions`. `fill`, `as_json` and `decimals`, as all tables have them: see `ColumnOptions`.
            `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.
    """

    kind = "JSON lines"
    threads = False
    _known: tuple[Any, list[Leaf]] | None = None

    def __init__(self, path: str, **options: Unpack[JsonOptions]) -> None:
        self.path = path
        self.files = SourceFiles.of(path, options)
        self.table_form = TableForm.of(options)
        self.types = dict(options.get("types") or {})

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        return {"kind": self.kind, "files": stamps(self._files()), "types": self.types, **self.table_form.to_json()}

    def notes(self) -> list[str]:
        """Sentences that users should know of it."""
        return self.table_form.notes(self._columns()[1])

    def metadata(self) -> dict[str, Any]:
        """The part of the dataset's metadata that follows from it: units, of keys that `types` says are times."""
        return self.table_form.metadata(self._columns()[1])

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of lines; a packed file is one part."""
        found: list[Part] = []
        for file in self._files():
            name = os.path.basename(file)
            if file.lower().endswith(".gz"):
                found.append(Part(name, (file, 0, -1, 0), nbytes=os.path.getsize(file)))
                continue
            low = high = row = rows = 0
            with _opened(file) as opened:
                for line in opened:
                    high += len(line)
                    rows += not line.isspace()
                    if high - low >= target_bytes:
                        found.append(_part(name, file, (low, high), (row, rows)))
                        low, row = high, rows
            found += [_part(name, file, (low, high), (row, rows))] if rows > row else []
        if not found:
            raise FormatError("there is not one line", file=self.path)
        self._columns()
        return found

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        file, low, high, row = str(part.where[0]), *(int(number) for number in part.where[1:])
        with _opened(file, low) as opened:
            lines: list[bytes] = []
            size, left = 0, high - low
            for line in opened:
                left -= len(line)
                if not line.isspace():
                    lines.append(line)
                    size += len(line)
                if size >= _BATCH_BYTES or not left:
                    yield from self._items(lines, row, file)
                    row, lines, size = row + len(lines), [], 0
                if not left:
                    return
            yield from self._items(lines, row, file)

    def _items(self, lines: Sequence[bytes], row: int, file: str) -> Iterator[Item]:
        """All lines at once; if one cannot be read, each half by itself, so that it alone is at fault."""
        if not lines:
            return
        try:
            items = list(table_items(self._table(lines, f"{file}, row {row}"), self._columns()[1], row, file))
        except FormatError as error:
            if len(lines) == 1:
                yield Item(f"row {row}", partial(_refuse, lines[0], f"{file}, row {row}", error), 1)
                return
            middle = len(lines) // 2
            yield from self._items(lines[:middle], row, file)
            yield from self._items(lines[middle:], row + middle, file)
        else:
            yield from items

    def _table(self, lines: Sequence[bytes], where: str) -> Any:
        schema, _ = self._columns()
        if self.table_form.as_json:
            lines = self._dumped([_object(line, where) for line in lines])
        table = parsed(lines, where, schema, others="error" if self.fields is None else "ignore")
        large = [name for name in table.column_names if name not in self.types and has_large_float(table.column(name))]
        for row in [_object(line, where) for line in lines] if large else ():
            for name in large:
                check_rounded(table.column(name), [row.get(name)], name, where)
        return table

    def _taken(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The values of an object that are taken, with texts of JSON where they are kept as such."""
        wanted = found if self.fields is None else {key: found[key] for key in found if self._is_wanted(key)}
        return {key: _text(value) if key in self.table_form.as_json else value for key, value in wanted.items()}

    def _dumped(self, objects: Sequence[Mapping[str, Any]]) -> list[bytes]:
        """Lines of what is taken of objects."""
        return [_text(self._taken(found)).encode("utf-8", "surrogatepass") + b"\n" for found in objects]

    def _is_wanted(self, key: str) -> bool:
        return any(name == key or name.startswith(f"{key}.") for name in self.fields or ())

    def _columns(self) -> tuple[Any, list[Leaf]]:
        """Arrow's schema of the lines, and what fields are made of: by the first lines of the first file."""
        if self._known is None:
            file = self._files()[0]
            schema = read_apart(_schema_of, file, self)  # nesting may kill it
            form = TableForm(self.fields, self.table_form.fill, (), self.table_form.decimals)
            self._known = schema, form.leaves(schema, file)
        return self._known

    def schema(self, file: str) -> Any:
        """Arrow's schema of the first lines of a file."""
        arrow, lines = need("pyarrow", file=file), _first_lines(file)
        given = arrow.schema([(name, named_type(name, kind)) for name, kind in self.types.items()])
        objects = _objects(lines, file) if self.table_form.as_json or self.fields is not None else []
        try:
            table = parsed(self._dumped(objects) or lines, file, given, others="infer")
        except FormatError:
            objects = _objects(lines, file)  # without lines that are none
            table = parsed(self._dumped(objects), file, given, others="infer")
        table, content = table.combine_chunks(), b"".join(lines)
        keys = list(dict.fromkeys(key for row in objects for key in row)) or [
            name
            for name, column in zip(table.column_names, table.columns, strict=True)
            # Arrow has a column for each key that it is given a type for.
            if name not in given.names or column.null_count < len(column) or _is_in(name, content)
        ]
        # A key that has what stands for it where it is missing need not be in the first lines.
        late = [name for name in self.types if name in self.table_form.fill and name not in keys]
        check_fields([*self.table_form.as_json, *self.types], [*keys, *late], file)
        if self.fields is not None and not any(map(self._is_wanted, [*keys, *late])):
            check_fields(self.fields, keys, file)
        if not objects and any(map(has_large_float, table.columns)):
            objects = _objects(lines, file)
        rows = list(map(self._taken, objects))
        return arrow.schema(
            [
                (name, column.type)
                if name in self.types
                else (name, settled_type(column.chunk(0), [row.get(name) for row in rows], name, file))
                for name, column in zip(table.column_names, table.columns, strict=True)
                if self.fields is None or self._is_wanted(name)
            ]
        )

    def _files(self) -> list[str]:
        return self.files.find(_SUFFIXES)


def _schema_of(file: str, source: JsonLinesSource) -> Any:
    return source.schema(file)


def _part(name: str, file: str, edges: tuple[int, int], rows: tuple[int, int]) -> Part:
    where = (file, *edges, rows[0])
    return Part(f"{name}, rows {rows[0]} to {rows[1] - 1}", where, rows[1] - rows[0], edges[1] - edges[0])


def _refuse(line: bytes, where: str, trouble: FormatError) -> NoReturn:
    _object(line, where)  # says better what is wrong with a line that is none
    raise trouble


def _object(line: bytes, where: str) -> dict[str, Any]:
    with reading("the line is no JSON", where, ValueError, RecursionError):
        found = json.loads(line)
    if not isinstance(found, dict):
        raise FormatError(
            f"the line is no JSON object: {line!r:.100}", file=where, remedy="Lists of tokens are of `kind='tokens'`."
        )
    return found


def _first_lines(file: str) -> list[bytes]:
    """The first lines that are not empty, of bounded length together."""
    found, nbytes = list[bytes](), 0
    with _opened(file) as opened:
        for line in opened:
            if not line.isspace():
                found.append(line)
                nbytes += len(line)
            if len(found) == _LOOKED_AT or nbytes >= _LOOK_BYTES:
                break
    if not found:
        raise FormatError("there is not one line", file=file)
    return found


def _objects(lines: Sequence[bytes], file: str) -> list[dict[str, Any]]:
    """The objects of the first lines; one that is none is at fault when its turn comes."""
    found, trouble = list[dict[str, Any]](), None
    for row, line in enumerate(lines):
        try:
            found.append(_object(line, f"{file}, row {row}"))
        except FormatError as error:
            trouble = trouble or error
    if not found and trouble is not None:
        raise trouble
    return found


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_in(key: str, content: bytes) -> bool:
    """Return whether lines have a key, or a value that is called like it."""
    return any(json.dumps(key, ensure_ascii=how).encode() in content for how in (False, True))


@contextmanager
def _opened(file: str, offset: int = 0) -> Iterator[Iterator[bytes]]:
    """The lines of a file from an offset on; whatever is wrong with it is a FormatError."""
    with reading("the file cannot be read", file, *DAMAGED), open_file(file) as raw:
        stream = unpacked(raw, packed=file.lower().endswith(".gz"))
        if offset:
            stream.seek(offset)
        yield iter(lambda: read_line(stream, file), b"")
