"""The schema of a sample: field names, element types and shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from gdsload.errors import SchemaError
from gdsload.shards.format.dtypes import DTYPES, DType, dtype_of
from gdsload.shards.format.image_header import IMAGE_CODECS
from gdsload.shards.format.strict import is_text, show

FieldKind = Literal["fixed", "ragged", "str", "bytes", "image"]
_STRINGS: dict[object, FieldKind] = {"str": "str", str: "str", "bytes": "bytes", bytes: "bytes", "image": "image"}

RESERVED_PREFIX = "gdsload:"
"""Tensors whose names begin so are gdsload's own (padding, offsets); no field may."""

_MAX_DIMS = 64
_MAX_BYTES = 2**63 - 1


class Field:
    """A named tensor of a sample: its element type and shape.

    Args:
        dtype: the element type, as a torch or numpy dtype or its name; or ``"str"`` or ``"bytes"`` for text
            and binary strings, ``"image"`` for encoded images. These have no shape.
        shape: the shape of one sample's tensor. ``None`` as the first dimension makes the field ragged: that
            dimension varies from sample to sample and may be 0.
        codecs: for encoded images those that a sample may be encoded by: ``"jpeg"``, ``"png"`` and ``"webp"``; all
            three if none is named.

    Raises:
        SchemaError: if the element type, shape or codecs cannot be stored.
    """

    __slots__ = ("codecs", "dtype", "kind", "row_bytes", "row_shape", "shape")

    dtype: DType
    kind: FieldKind
    shape: tuple[int | None, ...]
    row_shape: tuple[int, ...]
    """Shape of a row: the whole sample of a fixed field, the dimensions after the free one of a ragged field."""
    row_bytes: int
    """Bytes of a row."""
    codecs: tuple[str, ...]
    """The codecs of encoded images, sorted; none for other fields."""

    def __init__(
        self,
        dtype: object,
        shape: tuple[int | None, ...] | list[int | None] = (),
        *,
        codecs: str | Iterable[str] | None = None,
    ) -> None:
        shape = tuple(shape)
        string = _STRINGS.get(dtype) if isinstance(dtype, str | type) else None
        self.codecs = _checked_codecs(string, codecs)
        if string is not None:
            if shape:
                raise SchemaError(f"a {dtype} field has no shape, but {shape} was given")
            self.kind = string
            self.dtype, self.shape = DTYPES["U8"], (None,)
            self.row_shape, self.row_bytes = (), 1
            return
        self.dtype = dtype_of(dtype)
        self.kind = "ragged" if shape and shape[0] is None else "fixed"
        self.shape = shape
        _check_shape(shape, self.dtype.itemsize)
        self.row_shape = tuple(size for size in shape if size is not None)
        self.row_bytes = math.prod(self.row_shape) * self.dtype.itemsize

    @property
    def ragged(self) -> bool:
        """True if the number of rows varies from sample to sample (for strings, too)."""
        return self.kind != "fixed"

    @property
    def is_string(self) -> bool:
        """True if samples are texts, binary strings or encoded images, which batches have as lists."""
        return self.kind not in ("fixed", "ragged")

    def to_json(self) -> dict[str, object]:
        """The field as it is written in shard metadata and index."""
        if self.kind == "image":
            return {"dtype": self.kind, "codecs": list(self.codecs)}
        if self.is_string:
            return {"dtype": self.kind}
        return {"dtype": self.dtype.name, "shape": list(self.shape)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Field) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[object, ...]:
        return self.dtype, self.kind, self.shape, self.codecs

    def __str__(self) -> str:
        """For people: ``uint8 [3, 224, 224]``, ``int64 [*]`` if it is ragged, ``str``, ``image``."""
        if self.is_string:
            return f"{self.kind} ({', '.join(self.codecs)})" if self.codecs not in ((), IMAGE_CODECS) else self.kind
        return f"{self.dtype.name} [{', '.join('*' if size is None else str(size) for size in self.shape)}]"

    def __repr__(self) -> str:
        if self.kind == "image":
            return f"Field({self.kind!r}, codecs={list(self.codecs)})"
        if self.is_string:
            return f"Field({self.kind!r})"
        return f"Field({self.dtype.name!r}, {self.shape})"


def _checked_codecs(kind: FieldKind | None, given: str | Iterable[str] | None) -> tuple[str, ...]:
    if kind != "image":
        if given is not None:
            raise SchemaError(f"codecs are those of encoded images, but {show(given)} was given for another field")
        return ()
    if given is None:
        return IMAGE_CODECS
    named = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else []
    if not named or not all(isinstance(one, str) and one in IMAGE_CODECS for one in named):
        raise SchemaError(
            f"the codecs of encoded images are {show(given)}", remedy=f"Name some of {', '.join(IMAGE_CODECS)}."
        )
    return tuple(sorted(set(named)))


def _check_shape(shape: tuple[int | None, ...], itemsize: int) -> None:
    if len(shape) > _MAX_DIMS:
        raise SchemaError(f"a shape of {len(shape)} dimensions cannot be stored; the most is {_MAX_DIMS}")
    nbytes = itemsize
    for position, size in enumerate(shape):
        if size is None and position == 0:
            continue
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            what = f"shape {show(shape)} cannot be stored: dimension {position} is {show(size)}"
            raise SchemaError(what, remedy="Sizes are whole numbers from 0; only the first may be None (ragged).")
        nbytes *= max(size, 1)
    if nbytes > _MAX_BYTES:
        raise SchemaError(f"shape {shape} has more bytes than 64-bit offsets can address")


class Schema(Mapping[str, Field]):
    """The fields of a dataset, in order.

    Args:
        fields: name to `Field`; a value may also be anything `Field` takes as its element type (``"str"``).

    Raises:
        SchemaError: if there is no field, or a name cannot be stored.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Field | object]) -> None:
        self._fields: dict[str, Field] = {}
        for name, value in fields.items():
            _check_name(name)
            self._fields[name] = value if isinstance(value, Field) else Field(value)
        if not self._fields:
            raise SchemaError("a schema needs at least one field")

    def __getitem__(self, name: str) -> Field:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and list(self.items()) == list(other.items())

    def __hash__(self) -> int:
        return hash(tuple(self.items()))

    def __str__(self) -> str:
        """For people: ``image: uint8 [3, 224, 224], label: int64 []``."""
        return ", ".join(f"{name}: {field}" for name, field in self.items())

    def __repr__(self) -> str:
        return f"Schema({self._fields!r})"

    @property
    def fixed_bytes(self) -> int:
        """Bytes that each sample takes in its fixed fields."""
        return sum(field.row_bytes for field in self.values() if not field.ragged)

    def to_json(self) -> dict[str, object]:
        """The schema as it is written in shard metadata and index."""
        return {name: field.to_json() for name, field in self.items()}

    @classmethod
    def from_json(cls, value: object) -> Schema:
        """Read what `to_json` wrote, trusting nothing.

        Raises:
            SchemaError: if it is not of that form.
        """
        if not isinstance(value, dict):
            raise SchemaError(f"a schema is a JSON object, not {type(value).__name__}")
        fields: dict[str, Field] = {}
        for name, entry in value.items():
            given = entry if isinstance(entry, dict) else {}
            dtype, shape, codecs = given.get("dtype"), given.get("shape", []), given.get("codecs")
            if not (isinstance(dtype, str) and isinstance(shape, list) and isinstance(codecs, list | None)):
                raise SchemaError(f"{show(entry)} describes no field", field=name)
            try:
                fields[name] = Field(dtype, shape, codecs=codecs)
            except SchemaError as error:
                raise SchemaError(error.message, field=name, remedy=error.remedy) from None
            if fields[name].to_json() != entry:
                written = json.dumps(fields[name].to_json())
                raise SchemaError(f"{show(entry)} is to be written {written}", field=name)
        return cls(fields)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise SchemaError(f"a field's name is a text of at least one character, not {show(name)}")
    if name == "__metadata__" or name.startswith(RESERVED_PREFIX):
        raise SchemaError(
            f"the name {show(name)} is reserved", remedy=f"Names must not begin with {RESERVED_PREFIX!r}."
        )
    if not is_text(name):
        raise SchemaError(f"the name {show(name)} is no valid Unicode text")
