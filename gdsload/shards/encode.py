"""Samples and batches as users pass them, made into bytes: checked against a schema before any is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import SchemaError
from gdsload.shards.format.image_header import IMAGE_CODECS, image_codec
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.stored import StoredSchema
from gdsload.shards.values import as_bytes, element_type, is_array, is_tensor


class EncodedImage(bytes):
    """Bytes that are known to be an encoded image: without a schema, a field of them is one of images."""


@dataclass(frozen=True, slots=True)
class EncodedField:
    """One field of some samples.

    Attributes:
        data: its bytes, shape ``[rows, row_bytes]``.
        lengths: rows of each sample, int64 ``[samples]``; None for a fixed field, whose samples are one row each.
    """

    data: NDArray[np.uint8]
    lengths: NDArray[np.int64] | None

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.data) if self.lengths is None else len(self.lengths)


def sample_of(batch: Mapping[str, Any], index: int) -> dict[str, Any]:
    """One sample of a batch; of a pair (values, offsets) its rows."""
    return {name: _one(value, index) for name, value in batch.items()}


def _one(value: Any, index: int) -> Any:
    if isinstance(value, tuple) and len(value) == 2:
        values, offsets = value
        return values[int(offsets[index]) : int(offsets[index + 1])]
    return value[index]


def infer_schema(values: Mapping[str, object], *, batch: bool) -> Schema:
    """The schema of a first sample, or of a first batch.

    Raises:
        SchemaError: if a value has no element type that can be stored.
    """
    _check_mapping(values)
    return Schema({name: _infer_batch(name, value) if batch else _infer(name, value) for name, value in values.items()})


def unambiguous(schema: Schema) -> Schema:
    """The schema of one sample, if that determines the fields.

    Raises:
        SchemaError: if a field of it has no rows, as a ragged field may have and one of that shape always has.
    """
    for name, field in schema.items():
        if field.kind == "fixed" and field.shape[:1] == (0,):
            varying = (None, *field.shape[1:])
            raise SchemaError(
                f"the first sample has shape {list(field.shape)}, which does not tell whether its first dimension "
                "varies from sample to sample",
                field=name,
                remedy=f"Give the writer a schema with all fields: gdsload.Field({field.dtype.name!r}, {varying}) for "
                f"this one if it does, {field.shape} if it does not.",
            )
    return schema


def _infer(name: str, value: object) -> Field:
    if isinstance(value, EncodedImage):
        return Field("image")
    if isinstance(value, str | bytes):
        return Field("str" if isinstance(value, str) else "bytes")
    dtype, shape = element_type(value, name)
    return Field(dtype, shape)


def _infer_batch(name: str, value: object) -> Field:
    if isinstance(value, list) and value and isinstance(value[0], str | bytes):
        return _infer(name, value[0])
    if is_tensor(value) and value.is_nested:
        dtype, shape = element_type(value.values() if _is_packed(value) else value.unbind()[0], name)
        return Field(dtype, (None, *shape[1:]))
    if isinstance(value, list) and not value:
        raise SchemaError(
            "an empty list does not say what it is a list of", field=name, remedy="Give the writer a schema."
        )
    if isinstance(value, tuple) and len(value) == 2:
        dtype, shape = element_type(value[0], name)
        return Field(dtype, (None, *shape[1:]))
    if isinstance(value, list) and value and is_array(value[0]):
        fields = [_infer(name, item) for item in value]
        if len({field.shape for field in fields}) == 1:
            return fields[0]
        return Field(fields[0].dtype, (None, *fields[0].shape[1:]))
    dtype, shape = element_type(value, name)
    if not shape:
        raise SchemaError("a batch needs one value for each sample, but this is a single number", field=name)
    return Field(dtype, shape[1:])


def sample_rows(schema: Schema, sample: Mapping[str, object]) -> dict[str, EncodedField]:
    """One sample as rows.

    Raises:
        SchemaError: if it does not fit the schema: the field, what came, and what was expected.
    """
    _check_names(schema, sample)
    return {name: _sample_field(name, field, sample[name]) for name, field in schema.items()}


def batch_rows(schema: Schema, batch: Mapping[str, object]) -> dict[str, EncodedField]:
    """Many samples as rows.

    Raises:
        SchemaError: if they do not fit the schema, or the fields have different numbers of samples.
    """
    _check_names(schema, batch)
    rows = {name: _batch_field(name, field, batch[name]) for name, field in schema.items()}
    counts = {name: found.samples for name, found in rows.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r}: {count}" for name, count in counts.items())
        raise SchemaError(f"the fields of a batch have different numbers of samples ({listed})")
    return rows


def column_rows(stored: StoredSchema, fields: Mapping[str, EncodedField]) -> dict[str, EncodedField]:
    """The rows of each stored column, made of the fields that `sample_rows` or `batch_rows` made."""
    found = {column: _packed_rows(stored, column, fields) for column in stored.places}
    return {name: found[name] if name in found else fields[name] for name in stored.columns}


def _packed_rows(stored: StoredSchema, column: str, fields: Mapping[str, EncodedField]) -> EncodedField:
    """The rows of a packed column; bytes between fields are zeros."""
    places, row_bytes = stored.places[column], stored.columns[column].row_bytes
    rows = np.zeros((fields[next(iter(places))].samples, row_bytes), np.uint8)
    for name, begin in places.items():
        # By elements: numpy copies these with one instruction each, and bytes one by one.
        field = stored.schema[name]
        unit, first = np.dtype(f"u{field.dtype.itemsize}"), begin // field.dtype.itemsize
        count = field.row_bytes // field.dtype.itemsize
        rows.view(unit)[:, first : first + count] = np.ascontiguousarray(fields[name].data).view(unit)
    return EncodedField(rows, None)


def _check_mapping(values: object) -> None:
    if not isinstance(values, Mapping):
        what = f"it is {type(values).__name__}, but a mapping from field names to values was expected"
        raise SchemaError(what, remedy='Name what is in it: {"image": image, "label": label}.')


def _check_names(schema: Schema, values: Mapping[str, object]) -> None:
    _check_mapping(values)
    missing = [name for name in schema if name not in values]
    extra = [name for name in values if name not in schema]
    if missing or extra:
        came = ", ".join(map(repr, values))
        what = f"the fields are {came or 'none'}, but {', '.join(map(repr, schema))} were expected"
        raise SchemaError(what, remedy="Every sample has the fields of the first one, or of the schema that was given.")


def _sample_field(name: str, field: Field, value: object) -> EncodedField:
    if field.is_string:
        return _text_rows(name, field, [value])
    data = as_bytes(value, field.dtype, name)
    shape = data.shape[:-1]
    _check_shape(name, field, shape)
    if field.ragged:
        return EncodedField(data.reshape(shape[0], field.row_bytes), np.array([shape[0]], np.int64))
    return EncodedField(data.reshape(1, field.row_bytes), None)


def _check_shape(name: str, field: Field, shape: tuple[int, ...]) -> None:
    fits = len(shape) == len(field.shape) and all(
        wanted is None or size == wanted for size, wanted in zip(shape, field.shape, strict=True)
    )
    # An empty list of lists does not tell how long they would be.
    untold = field.ragged and len(shape) == len(field.shape) and shape[0] == 0 and 0 in shape[1:]
    if not fits and not untold:
        raise SchemaError(
            f"a sample has shape {list(shape)}, but {_shown(field)} was expected",
            field=name,
            remedy=None
            if field.ragged or len(shape) != len(field.shape) or shape[1:] != field.shape[1:]
            else f"If its first dimension varies from sample to sample, pass {as_ragged(name, field)}.",
        )


def as_ragged(name: str, field: Field) -> str:
    """The argument of a writer that makes a field ragged, for errors."""
    shape = (None, *field.shape[1:])
    return f"`schema={{{name!r}: gdsload.Field({field.dtype.name!r}, {shape})}}`, with the other fields beside it"


def _shown(field: Field) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in field.shape) + "]"


def _text_rows(name: str, field: Field, values: Sequence[Any]) -> EncodedField:
    if field.kind == "str":
        with suppress(TypeError, UnicodeEncodeError):  # one of them is no text, or broken: said below
            return _joined(list(map(str.encode, values)))
    wanted = str if field.kind == "str" else bytes
    pieces = []
    for given in values:
        value = _image_bytes(name, field, given) if field.kind == "image" else given
        if not isinstance(value, wanted):
            raise SchemaError(f"it is {type(value).__name__}, but {field.kind} was expected", field=name)
        try:
            pieces.append(value.encode() if isinstance(value, str) else bytes(value))
        except UnicodeEncodeError as error:
            raise SchemaError(f"the text {value!r:.80} is no valid Unicode: {error.reason}", field=name) from None
    return _joined(pieces)


def _joined(pieces: list[bytes]) -> EncodedField:
    data = np.frombuffer(b"".join(pieces), np.uint8).reshape(-1, 1)
    return EncodedField(data, np.fromiter(map(len, pieces), np.int64, len(pieces)))


def _image_bytes(name: str, field: Field, value: object) -> bytes:
    if is_array(value):
        array = as_bytes(value, field.dtype, name)
        _check_shape(name, field, array.shape[:-1])
        value = array.tobytes()
    if not isinstance(value, bytes):
        raise SchemaError(f"it is {type(value).__name__}, but the bytes of an encoded image were expected", field=name)
    codec = image_codec(value)
    if codec not in field.codecs:
        found = codec or f"none of them: it begins with {value[:12]!r}"
        raise SchemaError(
            f"an encoded image is {', '.join(field.codecs)} in this field, but one is {found}",
            field=name,
            remedy="Encode it again, or give the writer a schema: "
            f"{{{name!r}: gdsload.Field('image')}} for any of {', '.join(IMAGE_CODECS)}, 'bytes' for whatever it is.",
        )
    return value


def _batch_field(name: str, field: Field, value: Any) -> EncodedField:
    if field.is_string:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise SchemaError(f"a batch needs a list of {field.kind}, not {type(value).__name__}", field=name)
        return _text_rows(name, field, value)
    if field.ragged:
        return _ragged_batch(name, field, value)
    if isinstance(value, list | tuple) and not value:
        return EncodedField(np.zeros((0, field.row_bytes), np.uint8), None)
    if isinstance(value, tuple) and field.shape:
        # Of two samples or of values and offsets: both may have a sample's shape, and offsets would be stored as one.
        raise SchemaError(
            f"it is a tuple, as values and offsets of a ragged field are, but all samples have shape {_shown(field)}",
            field=name,
            remedy="Pass samples as one array, or as a list: list(...). If their first dimension varies, the field is "
            f"ragged: {as_ragged(name, field)}.",
        )
    if isinstance(value, list | tuple) and is_array(value[0]):
        parts = [_sample_field(name, field, item).data for item in value]
        return EncodedField(np.concatenate(parts), None)
    data = as_bytes(value, field.dtype, name)
    if data.ndim < 2:
        raise SchemaError("a batch needs one value for each sample, but this is a single number", field=name)
    _check_shape(name, field, data.shape[1:-1])
    return EncodedField(data.reshape(data.shape[0], field.row_bytes), None)


def _ragged_batch(name: str, field: Field, value: Any) -> EncodedField:
    if is_tensor(value) and value.is_nested:
        value = (value.values(), cast("Any", value).offsets()) if _is_packed(value) else list(value.unbind())
    if isinstance(value, tuple) and len(value) == 2:
        return _values_and_offsets(name, field, value[0], value[1])
    if not isinstance(value, list):
        raise SchemaError(
            f"a batch of a ragged field is a list of tensors, a pair (values, offsets) or a jagged nested tensor, "
            f"not {type(value).__name__}",
            field=name,
        )
    parts = [_sample_field(name, field, item) for item in value]
    empty = np.zeros((0, field.row_bytes), np.uint8)
    lengths = np.array([len(part.data) for part in parts], np.int64)
    return EncodedField(np.concatenate([empty, *(part.data for part in parts)]), lengths)


def _is_packed(nested: Any) -> bool:
    """Return whether a nested tensor's values are the rows of its samples, one sample after the other."""
    import torch

    # torch has no public way to ask which dimension varies.
    return bool(nested.layout == torch.jagged and nested.lengths() is None and nested._ragged_idx == 1)  # noqa: SLF001


def _values_and_offsets(name: str, field: Field, values: object, offsets: Any) -> EncodedField:
    data = as_bytes(values, field.dtype, name)
    _check_shape(name, field, data.shape[:-1])
    try:
        edges = np.asarray(offsets.detach().cpu() if is_tensor(offsets) else offsets)
    except (RuntimeError, TypeError, ValueError):
        raise SchemaError("offsets are no vector of whole numbers", field=name) from None
    if edges.ndim != 1 or edges.dtype.kind not in "iu" or not len(edges):
        raise SchemaError("offsets are no vector of whole numbers", field=name)
    edges = edges.astype(np.int64)
    lengths: NDArray[np.int64] = edges[1:] - edges[:-1]
    if edges[0] != 0 or edges[-1] != len(data) or (lengths < 0).any():
        raise SchemaError(f"offsets must rise from 0 to the number of rows, {len(data)}", field=name)
    return EncodedField(data.reshape(data.shape[0], field.row_bytes), lengths)
