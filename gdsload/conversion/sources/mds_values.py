"""The values of MDS shards: how each encoding is read. What is in them is not trusted."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import Look, decode_image, image_array
from gdsload.errors import FormatError

__all__ = ["decoder"]

_SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
# What an array that names its own element type calls it.
_TYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
# Bytes of a pixel in the modes of Pillow whose rows have no padding.
_PIXEL_BYTES = {"L": 1, "P": 1, "LA": 2, "RGB": 3, "YCbCr": 3, "HSV": 3, "LAB": 3, "RGBA": 4, "CMYK": 4}


def decoder(encoding: str, field: str, look: Look, file: str) -> Callable[[bytes], Any]:
    """What makes a value of its bytes; it raises `ValueError` or what numpy does if they are damaged.

    Args:
        encoding: as the index has it: ``"int"``, ``"ndarray:float32:3,4"``.
        field: the column's name, for errors.
        look: what images are made into.
        file: where it comes from, for errors.

    Raises:
        FormatError: if there is no such encoding, or it is one that is never read.
    """
    name, _, details = encoding.partition(":")
    if name == "pkl":
        raise FormatError(
            f"column {field!r} is stored as pickles, which are never loaded",
            file=file,
            remedy="Leave it out: columns=[...], or write it anew with another encoding.",
        )
    if name == "ndarray":
        return _array_decoder(details, field, file)
    if name in _SCALARS:
        return partial(_scalar, np.dtype(name))
    simple: dict[str, Callable[[bytes], Any]] = {
        "int": partial(_scalar, np.dtype("int64")),
        "str_int": int,
        "str_float": np.float64,
        "str_decimal": _text,
        "str": _text,
        "json": _text,
        "bytes": bytes,
        "jpeg": partial(_image, look=look, where=f"{file}: {field}"),
        "png": partial(_image, look=look, where=f"{file}: {field}"),
        "pil": partial(_raw_image, look=look, where=f"{file}: {field}"),
    }
    if name not in simple:
        raise FormatError(
            f"column {field!r} has the encoding {encoding!r:.200}, which no field can have",
            file=file,
            remedy="Choose other columns: columns=[...].",
        )
    return simple[name]


def _text(content: bytes) -> str:
    return content.decode()


def _scalar(dtype: np.dtype[Any], content: bytes) -> Any:
    if len(content) != dtype.itemsize:
        raise ValueError(f"it has {len(content)} bytes, but {dtype} has {dtype.itemsize}")
    return np.frombuffer(content, dtype)[0]


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
    """An array. What the index does not say stands before its values: type, number of dimensions, sizes."""
    stream = io.BytesIO(content)
    if kind is None:
        kind = _TYPES.get(_byte(stream))
        if kind is None:
            raise ValueError("it is of an unknown element type")
    if shape is None:
        packed = _byte(stream)
        dimensions, wide = packed >> 2, 1 << (packed & 3)
        shape = tuple(np.frombuffer(_exactly(stream, dimensions * wide), f"<u{wide}").tolist())
    dtype = np.dtype(kind)
    left, wanted = len(content) - stream.tell(), math.prod(shape) * dtype.itemsize
    if wanted != left or not wanted:
        raise ValueError(f"an array of shape {list(shape)} has {wanted} bytes, but {left} are there")
    return np.frombuffer(content, dtype.newbyteorder("<"), offset=stream.tell()).astype(dtype).reshape(shape)


def _byte(stream: io.BytesIO) -> int:
    return _exactly(stream, 1)[0]


def _exactly(stream: io.BytesIO, count: int) -> bytes:
    found = stream.read(count)
    if len(found) != count:
        raise ValueError("it ends too early")
    return found


def _image(content: bytes, look: Look, where: str) -> NDArray[np.uint8]:
    return decode_image(io.BytesIO(content), look, where)


def _raw_image(content: bytes, look: Look, where: str) -> NDArray[np.uint8]:
    """Pixels as Pillow has them: width, height, length of the mode's name, that name, pixels."""
    stream = io.BytesIO(content)
    width, height, length = struct.unpack("<III", _exactly(stream, 12))
    mode = _exactly(stream, length).decode()
    pixels = stream.read()
    if mode not in _PIXEL_BYTES:
        raise FormatError(f"an image of mode {mode!r:.50} cannot be taken", file=where)
    if width * height * _PIXEL_BYTES[mode] != len(pixels) or not pixels:
        raise ValueError(f"an image of {height} × {width} pixels cannot have {len(pixels)} bytes")
    return image_array(need("PIL.Image").frombytes(mode, (width, height), pixels), look, where)
