"""Columns that are in the names of folders: ``year=2024/month=3/part-0.parquet``, as Hive and Spark write them."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError

_MISSING = "__HIVE_DEFAULT_PARTITION__"


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
