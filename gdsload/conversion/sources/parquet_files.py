"""Parquet and Arrow files, by pyarrow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

from gdsload.conversion.input_files import SourceFiles, open_file, stamps
from gdsload.conversion.row_source import BATCH_BYTES
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.arrow_columns import check_columns
from gdsload.conversion.sources.arrow_images import ImageColumns, class_names, image_columns
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageForm, ImageSource
from gdsload.errors import FormatError, OptionError
from gdsload.system.names import check_list

__all__ = ["ParquetSource"]

_SUFFIXES = (".parquet", ".arrow", ".feather")


class ParquetSource(ImageSource):
    """Tables, whose rows are samples and whose columns are fields.

    Columns of numbers and of lists of one length become fixed fields, lists of any length ragged ones, text and binary
    strings `str` and `bytes`; dictionaries are looked up. A struct of an image's bytes and its path, as `datasets`
    writes it, becomes uint8 ``[channels, height, width]``. A row without a value in some column is an error of that
    row.

    Args:
        path: a `.parquet`, `.arrow` or `.feather` file, or a folder of them.
        columns: which columns, in which order. None: all of them.
        **options: `size`, `resize`, `mode` and `keep_encoded`, as all sources of images have them: see `ImageForm`.
            `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.

    Raises:
        OptionError: if an option has no such value.
    """

    kind = "Parquet and Arrow files"

    def __init__(self, path: str, *, columns: Sequence[str] | None = None, **options: Unpack[ImageFileOptions]) -> None:
        self.path = path
        self.files = SourceFiles.of(path, options)
        self.look = ImageForm.of(options)
        check_list("columns", columns)
        self.columns = None if columns is None else list(columns)

    @property
    def threads(self) -> bool:
        """See `Source.threads`. Images are made of one row at a time."""
        return not self._images

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        form = self.form.to_json() if self._images else {}
        return {"kind": self.kind, "files": stamps(self.files.find(_SUFFIXES)), "columns": self.columns, **form}

    def metadata(self) -> dict[str, Any]:
        """What the dataset's metadata have of the source: the names of classes, where they are noted."""
        classes = class_names(self._first_schema())
        return {"classes": classes} if classes else {}

    @property
    def _images(self) -> frozenset[str]:
        """The columns of images, of the first file."""
        return image_columns(self._chosen(self._first_schema(), self.path))

    def _first_schema(self) -> Any:
        with _opened(self.files.find(_SUFFIXES)[0]) as table:
            return _schema(table)

    def first_items(self) -> Iterator[Item]:
        """See `ImageSource.first_items`."""
        return super().first_items() if self._images else iter(())

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: one for each row group, or for a run of the record batches of a file."""
        found: list[Part] = []
        for file in self.files.find(_SUFFIXES):
            with _opened(file) as table:
                self._check(_schema(table), file)
                found += _row_groups(file, table) if _is_parquet(table) else _batches(file, table, target_bytes)
        if not found:
            raise FormatError("there is not one row", file=self.path)
        return found

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        file, low, high, row = str(part.where[0]), *(int(number) for number in part.where[1:])
        with _opened(file) as table:
            self._check(_schema(table), file)
            images = ImageColumns(image_columns(_schema(table)), self.form, file)
            for batch in self._tables(table, low, high):
                step = max(BATCH_BYTES // max(batch.nbytes // max(batch.num_rows, 1), 1), 1)
                for begin in range(0, batch.num_rows, step):
                    piece = batch.slice(begin, step)
                    yield from images.items(piece, row)
                    row += piece.num_rows

    def _tables(self, table: Any, low: int, high: int) -> Iterator[Any]:
        if not _is_parquet(table):
            batches = table if low < 0 else (table.get_batch(number) for number in range(low, high))
            for batch in batches:
                yield batch if self.columns is None else batch.select(self.columns)
            return
        group = table.metadata.row_group(low)
        rows = max(BATCH_BYTES // max(group.total_byte_size // max(group.num_rows, 1), 1), 1)
        for batch in table.iter_batches(min(rows, 65_536), row_groups=[low], columns=self.columns):
            # It comes with its columns in the order of the file.
            yield batch if self.columns is None else batch.select(self.columns)

    def _chosen(self, schema: Any, file: str) -> Any:
        """The schema of the columns that were asked for."""
        if self.columns is not None:
            missing = [name for name in self.columns if name not in schema.names]
            if missing:
                listed = ", ".join(map(repr, schema.names[:50]))
                raise OptionError(f"there is no column {missing[0]!r}", file=file, remedy=f"There are {listed}.")
            schema = need("pyarrow").schema([schema.field(name) for name in self.columns], schema.metadata)
        return schema

    def _check(self, schema: Any, file: str) -> None:
        schema = self._chosen(schema, file)
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if twice:
            raise FormatError(f"two columns are called {twice[0]!r}", file=file)
        images = image_columns(schema)
        check_columns(need("pyarrow").schema([column for column in schema if column.name not in images]), file)


def _is_parquet(table: Any) -> bool:
    return hasattr(table, "iter_batches")


def _schema(table: Any) -> Any:
    return table.schema_arrow if _is_parquet(table) else table.schema


def _row_groups(file: str, table: Any) -> Iterator[Part]:
    name, row = os.path.basename(file), 0
    for number in range(table.metadata.num_row_groups):
        group = table.metadata.row_group(number)
        if group.num_rows:
            where = (file, number, number + 1, row)
            yield Part(f"{name}, row group {number}", where, group.num_rows, group.total_byte_size)
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


@contextmanager
def _opened(file: str) -> Iterator[Any]:
    """A file of any of the formats, by what is in it; whatever is wrong with it is a FormatError."""
    arrow, ipc, parquet = (need(name, file=file) for name in ("pyarrow", "pyarrow.ipc", "pyarrow.parquet"))
    try:
        with open_file(file) as opened:
            magic = opened.read(6)
        if magic[:4] == b"PAR1":
            with parquet.ParquetFile(file, memory_map=True) as table:
                yield table
            return
        with arrow.memory_map(file) as mapped:
            yield (ipc.open_file if magic == b"ARROW1" else ipc.open_stream)(mapped)
    except (arrow.ArrowException, OSError, ValueError, KeyError) as error:
        if isinstance(error, FormatError | OptionError):
            raise
        raise FormatError(
            f"the table cannot be read: {str(error)[:200]}",
            file=file,
            remedy="Write it again, or copy it again, whole.",
        ) from None
