"""Files of JSON lines: an object a line, whose keys are fields."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import IO, Any, Self, Unpack, cast

from gdsload.conversion.input_files import FileOptions, SourceFiles, open_file, stamps
from gdsload.conversion.reasons import in_words
from gdsload.conversion.row_source import check_fields
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.arrow_columns import table_items
from gdsload.conversion.sources.arrow_types import ColumnOptions, Leaf, TableForm
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.json_types import check_rounded, has_large_float, named_type, settled_type
from gdsload.errors import FormatError, OptionError

__all__ = ["JSON_LINES", "JsonLinesSource", "JsonOptions"]

JSON_LINES = (".jsonl", ".ndjson")
_SUFFIXES = (*JSON_LINES, *(f"{suffix}.gz" for suffix in JSON_LINES))
_LOOKED_AT = 1000
_ROW = re.compile(r"^JSON parse error: | in row \d+$")  # of those that it was given
_BATCH_BYTES = 4 * 2**20
_MAX_LINE_BYTES = 2**28
_USUAL: dict[type | tuple[type, ...], tuple[str, object]] = {bool: ("bool", False), (str, list, dict): ("string", "")}
"""The type that a value has, and what may stand for one that is missing; lists and objects as texts of JSON."""


class JsonOptions(FileOptions, ColumnOptions, total=False):
    """The options of JSON lines.

    Attributes:
        types: the element types of keys, where the first lines do not tell them: ``{"x": "float64"}``; of a key that
            comes later, together with its `fill`; ``"string"`` for texts.
    """

    types: Mapping[str, str]


class JsonLinesSource(FieldChoice):
    """Lines of JSON, each an object: a sample, whose keys are fields.

    The first 1000 lines tell which keys there are, and of what types: whole numbers (int64), floating-point ones
    (float64), ``true`` and ``false``, texts, lists of numbers (ragged). Of an object in one each part is a field,
    ``"s.x"``. A line with a key that those have not is an error of that line, unless `fields` says which are taken; one
    without a key has no value there, as a row of a table.

    Args:
        path: a `.jsonl` or `.ndjson` file, maybe with `.gz` after it, or a folder of such files with the same keys.
        **options: see `JsonOptions`. `fill`, `as_json` and `decimals`, as all tables have them: see `ColumnOptions`.
            `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.

    Raises:
        OptionError: if an option has no such value.
    """

    kind = "JSON lines"
    threads = False

    def __init__(self, path: str, **options: Unpack[JsonOptions]) -> None:
        self.path = path
        self.files = SourceFiles.of(path, options)
        self.table_form = TableForm.of(options)
        self.types = dict(options.get("types") or {})
        self._known: tuple[Any, list[Leaf]] | None = None

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        return {"kind": self.kind, "files": stamps(self._files()), "types": self.types, **self.table_form.to_json()}

    def notes(self) -> list[str]:
        """What users should know of it."""
        return self.table_form.notes(self._columns()[1])

    def metadata(self) -> dict[str, Any]:
        """What the dataset's metadata have of it: units, of keys that `types` says are times."""
        return self.table_form.metadata(self._columns()[1])

    def only(self, fields: Sequence[str]) -> Self:
        """See `Selective.only`."""
        found = super().only(fields)
        found.table_form, found._known = self.table_form.only(fields), None  # noqa: SLF001 - its own
        return found

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
                for line in _lines(opened, file):
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
        with _opened(file) as opened:
            if low:
                opened.seek(low)
            lines: list[bytes] = []
            size, left = 0, high - low
            for line in _lines(opened, file):
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
        """All lines at once; if one cannot be read, one by one, so that it alone is at fault."""
        if not lines:
            return
        try:
            table = self._table(lines, f"{file}, row {row}")
        except FormatError:
            for number, line in enumerate(lines, row):
                yield Item(f"row {number}", partial(self._batch_of_one, line, number, file), 1)
            return
        yield from table_items(table, self._columns()[1], row, file)

    def _batch_of_one(self, line: bytes, row: int, file: str) -> Mapping[str, Any]:
        _object(line, f"{file}, row {row}")  # says better what is wrong
        table = self._table([line], f"{file}, row {row}")
        (item,) = table_items(table, self._columns()[1], row, file)
        return item.make()

    def _table(self, lines: Sequence[bytes], where: str) -> Any:
        schema, _ = self._columns()
        if self.table_form.as_json:
            lines = [_dumped(self._taken(_object(line, where))) for line in lines]
        table = _parsed(b"".join(lines), where, schema, others="error" if self.fields is None else "ignore")
        if len(table) != len(lines):
            raise FormatError("a line is no JSON object", file=where)
        large = [name for name in table.column_names if name not in self.types and has_large_float(table.column(name))]
        for row in [_object(line, where) for line in lines] if large else ():
            for name in large:
                check_rounded(table.column(name), [row.get(name)], name, where)
        return table

    def _taken(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """What is taken of an object, texts of JSON in place of what becomes such."""
        wanted = found if self.fields is None else {key: found[key] for key in found if self._is_wanted(key)}
        return {key: _text(value) if key in self.table_form.as_json else value for key, value in wanted.items()}

    def _is_wanted(self, key: str) -> bool:
        return any(name == key or name.startswith(f"{key}.") for name in self.fields or ())

    def _columns(self) -> tuple[Any, list[Leaf]]:
        """Arrow's schema of the lines, and what fields are made of: by the first lines of the first file."""
        if self._known is None:
            file = self._files()[0]
            schema = self._schema(_first_objects(file), file)
            form = TableForm(self.fields, self.table_form.fill, (), self.table_form.decimals)
            self._known = schema, form.leaves(schema, file)
        return self._known

    def _schema(self, rows: Sequence[Mapping[str, Any]], file: str) -> Any:
        keys = dict.fromkeys(key for row in rows for key in row)
        # A key that has what stands for it where it is missing need not be in the first lines.
        late = [name for name in self.types if name in self.table_form.fill and name not in keys]
        check_fields([*self.table_form.as_json, *self.types], [*keys, *late], file)
        if self.fields is not None and not any(map(self._is_wanted, [*keys, *late])):
            check_fields(self.fields, keys, file)
        arrow, taken = need("pyarrow", file=file), list(map(self._taken, rows))
        given = [(name, named_type(name, kind)) for name, kind in self.types.items()]
        found = _parsed(b"".join(map(_dumped, taken)), file, arrow.schema(given), others="infer").schema
        return arrow.schema(
            [
                (
                    one.name,
                    one.type
                    if one.name in self.types
                    else settled_type(one.type, [row.get(one.name) for row in taken], one.name, file),
                )
                for one in found
                if self.fields is None or self._is_wanted(one.name)
            ]
        )

    def _files(self) -> list[str]:
        return self.files.find(_SUFFIXES)


def _part(name: str, file: str, edges: tuple[int, int], rows: tuple[int, int]) -> Part:
    where = (file, *edges, rows[0])
    return Part(f"{name}, rows {rows[0]} to {rows[1] - 1}", where, rows[1] - rows[0], edges[1] - edges[0])


def _parsed(content: bytes, where: str, schema: Any, *, others: str) -> Any:
    """A table of lines."""
    arrow = need("pyarrow", file=where)
    try:
        return _read(content, schema, others)
    except arrow.ArrowException as error:
        late = _late_key(content, schema) if "unexpected field" in str(error) else None
        if late is not None:
            raise _of_a_late_key(*late, where) from None
        reason = _ROW.sub("", str(error))[:200]
        if (found := _mixed_key(content, schema)) is not None:
            raise _of_a_mixed_key(*found, reason, where) from None
        raise FormatError(
            f"the lines are no table: {reason}",
            file=where,
            remedy="Say of what type a key is, types={'x': 'float64'}, say; keep what varies as a text of JSON, "
            "as_json=['x']; or choose other fields: fields=[...].",
        ) from None


def _read(content: bytes, schema: Any, others: str) -> Any:
    reader = need("pyarrow.json")
    return reader.read_json(
        io.BytesIO(content),
        read_options=reader.ReadOptions(use_threads=False, block_size=len(content) + 1),
        parse_options=reader.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others),
    )


def _mixed_key(content: bytes, schema: Any) -> tuple[str, str | None] | None:
    """The first key that cannot be read alone, and the type that has its numbers, if it has no others; None: no key."""
    arrow = need("pyarrow")
    try:
        rows = [json.loads(line) for line in content.splitlines()]
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(row, dict) for row in rows):
        return None
    for key in dict.fromkeys(key for row in rows for key in row):
        known = [schema.field(key)] if key in schema.names else []
        values = [row[key] for row in rows if key in row]
        try:
            _read(b"".join(_dumped({key: value}) for value in values), arrow.schema(known), "infer")
        except arrow.ArrowException:
            whole = all(arrow.types.is_integer(one.type) for one in known)
            return key, _wider([value for value in values if value is not None]) if whole else None
    return None


def _wider(values: Sequence[Any]) -> str | None:
    """The type that has numbers of which int64 or uint64 does not have all; None if there is none."""
    if all(type(value) is int for value in values):
        return "uint64" if min(values, default=0) >= 0 and max(values, default=0) < 2**64 else None
    return "float64" if all(type(value) in (int, float) for value in values) else None


def _of_a_mixed_key(key: str, kind: str | None, reason: str, where: str) -> FormatError:
    name = f"{key!r:.100}"
    rounds = ", which rounds whole numbers beyond 2**53" if kind == "float64" else ""
    way = f"Say of what type it is, types={{{name}: {kind!r}}}{rounds}; or keep it" if kind else "Keep it"
    return FormatError(
        f"the key {name} has values of several types: {reason}",
        file=where,
        remedy=f"{way} as a text of JSON, as_json=[{name}]; or choose other fields: fields=[...].",
    )


def _late_key(content: bytes, schema: Any) -> tuple[str, Any] | None:
    """The first key of the lines that is none of the schema's, and its value."""
    for line in content.splitlines():
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
            for key, value in found.items() if isinstance(found, dict) else ():
                if key not in schema.names:
                    return key, value
    return None


def _of_a_late_key(key: str, value: Any, where: str) -> FormatError:
    name = f"{key!r:.100}"
    kind, usual = next((how for what, how in _USUAL.items() if isinstance(value, what)), ("float64", 0))
    text = f" and as_json=[{name}]" if isinstance(value, list | dict) else ""
    return FormatError(
        f"the first lines have no key {name}",
        file=where,
        remedy="Say of what type it is and what stands for it where it is missing, "
        f"types={{{name}: {kind!r}}} and fill={{{name}: {usual!r}}}{text}, say; or choose other fields: fields=[...].",
    )


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the line is no JSON: {in_words(error)}", file=where) from None
    if not isinstance(found, dict):
        raise FormatError(
            f"the line is no JSON object: {line!r:.100}", file=where, remedy="Lists of tokens are of kind='tokens'."
        )
    return found


def _first_objects(file: str) -> list[dict[str, Any]]:
    """The objects of the first lines; one that is none is at fault when its turn comes."""
    found, trouble = list[dict[str, Any]](), None
    with _opened(file) as opened:
        for row, line in enumerate(islice((line for line in _lines(opened, file) if line.strip()), _LOOKED_AT)):
            try:
                found.append(_object(line, f"{file}, row {row}"))
            except FormatError as error:
                trouble = trouble or error
    if not found:
        raise trouble or FormatError("there is not one line", file=file)
    return found


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _dumped(found: Mapping[str, Any]) -> bytes:
    return _text(found).encode("utf-8", "surrogatepass") + b"\n"


def _lines(opened: IO[bytes], file: str) -> Iterator[bytes]:
    while line := opened.readline(_MAX_LINE_BYTES):
        if len(line) == _MAX_LINE_BYTES:
            raise FormatError(f"a line has {_MAX_LINE_BYTES} bytes or more", file=file)
        yield line


@contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    """A file's bytes, unpacked; whatever is wrong with it is a FormatError."""
    try:
        with open_file(file) as raw:
            yield cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if file.lower().endswith(".gz") else raw
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, FormatError | OptionError):
            raise
        reason = in_words(error)
        raise FormatError(f"the file cannot be read: {reason}", file=file) from None
