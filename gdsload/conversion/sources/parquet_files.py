"""Parquet and Arrow files, by pyarrow."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, Unpack

from gdsload.conversion.input_files import SourceFiles, open_file, stamps
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import BATCH_BYTES, filled, refuse_promised
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.arrow_columns import (
    ImageColumns,
    class_names,
    image_columns,
    image_modes,
    sound_columns,
    validate,
)
from gdsload.conversion.sources.arrow_types import ColumnOptions, Leaf, TableForm, TableSource, units_of
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageForm, ImageSource, Mode
from gdsload.errors import FormatError

_MISSING = "__HIVE_DEFAULT_PARTITION__"
_REMEDY = "Write it again, or copy it again, whole."
_PAGE_BYTES = 8  # the least of a page with its header, which has less than 2 ** 31 values


def partitions_of(root: str, files: Sequence[str]) -> dict[str, Mapping[str, int | str]]:
    """The columns that the folders of each file are, in the order of the files.

    A column is int64 if all its values are whole numbers as they are usually written, else text: ``01`` is a text.

    Args:
        root: the folder that the files are in, or the one file.
        files: their paths.

    Raises:
        FormatError: if they do not all have the same columns, or a value is missing.
    """
    texts = {file: _texts(os.path.relpath(file, root)) for file in files}
    names = list(next(iter(texts.values()), {}))
    for file, found in texts.items():
        if list(found) != names:
            raise FormatError(f"its folders stand for {list(found)}, those of others for {names}", file=file)
        if _MISSING in found.values():
            raise FormatError("its folder stands for a missing value", file=file, remedy="Convert the others alone.")
    whole = {name for name in names if all(_is_whole(found[name]) for found in texts.values())}
    return {
        file: {name: int(text) if name in whole else text for name, text in found.items()}
        for file, found in texts.items()
    }


def _texts(path: str) -> dict[str, str]:
    pairs = [folder.partition("=") for folder in os.path.dirname(path).split(os.sep)]
    return {name: urllib.parse.unquote(value) for name, equals, value in pairs if equals and name}


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and str(int(text)) == text


def partitioned_schema(schema: Any, partition: Mapping[str, int | str], file: str) -> Any:
    """The schema of a file, with the columns of its folders after it.

    Raises:
        FormatError: if it has such a column itself.
    """
    arrow = need("pyarrow")
    for name, value in partition.items():
        if name in schema.names:
            raise FormatError(f"column {name!r} is in the table, and its folder stands for it, too", file=file)
        schema = schema.append(arrow.field(name, arrow.int64() if isinstance(value, int) else arrow.string()))
    return schema


def with_partition(table: Any, partition: Mapping[str, int | str]) -> Any:
    """A record batch with the columns of its folders, as a table."""
    if not partition:
        return table
    arrow = need("pyarrow")
    found = arrow.Table.from_batches([table])
    for name, value in partition.items():
        kind = arrow.int64() if isinstance(value, int) else arrow.string()
        found = found.append_column(name, arrow.repeat(arrow.scalar(value, kind), table.num_rows))
    return found


class TableFileOptions(ImageFileOptions, ColumnOptions, total=False):
    """The options of tables in files."""


class ImageTableSource(TableSource, ImageSource):
    """Base of sources of tables that may have images and sounds as `datasets` stores them."""

    def _first(self) -> tuple[Any, list[Leaf]]:
        """The schema of the first table, and the columns that fields are made of."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), **self.table_form.to_json()}

    def metadata(self) -> dict[str, Any]:
        classes = class_names(self._first()[0])
        return ({"classes": classes} if classes else {}) | super().metadata()

    def notes(self) -> list[str]:
        decoded = self._images | self._sounds
        return self.table_form.notes([leaf for leaf in self._leaves() if leaf.name not in decoded])

    def named_modes(self) -> Mapping[str, Mode]:
        return image_modes(self._first()[0])

    def _leaves(self) -> list[Leaf]:
        return self._first()[1]

    @property
    def _images(self) -> frozenset[str]:
        schema, leaves = self._first()
        return image_columns(schema) & {leaf.name for leaf in leaves}

    @property
    def _sounds(self) -> frozenset[str]:
        return frozenset() if self.look.keep_encoded else sound_columns(self._first()[0])


class ParquetSource(ImageTableSource):
    """Tables, whose rows are samples and whose columns are fields.

    Columns of numbers and of lists of one length become fixed fields, lists of any length ragged ones, text and binary
    strings `str` and `bytes`; dictionaries are looked up. Of a struct each part is a field, ``"s.x"``; one of an
    image's bytes and its path, as `datasets` writes it, becomes uint8 ``[channels, height, width]``, one of a sound its
    samples, with ``NAME.sampling_rate`` beside them. Times and dates
    become int64, in their own unit. Missing floating-point numbers are NaN; a row in which another value is missing is
    an error of that row. Checksums of pages are compared. In a folder, names such as ``year=2024`` are columns.

    Args:
        path: a `.parquet`, `.arrow` or `.feather` file, or a folder of them.
    """

    kind = "Parquet and Arrow files"
    threads = False
    suffixes = (".parquet", ".arrow", ".feather")

    def __init__(self, path: str, **options: Unpack[TableFileOptions]) -> None:
        self.path = path
        self.files = SourceFiles.of(path, options)
        self.look, self.table_form = ImageForm.of(options), TableForm.of(options)

    def notes(self) -> list[str]:
        return [*self.table_form.index_notes(self._first()[0]), *super().notes()]

    def _first(self) -> tuple[Any, list[Leaf]]:
        file = self.all_files()[0]
        with opened_table(file) as table:
            return self._schema(table, file), self._columns(table, file, self._partitions()[file])

    def first_items(self) -> Iterator[Item]:
        return super().first_items() if self._images else iter(())

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: one for each row group, or for a run of the record batches of a file."""
        found: list[Part] = []
        first: tuple[str, list[Leaf]] | None = None
        for file, partition in self._partitions().items():
            with opened_table(file) as table:
                leaves = self._columns(table, file, partition)
                first = first or (file, leaves)
                _check_units(*first, file, leaves)
                columns = {leaf.path[0] for leaf in leaves}
                some = _row_groups(file, table, columns) if _is_parquet(table) else _batches(file, table, target_bytes)
                # With the columns of its folders: to find them takes a look at the names of all files.
                named = [one for pair in partition.items() for one in pair]
                found += [replace(part, where=(*part.where, *named)) for part in some]
        return filled(found, "row", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        file, low, high, row = str(part.where[0]), *(int(number) for number in part.where[1:4])
        partition = {str(name): value for name, value in zip(part.where[4::2], part.where[5::2], strict=True)}
        with opened_table(file) as table:
            leaves = self._columns(table, file, partition)
            images = ImageColumns(self._schema(table, file), leaves, self.form, file)
            columns = [name for name in dict.fromkeys(leaf.path[0] for leaf in leaves) if name not in partition]
            begin, nbytes = row, 0
            for batch in _batches_of(table, low, high, columns):
                validate(batch, file, full=False)
                nbytes += batch.nbytes
                refuse_promised(row + batch.num_rows - begin, nbytes, file=file)
                step = max(BATCH_BYTES // max(batch.nbytes // max(batch.num_rows, 1), 1), 1)
                for first in range(0, batch.num_rows, step):
                    yield from images.items(with_partition(batch.slice(first, step), partition), row + first)
                row += batch.num_rows

    def _partitions(self) -> dict[str, Mapping[str, int | str]]:
        return partitions_of(self.path, self.all_files())

    def _schema(self, table: Any, file: str) -> Any:
        return table.schema_arrow if _is_parquet(table) else table.schema

    def _columns(self, table: Any, file: str, partition: Mapping[str, int | str]) -> list[Leaf]:
        schema = self.table_form.without_index(self._schema(table, file))
        return self.table_form.leaves(
            partitioned_schema(schema, partition, file), file, sorted(image_columns(schema) | sound_columns(schema))
        )


def _check_units(before: str, one: Sequence[Leaf], file: str, other: Sequence[Leaf]) -> None:
    """Refuse a file whose whole numbers count something else than those of the first one."""
    known, found = units_of(one), units_of(other)
    kinds = {leaf.name: leaf.kind for leaf in one}
    for leaf in other:
        if leaf.name in kinds and known.get(leaf.name) != found.get(leaf.name):
            raise FormatError(
                f"column {leaf.name!r} has {found.get(leaf.name, leaf.kind)!s:.100}, but "
                f"{known.get(leaf.name, kinds[leaf.name])!s:.100} in {before}: one number would mean two things",
                file=file,
                remedy="Write both with one type (pyarrow's Table.cast); or choose other fields: `fields=[...]`.",
            )


def _is_parquet(table: Any) -> bool:
    return hasattr(table, "iter_batches")


def _batches_of(table: Any, low: int, high: int, columns: list[str]) -> Iterator[Any]:
    if not _is_parquet(table):
        for batch in table if low < 0 else (table.get_batch(number) for number in range(low, high)):
            yield batch.select(columns)
        return
    group = table.metadata.row_group(low)
    rows = max(BATCH_BYTES // max(group.total_byte_size // max(group.num_rows, 1), 1), 1)
    yield from table.iter_batches(min(rows, 65_536), row_groups=[low], columns=columns)


def _row_groups(file: str, table: Any, columns: Container[str]) -> Iterator[Part]:
    name, row = os.path.basename(file), 0
    schema = table.metadata.schema
    wanted = [k for k in range(len(schema)) if schema.column(k).path.partition(".")[0] in columns]
    for number in range(table.metadata.num_row_groups):
        group = table.metadata.row_group(number)
        if group.num_rows:
            there = [group.column(k) for k in wanted]
            if group.num_rows > min([os.path.getsize(file) // _PAGE_BYTES << 31, *(one.num_values for one in there)]):
                what = f"row group {number} promises {group.num_rows} rows, more than its columns can have"
                raise FormatError(what, file=file, remedy=_REMEDY)
            nbytes = sum(one.total_uncompressed_size for one in there)
            yield Part(f"{name}, row group {number}", (file, number, number + 1, row), group.num_rows, nbytes)
        row += group.num_rows


def _batches(file: str, table: Any, target_bytes: int) -> Iterator[Part]:
    """Runs of record batches; a stream, which has no index of its batches, is one part."""
    name, nbytes = os.path.basename(file), os.path.getsize(file)
    if not hasattr(table, "num_record_batches"):
        yield Part(name, (file, -1, -1, 0), nbytes=nbytes)
        return
    count = table.num_record_batches
    step = max(target_bytes * count // max(nbytes, 1), 1)
    row = 0
    for low in range(0, count, step):
        high = min(low + step, count)
        rows = sum(table.get_batch(number).num_rows for number in range(low, high))
        if rows:
            yield Part(
                f"{name}, batches {low} to {high - 1}", (file, low, high, row), rows, nbytes * (high - low) // count
            )
        row += rows


@lru_cache(maxsize=8)
def _footer(file: str, _stamp: str) -> Any:
    """The footer of a Parquet file, read once for all of its row groups: where they are many, it takes long."""
    return need("pyarrow.parquet").read_metadata(file, memory_map=True)


@contextmanager
def opened_table(file: str) -> Iterator[Any]:
    """A file of any of the formats, by what is in it; whatever is wrong with it is a FormatError."""
    arrow, ipc, parquet = (need(name, file=file) for name in ("pyarrow", "pyarrow.ipc", "pyarrow.parquet"))
    errors = arrow.ArrowException, OSError, ValueError, KeyError
    with reading("the table cannot be read", file, *errors, remedy=_REMEDY):
        with open_file(file) as opened:
            magic = opened.read(6)
        if magic[:4] == b"PAR1":
            options = {"metadata": _footer(file, str(stamps([file]))), "page_checksum_verification": True}
            with parquet.ParquetFile(file, memory_map=True, **options) as table:
                yield table
            return
        with arrow.memory_map(file) as mapped:
            yield (ipc.open_file if magic == b"ARROW1" else ipc.open_stream)(mapped)
