"""Columns of Arrow tables, as `ShardWriter.write_batch` takes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from decimal import Context
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.reasons import reading
from gdsload.conversion.source import Item
from gdsload.conversion.sources.arrow_types import Leaf, extended, inner_type, is_encoded, is_list, is_text
from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError

__all__ = ["column_values", "leaf_array", "table_items", "validate"]

_EXACT = 2**53
_MAX_SCALE = 22
_DIGITS = Context(prec=100)


def table_items(table: Any, leaves: Sequence[Leaf], first_row: int, file: str) -> Iterator[Item]:
    """The rows of a table: one item for each run of whole ones, and one for each row in which a value is missing.

    All are batches, also those of one row, so that a column of lists is seen to be ragged wherever it is cut. The table
    is one of Arrow's or a record batch.
    """
    validate(table, file)
    arrays = [leaf_array(table, leaf) for leaf in leaves]
    bad = np.zeros(table.num_rows, np.bool_)
    for leaf, array in zip(leaves, arrays, strict=True):
        bad |= _incomplete(array, leaf)
    edges = [0, *(np.flatnonzero(bad[1:] | bad[:-1]) + 1).tolist(), table.num_rows]
    for low, high in pairwise(edges):
        pieces = [array.slice(low, high - low) for array in arrays]
        row, count = first_row + low, high - low
        if count:
            key = f"row {row}" if count == 1 else f"rows {row} to {row + count - 1}"
            yield Item(key, partial(_batch, leaves, pieces, row, file), count)


def validate(table: Any, file: str) -> None:
    """Refuse a table whose offsets or indices lead out of it: Arrow believes what a file says until it is asked.

    Raises:
        FormatError: if there are such, or texts that are not UTF-8.
    """
    with reading("the table is damaged", file, need("pyarrow").ArrowException):
        table.validate(full=True)


def leaf_array(table: Any, leaf: Leaf) -> Any:
    """A column, or a part of a column of structs, in one piece. A missing struct has no parts."""
    found = _whole(table.column(leaf.path[0]))
    for name in leaf.path[1:]:
        found = found.flatten()[found.type.get_field_index(name)]
    if is_encoded(leaf.kind) and not leaf.json:
        found = found.flatten()[found.type.get_field_index("bytes")]
    return found.dictionary_decode() if need("pyarrow").types.is_dictionary(found.type) else found


def column_values(array: Any, leaf: Leaf, first_row: int, file: str) -> Any:
    """The values of a column: an array, a pair (values, offsets), or a list of `str` or `bytes`.

    Missing floating-point numbers are NaN.

    Raises:
        FormatError: if a value is missing, naming its row, or lists in lists have several lengths.
    """
    missing = np.flatnonzero(_incomplete(array, leaf))
    if len(missing):
        # Numbers and texts may be filled, lists that are missing not.
        may_be = not _holes(array.slice(int(missing[0]), 1), filled=True).any()
        example = _usual(array.type) if leaf.usual is None else leaf.usual
        usual = f"Say what stands for it, `fill={{{leaf.name!r}: {example!r}}}`; or leave the column out."
        raise FormatError(
            f"column {leaf.name!r} has no value, or one with a hole, in row {first_row + int(missing[0])}",
            file=file,
            remedy=usual if may_be else "Leave the row or the column out.",
        )
    if leaf.json:
        failed = f"column {leaf.name!r} cannot be written as JSON"
        with reading(failed, file, TypeError, ValueError, RecursionError):
            return [json.dumps(value, ensure_ascii=False, default=_plain) for value in array.to_pylist()]
    kind = array.type
    if is_text(kind):
        found = array.to_pylist()
        if leaf.fill is None or not array.null_count:
            return found
        filling = need("pyarrow").scalar(leaf.fill, kind).as_py()  # `fill_null` has no views of texts
        return [filling if value is None else value for value in found]
    if is_list(kind) and not need("pyarrow").types.is_fixed_size_list(kind):
        edges = np.asarray(array.offsets).astype(np.int64)
        offsets = edges - edges[0] if len(edges) else np.zeros(1, np.int64)
        return _fixed(array.flatten(), leaf, file), offsets
    return _fixed(array, leaf, file)


def _usual(kind: Any) -> Any:
    """An example of a fill value for a type."""
    types, inner = need("pyarrow").types, inner_type(kind)
    if types.is_fixed_size_binary(inner):
        return "0" * inner.byte_width
    return "" if is_text(inner) else False if types.is_boolean(inner) else 0


def _batch(leaves: Sequence[Leaf], arrays: Sequence[Any], first_row: int, file: str) -> dict[str, Any]:
    named = zip(leaves, arrays, strict=True)
    return {leaf.name: column_values(array, leaf, first_row, file) for leaf, array in named}


def _whole(column: Any) -> Any:
    arrow = need("pyarrow")
    if not isinstance(column, arrow.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if not column.num_chunks:
        kind = column.type
        empty = arrow.array([], kind.storage_type if extended(kind) else kind)
        return arrow.ExtensionArray.from_storage(kind, empty) if extended(kind) else empty
    return arrow.concat_arrays(column.chunks)


def _incomplete(array: Any, leaf: Leaf) -> NDArray[np.bool_]:
    """The rows in which a value is missing that nothing stands for."""
    if leaf.json:
        return np.zeros(len(array), np.bool_)
    types, kind = need("pyarrow").types, inner_type(leaf.kind)
    nan = types.is_floating(kind) or (types.is_decimal(kind) and leaf.decimals == "float64")
    return _holes(array, filled=nan or leaf.fill is not None)


def _holes(array: Any, *, filled: bool) -> NDArray[np.bool_]:
    """A mask of the values that are missing or have holes; if `filled`, missing numbers and texts are not marked."""
    if extended(array.type):
        array = array.storage
    found = np.zeros(len(array), np.bool_)
    if array.null_count and (not filled or is_list(array.type)):
        found |= array.is_null().to_numpy(zero_copy_only=False)
    if is_list(array.type):
        within = _holes(array.flatten(), filled=filled)
        if within.any():
            same = need("pyarrow").types.is_fixed_size_list(array.type)
            sizes = array.type.list_size if same else array.drop_null().value_lengths().to_numpy(zero_copy_only=False)
            found[np.repeat(np.flatnonzero(~found), sizes)[within]] = True
    return found


def _fixed(array: Any, leaf: Leaf, file: str) -> NDArray[Any]:
    """Numbers, or lists of them that are all of one length, as an array."""
    shape: list[int] = [len(array)]
    order: list[int] | None = None
    if extended(array.type):
        # That of Arrow's own tensors, and of those of `datasets`.
        shape += list(getattr(array.type, "shape", None) or ())
        order = getattr(array.type, "permutation", None)
        array = array.storage
        while is_list(array.type):
            array = array.flatten()
    while is_list(array.type):
        shape.append(_list_size(array, leaf, file))
        array = array.flatten()
    numbers = _numbers(array, leaf, file)
    try:
        found = numbers.reshape(shape)
    except ValueError:
        raise FormatError(f"column {leaf.name!r} has values that are not of shape {shape[1:]}", file=file) from None
    # The shape is that in memory; the permutation makes the dimensions of it that the tensor has.
    return found if order is None else found.transpose(0, *(place + 1 for place in order))


def _list_size(array: Any, leaf: Leaf, file: str) -> int:
    """The one length of lists in lists; of none it is 0."""
    if need("pyarrow").types.is_fixed_size_list(array.type):
        return int(array.type.list_size)
    sizes = np.unique(np.diff(np.asarray(array.offsets)))
    if len(sizes) > 1:
        raise FormatError(
            f"column {leaf.name!r} has lists in lists of different lengths, {sizes[0]} and {sizes[-1]}: only the first "
            "dimension of a field may vary",
            file=file,
            remedy="Leave the column out, or keep it as a text of JSON: `as_json`.",
        )
    return int(sizes[0]) if len(sizes) else 0


def _numbers(array: Any, leaf: Leaf, file: str) -> NDArray[Any]:
    arrow = need("pyarrow")
    kind = array.type
    if arrow.types.is_temporal(kind):
        if arrow.types.is_date32(kind) or arrow.types.is_time32(kind):
            array = array.cast(arrow.int32())
        array = array.cast(arrow.int64())
    if leaf.fill is not None:
        array = array.fill_null(leaf.fill)
    if arrow.types.is_decimal(kind):
        return _decimals(array, leaf, file)
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers


def _decimals(array: Any, leaf: Leaf, file: str) -> NDArray[Any]:
    """Decimal numbers, each as the nearest float64, or as a whole number of its last digit."""
    scale, texts = array.type.scale, array.to_pylist()
    values = [None if value is None else int(value.scaleb(scale, _DIGITS)) for value in texts]
    if leaf.decimals == "scaled":
        if any(value is None or not -(2**63) <= value < 2**63 for value in values):
            raise FormatError(f"column {leaf.name!r} has a decimal number that does not fit int64", file=file)
        return np.array(values, np.int64)
    # The quotient of two numbers that float64 has exactly is the nearest float64.
    exact = 0 <= scale <= _MAX_SCALE
    return np.array(
        [
            np.nan if value is None else value / 10**scale if exact and -_EXACT <= value <= _EXACT else float(str(text))
            for value, text in zip(values, texts, strict=True)
        ],
        np.float64,
    )


def _plain(value: Any) -> str:
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    if isinstance(value, bytes | bytearray):
        raise ValueError("bytes are no text")
    return str(value)
