"""Datasets that Hugging Face's `datasets` has saved on disk (`save_to_disk`)."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from functools import partial
from typing import Any, Unpack

from gdsload.conversion.input_files import FileOptions, SourceFiles, open_file, stamps
from gdsload.conversion.row_source import BATCH_BYTES
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.arrow_columns import check_columns, column_values, table_items, validate
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageForm, decode_image
from gdsload.errors import FormatError, OptionError

__all__ = ["HuggingFaceSource"]

_SPLITS, _STATE, _INFO = "dataset_dict.json", "state.json", "dataset_info.json"


class HuggingFaceSource:
    """A dataset that `datasets.Dataset.save_to_disk` wrote.

    Columns become fields as those of Parquet files do. An image becomes uint8 ``[channels, height, width]``.

    Args:
        path: the folder.
        mode: the channels of images: ``"RGB"``, ``"RGBA"``, ``"L"``, or ``"keep"`` (as they are, palettes as indices).
        **files: `split`, which split of a `DatasetDict`, and `follow_links`, as all sources of files have them: see
            `SourceFiles`.

    Raises:
        OptionError: if an option has no such value.
    """

    kind = "Hugging Face dataset"
    threads = False

    def __init__(self, path: str, *, mode: str = "RGB", **files: Unpack[FileOptions]) -> None:
        self.path = path
        self.files = SourceFiles(path, **files)
        self.look = ImageForm(mode)

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        folder = self._folder()
        files = stamps([*(self.files.inside(folder, name) for name in (_INFO, _STATE)), *self._tables(folder)])
        return {"kind": self.kind, "files": files, "split": self.files.split, "mode": self.look.mode}

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

    def _folder(self) -> str:
        """The folder of the dataset, or of the split."""
        if not os.path.lexists(os.path.join(self.path, _SPLITS)):
            return self.files.folder(_STATE)
        names = [str(name) for name in self._json(self.path, _SPLITS, "splits")]
        name = names[0] if self.files.split is None and len(names) == 1 else self.files.split
        if name is None or name not in names:
            what = "it holds several splits" if name is None else f"there is no split {name!r}"
            listed = ", ".join(map(repr, names)) or "none"
            remedy = f"Pass one of them as split= (--option split=...): there are {listed}."
            raise OptionError(what, file=self.path, remedy=remedy)
        self.files.inside(self.path, os.path.join(name, _STATE))
        return os.path.join(self.path, name)

    def _tables(self, folder: str) -> list[str]:
        """The files that the dataset names, of which `datasets` itself would open any."""
        listed = self._json(folder, _STATE, "_data_files")
        return [self.files.inside(folder, str(one.get("filename") if isinstance(one, dict) else one)) for one in listed]

    def _json(self, folder: str, name: str, key: str) -> list[Any]:
        path = self.files.inside(folder, name)
        try:
            with open_file(path) as file:
                found = json.load(file)[key]
            if not isinstance(found, list):
                raise TypeError(f"{key} is no list")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"[:200]
            raise FormatError(f"the file is not as `datasets` writes it: {reason}", file=path) from None
        return found

    def _open(self) -> Any:
        datasets, folder = need("datasets", file=self.path), self._folder()
        self.files.inside(folder, _INFO)
        self._tables(folder)
        try:
            found = datasets.load_from_disk(folder)
        except Exception as error:  # it raises whatever its parts do
            raise FormatError(f"the dataset cannot be opened: {str(error)[:200]}", file=folder) from None
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


def _sample(table: Any, images: frozenset[str], row: int, file: str, look: ImageForm) -> dict[str, Any]:
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
