"""Columns of Arrow tables, as `ShardWriter.write_batch` takes them; images and sounds as `datasets` has them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Context
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import open_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import row_items
from gdsload.conversion.source import Item
from gdsload.conversion.sources.arrow_types import Leaf, extended, inner_type, is_encoded, is_list, is_text
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageForm, Mode, put
from gdsload.conversion.sources.sounds import sound_fields
from gdsload.errors import FormatError

_DIGITS = Context(prec=100)


def table_items(table: Any, leaves: Sequence[Leaf], first_row: int, file: str) -> Iterator[Item]:
    """The rows of a table of Arrow's, or of a record batch, as `row_items` has them."""
    validate(table, file)
    arrays = [leaf_array(table, leaf) for leaf in leaves]

    def made(low: int, high: int) -> dict[str, Any]:
        where = f"{file}, row {first_row + low}"
        pieces = zip(leaves, arrays, strict=True)
        return {leaf.name: column_values(array.slice(low, high - low), leaf, where) for leaf, array in pieces}

    yield from row_items(first_row, table.num_rows, made)


def validate(table: Any, file: str, *, full: bool = True) -> None:
    """Refuse a table whose offsets or indices lead out of it: Arrow believes what a file says until it is asked.

    Without `full` only lengths and the outermost offsets are looked at, at once: those that `nbytes` depends on.

    Raises:
        FormatError: if there are such, or texts that are not UTF-8.
    """
    with reading("the table is damaged", file, need("pyarrow").ArrowException):
        table.validate(full=full)


def leaf_array(table: Any, leaf: Leaf) -> Any:
    """A column, or a part of a column of structs, in one piece. A missing struct has no parts."""
    found = table.column(leaf.path[0])
    if isinstance(found, need("pyarrow").ChunkedArray):
        found = found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()
    for name in leaf.path[1:]:
        found = found.flatten()[found.type.get_field_index(name)]
    if is_encoded(leaf.kind) and not leaf.json:
        found = found.flatten()[found.type.get_field_index("bytes")]
    return found.dictionary_decode() if need("pyarrow").types.is_dictionary(found.type) else found


def column_values(array: Any, leaf: Leaf, where: str) -> Any:
    """The values of a column: an array, a pair (values, offsets), or a list of `str` or `bytes`.

    Raises:
        FormatError: if a value is missing, of another shape than the leaf's, or not to be had. Of several rows it is
            meant for nobody: each is tried by itself then.
    """
    if _has_holes(array, leaf):
        # Numbers and texts may be filled, lists that are missing not.
        may_be = not _has_holes(array, replace(leaf, fill=0))
        usual = f"Say what stands for it, `fill={{{leaf.name!r}: {_usual(array.type)!r}}}`; or leave the column out."
        remedy = usual if may_be else "Leave the row or the column out."
        raise FormatError(f"column {leaf.name!r} has no value, or one with a hole", file=where, remedy=remedy)
    if leaf.json:
        failed = f"column {leaf.name!r} cannot be written as JSON"
        with reading(failed, where, TypeError, ValueError, RecursionError):
            return [json.dumps(value, ensure_ascii=False, default=_plain) for value in array.to_pylist()]
    types, kind = need("pyarrow").types, array.type
    is_fixed = types.is_fixed_size_list(leaf.kind)
    if is_fixed and not _has_sizes(array, leaf.kind):
        raise FormatError(f"column {leaf.name!r} is not of type {leaf.kind!s:.200}, as is said of it", file=where)
    if is_text(kind):
        found = array.to_pylist()
        if leaf.fill is None or not array.null_count:
            return found
        filling = need("pyarrow").scalar(leaf.fill, kind).as_py()  # `fill_null` has no views of texts
        return [filling if value is None else value for value in found]
    if is_list(kind) and not is_fixed:
        edges = np.asarray(array.offsets).astype(np.int64)
        offsets = edges - edges[0] if len(edges) else np.zeros(1, np.int64)
        return _fixed(array.flatten(), leaf, where), offsets
    return _fixed(array, leaf, where)


def _has_sizes(array: Any, kind: Any) -> bool:
    """Return whether lists have the sizes of a type of lists, as far as it says them."""
    is_fixed = need("pyarrow").types.is_fixed_size_list
    while is_fixed(kind):
        sizes = array.type.list_size if is_fixed(array.type) else np.diff(np.asarray(array.offsets))
        if np.any(sizes != kind.list_size):
            return False
        array, kind = array.flatten(), kind.value_type
    return True


def _usual(kind: Any) -> Any:
    """An example of a fill value for a type."""
    types, inner = need("pyarrow").types, inner_type(kind)
    if types.is_fixed_size_binary(inner):
        return "0" * inner.byte_width
    if is_text(inner) or types.is_boolean(inner):
        return "" if is_text(inner) else False
    return -1 if types.is_signed_integer(inner) else 0  # 0 may be a class


def _has_holes(array: Any, leaf: Leaf) -> bool:
    """Return whether a value is missing that nothing stands for; a list that is missing cannot be filled."""
    if leaf.json:
        return False
    types, kind = need("pyarrow").types, inner_type(leaf.kind)
    nan = leaf.nan and (types.is_floating(kind) or (types.is_decimal(kind) and leaf.decimals == "float64"))
    filled = nan or leaf.fill is not None
    array = array.storage if extended(array.type) else array
    while is_list(array.type):
        if array.null_count:
            return True
        array = array.flatten()
    return bool(array.null_count) and not filled


def _fixed(array: Any, leaf: Leaf, where: str) -> NDArray[Any]:
    """Numbers, or lists of them that are all of one length, as an array."""
    shape: list[int] = [len(array)]
    if extended(array.type):
        # That of Arrow's own tensors, and of those of `datasets`.
        shape += list(getattr(array.type, "shape", None) or ())
        array = array.storage
        while is_list(array.type):
            array = array.flatten()
    while is_list(array.type):
        shape.append(_list_size(array, leaf, where))
        array = array.flatten()
    numbers = _numbers(array, leaf, where)
    if len(numbers) != math.prod(shape):
        raise FormatError(f"column {leaf.name!r} has values that are not of shape {shape[1:]}", file=where)
    return numbers.reshape(shape)


def _list_size(array: Any, leaf: Leaf, where: str) -> int:
    """The one length of lists in lists; of none it is 0."""
    if need("pyarrow").types.is_fixed_size_list(array.type):
        return int(array.type.list_size)
    sizes = np.unique(np.diff(np.asarray(array.offsets)))
    if len(sizes) > 1:
        raise FormatError(
            f"column {leaf.name!r} has lists in lists of different lengths, {sizes[0]} and {sizes[-1]}: only the first "
            "dimension of a field may vary",
            file=where,
            remedy="Leave the column out, or keep it as a text of JSON: `as_json`.",
        )
    return int(sizes[0]) if len(sizes) else 0


def _numbers(array: Any, leaf: Leaf, where: str) -> NDArray[Any]:
    arrow = need("pyarrow")
    kind = array.type
    if arrow.types.is_temporal(kind):
        if arrow.types.is_date32(kind) or arrow.types.is_time32(kind):
            array = array.cast(arrow.int32())
        array = array.cast(arrow.int64())
    if leaf.fill is not None:
        array = array.fill_null(leaf.fill)
    if not arrow.types.is_decimal(kind):
        numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return numbers
    if leaf.decimals == "float64":
        return np.array([np.nan if value is None else float(value) for value in array.to_pylist()], np.float64)
    values = [int(value.scaleb(kind.scale, _DIGITS)) for value in array.to_pylist()]
    if any(not -(2**63) <= value < 2**63 for value in values):
        raise FormatError(f"column {leaf.name!r} has a decimal number that does not fit int64", file=where)
    return np.array(values, np.int64)


def _plain(value: Any) -> str:
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    if isinstance(value, bytes | bytearray):
        raise ValueError("bytes are no text")
    return str(value)


_FEATURES = b"huggingface"


class ImageColumns:
    """The columns of a table that are images or sounds, and the form that they are given.

    Args:
        schema: the table's.
        leaves: the columns that fields are made of; sounds among them are decoded if images are.
        form: the form of images in the result.
        file: where the table comes from, for errors.
        follow_paths: whether a struct without bytes stands for the file at its path, as `datasets` has it in memory. It
            may be any file, so this is for tables that the user has made.
    """

    def __init__(
        self, schema: Any, leaves: Sequence[Leaf], form: ImageForm, file: str, *, follow_paths: bool = False
    ) -> None:
        self.names, self.leaves, self.form, self.file = image_columns(schema), list(leaves), form, file
        self.sounds = frozenset() if form.keep_encoded and not follow_paths else sound_columns(schema)
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
