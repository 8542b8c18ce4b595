"""Columns of images and sounds in Arrow tables: structs of a file's bytes and its path, as `datasets` has them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from gdsload.conversion.source import Item
from gdsload.conversion.sources.arrow_columns import column_values, leaf_array, table_items, validate
from gdsload.conversion.sources.arrow_types import Leaf, is_encoded
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageForm, put
from gdsload.conversion.sources.sounds import sound_fields
from gdsload.errors import FormatError

__all__ = ["ImageColumns", "class_names", "image_columns", "sound_columns"]

_FEATURES = b"huggingface"


class ImageColumns:
    """Which columns of a table are images or sounds, and what they are made into.

    Args:
        names: the columns of images.
        sounds: those of sounds; they are decoded if images are.
        leaves: what fields are made of, these columns among them.
        form: what images are made into.
        file: where the table comes from, for errors.
    """

    def __init__(
        self, names: frozenset[str], sounds: frozenset[str], leaves: Sequence[Leaf], form: ImageForm, file: str
    ) -> None:
        self.names, self.leaves, self.form, self.file = names, list(leaves), form, file
        self.sounds = frozenset() if form.keep_encoded else sounds

    def items(self, table: Any, first_row: int) -> Iterator[Item]:
        """The rows of a table, one by one if it has images, else as `table_items` has them.

        Args:
            table: an Arrow table or record batch.
            first_row: the number of its first row, for errors.
        """
        if not (self.names | self.sounds).intersection(leaf.name for leaf in self.leaves):
            yield from table_items(table, self.leaves, first_row, self.file)
            return
        validate(table, self.file)
        for row in range(table.num_rows):
            yield Item(f"row {first_row + row}", partial(self._sample, table.slice(row, 1), first_row + row))

    def _sample(self, table: Any, row: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for leaf in self.leaves:
            name = leaf.name
            if name not in self.names:
                value, where = (
                    column_values(leaf_array(table, leaf), leaf, row, self.file)[0],
                    f"{self.file}, row {row}",
                )
                put(found, sound_fields(name, value, where) if name in self.sounds else {name: value}, self.file)
                continue
            image = table.column(name)[0].as_py() or {}
            if not image.get("bytes"):
                at = f": it is the path {image['path']!r:.200}" if image.get("path") else ""
                raise FormatError(
                    f"column {name!r} has no image in row {row}{at}",
                    file=self.file,
                    remedy="Images must be in the dataset itself.",
                )
            put(found, self.form.fields(name, image["bytes"], f"{self.file}: {name}, row {row}"), self.file)
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
    """What `datasets` has noted of columns; nothing if there is nothing, or nothing that it writes."""
    try:
        noted = json.loads((schema.metadata or {}).get(_FEATURES, b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    if not isinstance(noted, dict):
        return {}
    return {name: feature for name, feature in noted.items() if isinstance(feature, dict)}
