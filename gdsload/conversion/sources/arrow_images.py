"""Columns of images and sounds in Arrow tables: structs of a file's bytes and its path, as `datasets` has them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from gdsload.conversion.input_files import open_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.source import Item
from gdsload.conversion.sources.arrow_columns import column_values, leaf_array, table_items, validate
from gdsload.conversion.sources.arrow_types import Leaf, is_encoded
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageForm, Mode, put
from gdsload.conversion.sources.sounds import sound_fields
from gdsload.errors import FormatError

_FEATURES = b"huggingface"


class ImageColumns:
    """The columns of a table that are images or sounds, and the form that they are given.

    Args:
        names: the columns of images.
        sounds: those of sounds; they are decoded if images are.
        leaves: the columns that fields are made of, these among them.
        form: the form of images in the result.
        file: where the table comes from, for errors.
        follow_paths: whether a struct without bytes stands for the file at its path, as `datasets` has it in memory. It
            may be any file, so this is for tables that the user has made.
    """

    def __init__(
        self,
        names: frozenset[str],
        sounds: frozenset[str],
        leaves: Sequence[Leaf],
        form: ImageForm,
        file: str,
        *,
        follow_paths: bool = False,
    ) -> None:
        self.names, self.leaves, self.form, self.file = names, list(leaves), form, file
        self.sounds = frozenset() if form.keep_encoded and not follow_paths else sounds
        self.follow_paths = follow_paths

    def items(self, table: Any, first_row: int) -> Iterator[Item]:
        """The rows of a table, one by one if it has images, else as `table_items` has them."""
        if not (self.names | self.sounds).intersection(leaf.name for leaf in self.leaves):
            yield from table_items(table, self.leaves, first_row, self.file)
            return
        validate(table, self.file)
        for row in range(table.num_rows):
            yield Item(f"row {first_row + row}", partial(self._sample, table.slice(row, 1), first_row + row))

    def _sample(self, table: Any, row: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for leaf in self.leaves:
            name, where = leaf.name, f"{self.file}: {leaf.name}, row {row}"
            if name in self.names:
                fields = self.form.fields(name, self._content(table, name, row, "image"), where)
            elif name in self.sounds:
                content = self._content(table, name, row, "sound")
                fields = {name: content} if self.form.keep_encoded else sound_fields(name, content, where)
            else:
                fields = {name: column_values(leaf_array(table, leaf), leaf, f"{self.file}, row {row}")[0]}
            put(found, fields, self.file)
        return found

    def _content(self, table: Any, name: str, row: int, what: str) -> bytes:
        cell = table.column(name)[0].as_py() or {}
        content, path = cell.get("bytes"), cell.get("path")
        if not content and path and self.follow_paths:
            with reading(f"{path!r:.200} cannot be read", self.file, OSError, ValueError), open_file(path) as file:
                content = file.read()
        if not content:
            raise FormatError(
                f"column {name!r} has no {what} in row {row}{f': it is the path {path!r:.200}' if path else ''}",
                file=self.file,
                remedy=f"{what.capitalize()}s must be in the dataset itself.",
            )
        found: bytes = content
        return found


def image_columns(schema: Any) -> frozenset[str]:
    """The columns of an Arrow schema that hold images.

    Those that `datasets` has noted as such; without its notes, structs of exactly ``bytes`` and ``path``.
    """
    types = need("pyarrow").types
    noted = _features(schema)
    found = set()
    for column in schema:
        shaped = types.is_struct(column.type) and {inner.name for inner in column.type} == {"bytes", "path"}
        kind = noted.get(column.name, {}).get("_type", "Image" if not noted else None)
        if shaped and kind == "Image":
            found.add(column.name)
    return frozenset(found)


def image_modes(schema: Any) -> dict[str, Mode]:
    """The mode of each column of images for which `datasets` has noted one that a field can have."""
    noted = _features(schema)
    modes = {name: noted[name].get("mode") for name in sorted(image_columns(schema)) if name in noted}
    return {name: mode for name, mode in modes.items() if mode in ("RGB", "RGBA", "L")}


def sound_columns(schema: Any) -> frozenset[str]:
    """The columns of an Arrow schema that `datasets` has noted as sounds."""
    noted = _features(schema)
    return frozenset(
        column.name
        for column in schema
        if is_encoded(column.type) and noted.get(column.name, {}).get("_type") == "Audio"
    )


def class_names(schema: Any) -> dict[str, list[str]]:
    """The names of the classes of each column, as far as `datasets` has noted them."""
    found = {}
    for name, feature in _features(schema).items():
        names = feature.get("names")
        if feature.get("_type") == "ClassLabel" and isinstance(names, list) and names and name in schema.names:
            found[name] = [str(one) for one in names]
    return found


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """The features that `datasets` has noted, by column; empty if there are none that can be understood."""
    try:
        noted = json.loads((schema.metadata or {}).get(_FEATURES, b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    if not isinstance(noted, dict):
        return {}
    return {name: feature for name, feature in noted.items() if isinstance(feature, dict)}
