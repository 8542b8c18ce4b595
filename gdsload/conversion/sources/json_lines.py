"""Files of JSON lines: an object a line, whose keys are fields, or a list of tokens."""

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
from gdsload.conversion.sources.json_columns import CONSTANTS, column_of, inferred_type, late_key, named_type
from gdsload.conversion.sources.streams import DAMAGED, read_line, unpacked
from gdsload.errors import FormatError

__all__ = ["JsonLinesSource"]

_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_TOKENS = "tokens"
_LOOKED_AT, _LOOK_BYTES = 1000, 16 * 2**20
_BATCH_BYTES, _MAX_LINE_BYTES = 4 * 2**20, 2**26  # as Python's objects a line may take thirty times as much


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
    one each part is a field, ``"s.x"``; a line that is a list is the field ``tokens``. A line with another key is an
    error of that line, unless `fields` says which are taken; one without a key has no value there, as a row of a table.

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
        where = f"{file}, row {row}"
        try:
            tokens = _TOKENS in self._columns()[0].names
            table = self._table([_object(line, where, tokens=tokens) for line in lines], where)
            items = list(table_items(table, self._columns()[1], row, file))
        except FormatError as error:
            if len(lines) == 1:
                yield Item(f"row {row}", partial(_refuse, error), 1)
                return
            middle = len(lines) // 2
            yield from self._items(lines[:middle], row, file)
            yield from self._items(lines[middle:], row + middle, file)
        else:
            yield from items

    def _table(self, objects: Sequence[dict[str, Any]], where: str) -> Any:
        schema, _ = self._columns()
        for found in objects if self.fields is None else ():
            if late := found.keys() - set(schema.names):
                raise late_key(min(late), found[min(late)], where)
        return need("pyarrow").table({
            one.name: column_of(
                self._values(objects, one.name, where), one.type, one.name, where, rounds=one.name in self.types
            )
            for one in schema
        })  # fmt: skip

    def _values(self, objects: Sequence[Mapping[str, Any]], key: str, where: str) -> list[Any]:
        """The values of a key, as texts of JSON if it is kept as such."""
        if key not in self.table_form.as_json:
            return [found.get(key) for found in objects]
        with reading(f"the key {key!r:.100} cannot be kept as a text of JSON", where, RecursionError):
            return [json.dumps(found[key], ensure_ascii=False) if key in found else None for found in objects]

    def _columns(self) -> tuple[Any, list[Leaf]]:
        """Arrow's schema of the lines, and what fields are made of: by the first lines of the first file."""
        if self._known is None:
            file = self._files()[0]
            with reading("the first lines cannot be read", file, RecursionError):
                schema = self._schema(file)
            form = TableForm(self.fields, self.table_form.fill, (), self.table_form.decimals)
            self._known = schema, form.leaves(schema, file)
        return self._known

    def _schema(self, file: str) -> Any:
        arrow, objects = need("pyarrow", file=file), _first_objects(file)
        named = {name: named_type(name, kind) for name, kind in self.types.items()}
        keys = list(dict.fromkeys(key for found in objects for key in found))
        # A key that has what stands for it where it is missing need not be in the first lines.
        late = [name for name in named if name in self.table_form.fill and name not in keys]
        check_fields([*self.table_form.as_json, *named], [*keys, *late], file)
        wanted = [key for key in [*keys, *late] if self.fields is None or self._is_wanted(key)]
        if not wanted:
            check_fields(self.fields, keys, file)
        types = (named.get(key) or inferred_type(self._values(objects, key, file), key, file) for key in wanted)
        return arrow.schema(list(zip(wanted, types, strict=True)))

    def _is_wanted(self, key: str) -> bool:
        return any(name == key or name.startswith(f"{key}.") for name in self.fields or ())

    def _files(self) -> list[str]:
        return self.files.find(_SUFFIXES)


def _part(name: str, file: str, edges: tuple[int, int], rows: tuple[int, int]) -> Part:
    where = (file, *edges, rows[0])
    return Part(f"{name}, rows {rows[0]} to {rows[1] - 1}", where, rows[1] - rows[0], edges[1] - edges[0])


def _refuse(trouble: FormatError) -> NoReturn:
    raise trouble


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a key twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=CONSTANTS.__getitem__)


def _object(line: bytes, where: str, *, tokens: bool = True) -> dict[str, Any]:
    """The object of a line; a line that is a list is one with the key `tokens`, where that is wanted."""
    with reading("the line is no JSON", where, ValueError, RecursionError):
        found = _DECODER.decode(line.decode("utf-8-sig"))
    if tokens and isinstance(found, list):
        return {_TOKENS: found}
    if not isinstance(found, dict):
        raise FormatError(f"the line is no JSON object: {line!r:.100}", file=where)
    return found


def _first_objects(file: str) -> list[dict[str, Any]]:
    """The objects of the first lines, of bounded length together; a line that is none is at fault when its turn comes.

    Raises:
        FormatError: if there is no line, or none is an object.
    """
    found, trouble, seen, nbytes = list[dict[str, Any]](), None, 0, 0
    with _opened(file) as opened:
        for line in opened:
            if line.isspace():
                continue
            try:
                found.append(_object(line, f"{file}, row {seen}"))
            except FormatError as error:
                trouble = trouble or error
            seen, nbytes = seen + 1, nbytes + len(line)
            if seen == _LOOKED_AT or nbytes >= _LOOK_BYTES:
                break
    if not found:
        raise trouble or FormatError("there is not one line", file=file)
    return found


@contextmanager
def _opened(file: str, offset: int = 0) -> Iterator[Iterator[bytes]]:
    """The lines of a file from an offset on; whatever is wrong with it is a FormatError."""
    with reading("the file cannot be read", file, *DAMAGED), open_file(file) as raw:
        stream = unpacked(raw, packed=file.lower().endswith(".gz"))
        if offset:
            stream.seek(offset)
        yield iter(lambda: read_line(stream, file, most=_MAX_LINE_BYTES), b"")
