"""The values of MDS shards: how each encoding is read. They are not trusted."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.sources.binary_samples import encoded_image, raw_image, scalar, shaped
from gdsload.conversion.sources.pictures import ImageForm
from gdsload.conversion.sources.streams import exactly
from gdsload.errors import FormatError

__all__ = ["decoder"]

_SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
# The names of element types in arrays that name theirs.
_TYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip


def decoder(encoding: str, field: str, look: ImageForm, file: str) -> Callable[[bytes], Any]:
    """A function that decodes bytes to a value, or an image's fields; damaged ones raise `ValueError` or numpy's error.

    The encoding is that of the index: ``"int"``, ``"ndarray:float32:3,4"``.

    Raises:
        FormatError: if there is no such encoding, or it is one that is never read.
    """
    name, _, details = encoding.partition(":")
    if name == "pkl":
        raise FormatError(
            f"column {field!r} is stored as pickles, which are never loaded",
            file=file,
            remedy="Leave it out: `fields=[...]`, or write it again with another encoding.",
        )
    if name == "ndarray":
        return _array_decoder(details, field, file)
    if name in _SCALARS:
        return partial(scalar, np.dtype(name))
    simple: dict[str, Callable[[bytes], Any]] = {
        "int": partial(scalar, np.dtype("int64")),
        "str_int": int,
        "str_float": np.float64,
        **dict.fromkeys(("str_decimal", "str", "json"), partial(str, encoding="utf-8")),
        "bytes": bytes,
        "jpeg": partial(encoded_image, look=look, field=field, file=file),
        "png": partial(encoded_image, look=look, field=field, file=file),
        "pil": partial(raw_image, look=look, field=field, file=file),
    }
    if name not in simple:
        raise FormatError(
            f"column {field!r} has the encoding {encoding!r:.200}, which no field can have",
            file=file,
            remedy="Choose other columns: `fields=[...]`.",
        )
    return simple[name]


def _array_decoder(details: str, field: str, file: str) -> Callable[[bytes], NDArray[Any]]:
    kind, _, sizes = details.partition(":")
    try:
        shape = tuple(int(size) for size in sizes.split(",")) if sizes else None
    except ValueError:
        shape = (0,)
    if (kind and kind not in _SCALARS) or (shape is not None and min(shape) < 1):
        raise FormatError(f"column {field!r} has the encoding 'ndarray:{details:.200}', which is none", file=file)
    return partial(_array, kind or None, shape)


def _array(kind: str | None, shape: tuple[int, ...] | None, content: bytes) -> NDArray[Any]:
    """An array. Before its values are those of type, number of dimensions and sizes that are not in the index."""
    stream = io.BytesIO(content)
    if kind is None:
        kind = _TYPES.get(_byte(stream))
        if kind is None:
            raise ValueError("it is of an unknown element type")
    if shape is None:
        packed = _byte(stream)
        dimensions, wide = packed >> 2, 1 << (packed & 3)
        shape = tuple(np.frombuffer(exactly(stream, dimensions * wide), f"<u{wide}").tolist())
    if 0 in shape:
        raise ValueError("an array of no values is none")
    return shaped(content, stream.tell(), np.dtype(kind), shape)


def _byte(stream: io.BytesIO) -> int:
    return exactly(stream, 1)[0]
