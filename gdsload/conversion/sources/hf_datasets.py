"""Datasets that Hugging Face's `datasets` has saved on disk (`save_to_disk`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, Unpack

from gdsload.conversion.input_files import SourceFiles, open_file, stamps
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import USUAL_BYTES, batches, filled, row_parts
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.arrow_columns import ImageColumns, image_columns, sound_columns, validate
from gdsload.conversion.sources.arrow_types import Leaf, TableForm
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.parquet_files import ImageTableSource, TableFileOptions
from gdsload.conversion.sources.pictures import ImageForm
from gdsload.conversion.splits import ALL, no_such_split
from gdsload.errors import FormatError, OptionError

_SPLITS, _STATE, _INFO = "dataset_dict.json", "state.json", "dataset_info.json"


class HuggingFaceSource(ImageTableSource):
    """A dataset that `datasets.Dataset.save_to_disk` wrote, or in Python such a dataset itself.

    Columns become fields as those of Parquet files do. An image becomes uint8 ``[channels, height, width]``, a sound
    its samples, with ``NAME.sampling_rate`` beside them.

    Args:
        path: the folder; or a `datasets.Dataset`, or a `DatasetDict` of them.
    """

    kind = "Hugging Face dataset"
    threads = False

    def __init__(self, path: Any, **options: Unpack[TableFileOptions]) -> None:
        self.path = path if isinstance(path, str) else "a dataset in memory"
        self.files = SourceFiles.of(self.path, options)
        self.dataset = None if isinstance(path, str) else self._one_of(path)
        self.look, self.table_form = ImageForm.of(options), TableForm.of(options)

    def _one_of(self, given: Any) -> Any:
        """The dataset that is meant, of one or several that are open already."""
        if self.files.follow_links or (self.files.split is not None and not isinstance(given, dict)):
            raise OptionError("`split` and `follow_links` are for files, but the dataset is open already")
        if not isinstance(given, dict):
            return given
        return self._together([given[name] for name in self._splits_of(list(given))])

    def _together(self, found: list[Any]) -> Any:
        if len(found) == 1:
            return found[0]
        with reading("its splits do not go together", self.path, remedy="Convert each by itself."):
            return need("datasets").concatenate_datasets(found)

    def _splits_of(self, names: list[str]) -> list[str]:
        if self.files.split == ALL and names:
            return names
        name = names[0] if self.files.split is None and len(names) == 1 else self.files.split
        if name is None or name not in names:
            raise no_such_split(name, names, self.path)
        return [name]

    def describe(self) -> dict[str, Any]:
        found = {"kind": self.kind, "split": self.files.split, **self.form.to_json(), **self.table_form.to_json()}
        if self.dataset is not None:
            return {**found, "fingerprint": self.dataset._fingerprint}  # noqa: SLF001 - what tells one from another
        files: list[str] = []
        for folder in self._folders():
            files += [*(self.files.inside(folder, name) for name in (_INFO, _STATE)), *self._tables(folder)]
        return {**found, "files": stamps(files)}

    def parts(self, target_bytes: int) -> list[Part]:
        dataset = self._open()
        validate(dataset.data, self.path, full=False)
        return filled(row_parts(len(dataset), _row_bytes(dataset), target_bytes), "row", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        dataset = self._open()
        schema, leaves = dataset.features.arrow_schema, self._columns(dataset)
        images = ImageColumns(schema, leaves, self.form, self.path, follow_paths=self.dataset is not None)
        low, high = (int(edge) for edge in part.where)
        for begin, end in batches(low, high, _row_bytes(dataset)):
            yield from images.items(dataset[begin:end], begin)

    def _folders(self) -> list[str]:
        """The folder of the dataset, or those of the splits."""
        if not os.path.lexists(os.path.join(self.path, _SPLITS)):
            return [self.files.folder(_STATE)]
        names = self._splits_of([str(name) for name in self._json(self.path, _SPLITS, "splits")])
        for name in names:
            self.files.inside(self.path, os.path.join(name, _STATE))
        return [os.path.join(self.path, name) for name in names]

    def _tables(self, folder: str) -> list[str]:
        """The files that the dataset names, of which `datasets` itself would open any."""
        listed = self._json(folder, _STATE, "_data_files")
        return [self.files.inside(folder, str(one.get("filename") if isinstance(one, dict) else one)) for one in listed]

    def _json(self, folder: str, name: str, key: str) -> list[Any]:
        path = self.files.inside(folder, name)
        with reading("the file is not as `datasets` writes it", path), open_file(path) as file:
            found = json.load(file)[key]
            if not isinstance(found, list):
                raise ValueError(f"{key} is no list")
            return found

    def _open(self) -> Any:
        if self.dataset is not None:
            return self._checked(self.dataset)
        # `datasets` writes no file for a split without a row, and cannot load it.
        filled = [folder for folder in self._folders() if self._tables(folder)]
        if not filled:
            raise FormatError("there is not one row", file=self.path)
        return self._checked(self._together(list(map(self._load, filled))))

    def _load(self, folder: str) -> Any:
        datasets = need("datasets", file=self.path)
        self.files.inside(folder, _INFO)
        with reading("the dataset cannot be opened", folder):
            return datasets.load_from_disk(folder)

    def _checked(self, found: Any) -> Any:
        """The dataset as tables, whose columns fields can have."""
        columns = found.format["columns"]
        found = found.select_columns(columns) if list(columns) != list(found.column_names) else found
        found = found.with_format("arrow")
        return found.select_columns(list(dict.fromkeys(leaf.path[0] for leaf in self._columns(found))))

    def _first(self) -> tuple[Any, list[Leaf]]:
        dataset = self._open()
        return dataset.features.arrow_schema, self._columns(dataset)

    def _columns(self, dataset: Any) -> list[Leaf]:
        schema = dataset.features.arrow_schema
        return self.table_form.leaves(schema, self.path, sorted(image_columns(schema) | sound_columns(schema)))


def _row_bytes(dataset: Any) -> int:
    """Bytes of a row of the table, before any choice of rows (`select`) that was saved with it; or of its image."""
    if image_columns(dataset.features.arrow_schema):
        return USUAL_BYTES  # the table may have but the path of its file
    return -(-int(dataset.data.nbytes) // max(int(dataset.data.num_rows), 1))  # 0 only for no bytes at all
