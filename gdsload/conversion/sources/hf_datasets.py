"""Datasets that Hugging Face's `datasets` has saved on disk (`save_to_disk`)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from typing import Any

from gdsload.conversion.files import find_files, stamps
from gdsload.conversion.rows import BATCH_BYTES
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.arrow_columns import check_columns, column_values, table_items, validate
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import Look, decode_image
from gdsload.errors import FormatError, OptionError

__all__ = ["HuggingFaceSource"]


class HuggingFaceSource:
    """A dataset that `datasets.Dataset.save_to_disk` wrote.

    Columns become fields as those of Parquet files do. An image becomes uint8 ``[channels, height, width]``.

    Args:
        path: the folder.
        split: which split, if there are several: of a `DatasetDict`.
        mode: the channels of images: ``"RGB"``, ``"RGBA"``, ``"L"``, or ``"keep"`` (as they are, palettes as indices).

    Raises:
        OptionError: if an option has no such value.
    """

    kind = "Hugging Face dataset"
    threads = False

    def __init__(self, path: str, *, split: str | None = None, mode: str = "RGB") -> None:
        self.path = path
        self.split = split
        self.look = Look(mode)

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        files = stamps(find_files(self.path, (".arrow", ".json")))
        return {"kind": self.kind, "files": files, "split": self.split, "mode": self.look.mode}

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`."""
        dataset = self._open()
        count = len(dataset)
        if not count:
            raise FormatError("there is not one row", file=self.path)
        row_bytes = _row_bytes(dataset)
        step = max(target_bytes // row_bytes, 1)
        edges = [(low, min(low + step, count)) for low in range(0, count, step)]
        return [
            Part(f"rows {low} to {high - 1}", (low, high), high - low, (high - low) * row_bytes) for low, high in edges
        ]

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        dataset = self._open()
        images = _images(dataset)
        low, high = (int(edge) for edge in part.where)
        step = max(BATCH_BYTES // _row_bytes(dataset), 1)
        for begin in range(low, high, step):
            table = dataset[begin : min(begin + step, high)]
            if not images:
                yield from table_items(table, begin, self.path)
                continue
            validate(table, self.path)
            for row in range(table.num_rows):
                make = partial(_sample, table.slice(row, 1), images, begin + row, self.path, self.look)
                yield Item(f"row {begin + row}", make)

    def _open(self) -> Any:
        datasets = need("datasets", file=self.path)
        try:
            found = datasets.load_from_disk(self.path)
        except Exception as error:  # it raises whatever its parts do
            raise FormatError(f"the dataset cannot be opened: {str(error)[:200]}", file=self.path) from None
        if isinstance(found, datasets.DatasetDict):
            if self.split not in found:
                listed = ", ".join(repr(str(name)) for name in found)
                raise OptionError(f"there is no split {self.split!r}", file=self.path, remedy=f"There are {listed}.")
            found = found[self.split]
        elif self.split is not None:
            raise OptionError(f"there are no splits, but split is {self.split!r}", file=self.path)
        found = found.with_format("arrow")
        images = _images(found)
        schema = found.features.arrow_schema
        check_columns(need("pyarrow").schema([column for column in schema if column.name not in images]), self.path)
        return found


def _images(dataset: Any) -> frozenset[str]:
    kind = need("datasets").Image
    return frozenset(name for name, feature in dataset.features.items() if isinstance(feature, kind))


def _row_bytes(dataset: Any) -> int:
    """Bytes of a row of the table, before any choice of rows (`select`) that was saved with it."""
    return max(int(dataset.data.nbytes) // max(int(dataset.data.num_rows), 1), 1)


def _sample(table: Any, images: frozenset[str], row: int, file: str, look: Look) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in table.schema.names:
        column = table.column(name).combine_chunks()
        if name not in images:
            whole = column.chunk(0) if hasattr(column, "chunk") else column
            found[name] = column_values(whole, name, row, file)[0]
            continue
        image = column[0].as_py() or {}
        if not image.get("bytes"):
            raise FormatError(
                f"column {name!r} has no image in row {row}", file=file, remedy="Images must be in the dataset itself."
            )
        found[name] = decode_image(io.BytesIO(image["bytes"]), look, f"{file}: {name}, row {row}")
    return found
