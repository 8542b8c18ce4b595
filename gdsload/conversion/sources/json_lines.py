"""Files of JSON lines: an object a line, whose keys are fields, or a list of tokens."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Unpack

from gdsload.conversion.input_files import FileOptions, FileSource, SourceFiles, open_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import check_fields, filled, row_items
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.arrow_columns import column_values
from gdsload.conversion.sources.arrow_types import ColumnOptions, Leaf, TableForm, TableSource
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.json_columns import CONSTANTS, column_of, key_type, late_key, named_type, not_an_object
from gdsload.conversion.sources.streams import DAMAGED, read_line, unpacked
from gdsload.errors import FormatError

_TOKENS = "tokens"
_LOOKED_AT, _LOOK_BYTES = 1000, 16 * 2**20
_LONG_LINES = "Write such samples as Parquet files, or their parts as several lines."
_BATCH_BYTES, _MAX_LINE_BYTES = 4 * 2**20, 2**26  # as Python's objects a line may take thirty times as much


class JsonOptions(FileOptions, ColumnOptions, total=False):
    """The options of JSON lines.

    Attributes:
        types: the types of keys, or of the elements of their lists, where the first lines do not tell them:
            ``{"x": "float64", "s.y": "int64"}``; of a key that comes later, together with its `fill`; ``"string"`` for
            texts, ``"timestamp[us]"`` for texts of times.
    """

    types: Mapping[str, str]


class JsonLinesSource(TableSource, FileSource):
    """Lines of JSON, each an object: a sample, whose keys are fields.

    The first 1000 lines, or as many as have 16 MiB, tell which keys there are, and of what types: whole numbers
    (int64; ``-0`` is 0), floating-point ones (float64), ``true`` and ``false``, texts, lists of numbers (ragged). Of an
    object in one each part is a field, ``"s.x"``, and so is a key of that name; a line that is a list is the field
    ``tokens``. A line with another key is an error of that line, unless `fields` says which are taken; one without a
    key has no value there, as a row of a table.

    Args:
        path: a `.jsonl` or `.ndjson` file, maybe with `.gz` after it, or a folder of such files with the same keys.
    """

    kind = "JSON lines"
    threads = False
    suffixes = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
    decisive = ("types",)
    _known: list[Leaf] | None = None

    def __init__(self, path: str, **options: Unpack[JsonOptions]) -> None:
        self.path = path
        self.files = SourceFiles.of(path, options)
        self.table_form = TableForm.of(options)
        self.types = dict(options.get("types") or {})

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), **self.table_form.to_json()}

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of lines; a packed file is one part."""
        found: list[Part] = []
        for file in self.all_files():
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
        filled(found, "line", self.path)
        self._leaves()
        return found

    def read(self, part: Part) -> Iterator[Item]:
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
        where = f"{file}, row "
        return row_items(row, len(lines), lambda low, high: self._made(lines[low:high], f"{where}{row + low}"))

    def _made(self, lines: Sequence[bytes], where: str) -> dict[str, Any]:
        leaves = self._leaves()
        names = {leaf.name for leaf in leaves}
        objects = [self._object(line, where, tokens=_TOKENS in names) for line in lines]
        parts = [(name[:at], name) for name in names for at, letter in enumerate(name) if letter == "."]
        for one in objects:
            late = {key for key in one.keys() - names if one[key] is not None}
            if odd := {key for key, part in parts if key in late and part not in one}:
                raise not_an_object(min(odd), where)
            if late and self.fields is None:
                raise late_key(min(late), where)
        found = {}
        for leaf in leaves:
            values, rounds = self._values(objects, leaf.name, where), leaf.name in self.types
            found[leaf.name] = column_values(column_of(values, leaf.kind, leaf.name, where, rounds=rounds), leaf, where)
        return found

    def _object(self, line: bytes, where: str, *, tokens: bool = True) -> dict[str, Any]:
        """The object of a line, with the parts of those in it; a list is one with the key `tokens`, if wanted."""
        with reading("the line is no JSON", where, ValueError, RecursionError):
            found = _DECODER.decode(line.decode("utf-8-sig"))
            if isinstance(found, dict):
                return found if dict not in map(type, found.values()) else _once(list(self._parts(found, "")))
        if tokens and isinstance(found, list):
            return {_TOKENS: found}
        raise FormatError(f"the line is no JSON object: {line!r:.100}", file=where)

    def _parts(self, found: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
        for key, value in found.items():
            name = f"{above}{key}"
            if isinstance(value, dict) and name not in self.table_form.as_json:
                yield from self._parts(value, f"{name}.")
            else:
                yield name, value

    def _values(self, objects: Sequence[Mapping[str, Any]], key: str, where: str) -> list[Any]:
        """The values of a key, as texts of JSON if it is kept as such."""
        if key not in self.table_form.as_json:
            return [one.get(key) for one in objects]
        with reading(f"the key {key!r:.100} cannot be kept as a text of JSON", where, RecursionError):
            return [json.dumps(one[key], ensure_ascii=False) if key in one else None for one in objects]

    def _leaves(self) -> list[Leaf]:
        """The columns that fields are made of, by the first lines."""
        if self._known is None:
            file = self.all_files()[0]
            objects = self._first_objects(file)
            named = {name: named_type(name, kind) for name, kind in self.types.items()}
            # A key that has what stands for it where it is missing need not be in the first lines.
            late = [name for name in named if name in self.table_form.fill]
            names = list(dict.fromkeys([*chain.from_iterable(objects), *late]))
            of_objects = {above for name in names for above in _above(name)}  # where an object is missing it is null
            names = [one for one in names if one not in of_objects or any(row.get(one) is not None for row in objects)]
            check_fields([*self.table_form.as_json, *named], names, file)
            form, arrow = TableForm(self.fields, self.table_form.fill, (), self.table_form.decimals), need("pyarrow")
            columns = []
            for name in check_fields(self.fields, names, file):
                with reading(f"the key {name!r:.100} cannot be read", file, RecursionError):
                    kind = key_type(self._values(objects, name, file), named.get(name), name, file)
                columns.append((name, kind))
            self._known = form.leaves(arrow.schema(columns), file)
        return self._known

    def _first_objects(self, file: str) -> list[dict[str, Any]]:
        """The objects of the first lines, of bounded length together; one that is none is at fault when its turn comes.

        Raises:
            FormatError: if there is no line, or none is an object.
        """
        found, trouble, seen, nbytes = list[dict[str, Any]](), None, 0, 0
        with _opened(file) as opened:
            for line in opened:
                if line.isspace():
                    continue
                try:
                    found.append(self._object(line, f"{file}, row {seen}"))
                except FormatError as error:
                    trouble = trouble or error
                seen, nbytes = seen + 1, nbytes + len(line)
                if seen == _LOOKED_AT or nbytes >= _LOOK_BYTES:
                    break
        if not found:
            raise trouble or FormatError("there is not one line", file=file)
        return found


def _part(name: str, file: str, edges: tuple[int, int], rows: tuple[int, int]) -> Part:
    where = (file, *edges, rows[0])
    return Part(f"{name}, rows {rows[0]} to {rows[1] - 1}", where, rows[1] - rows[0], edges[1] - edges[0])


def _above(name: str) -> list[str]:
    """The keys of the objects that a key is a part of, if dots in it say so."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a key twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=CONSTANTS.__getitem__)


@contextmanager
def _opened(file: str, offset: int = 0) -> Iterator[Iterator[bytes]]:
    """The lines of a file from an offset on; whatever is wrong with it is a FormatError."""
    with reading("the file cannot be read", file, *DAMAGED), open_file(file) as raw:
        stream = unpacked(raw, packed=file.lower().endswith(".gz"))
        if offset:
            stream.seek(offset)
        yield iter(lambda: read_line(stream, file, _LONG_LINES, _MAX_LINE_BYTES), b"")
