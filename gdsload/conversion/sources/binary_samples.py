"""Samples of MDS shards and LitData chunks: their places, then for each one the lengths of its values, and the values.

None of it is trusted. Faults are `ValueError`s, to which callers add the file's name, where that is not asked for.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.reasons import in_words, reading
from gdsload.conversion.sources.arrays import decode_npy
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageForm, put
from gdsload.conversion.sources.streams import exactly
from gdsload.errors import FormatError, GdsloadError

# Bytes of a pixel in the modes of Pillow whose rows have no padding.
_PIXEL_BYTES = {"L": 1, "P": 1, "LA": 2, "RGB": 3, "YCbCr": 3, "HSV": 3, "LAB": 3, "RGBA": 4, "CMYK": 4}


def sample_bytes(file: IO[bytes], samples: int, nbytes: int) -> Iterator[bytes]:
    """The bytes of each sample. A file begins with their number and, uint32, the places where they begin and end."""
    head = file.read(4 * (samples + 2))
    numbers = np.frombuffer(head[: len(head) // 4 * 4], "<u4").astype(np.int64)
    if len(numbers) != samples + 2 or numbers[0] != samples:
        raise ValueError(f"it does not begin as a file of {samples} samples")
    edges = numbers[1:]
    if edges[0] < len(head) or edges[-1] > nbytes or (np.diff(edges) < 0).any():
        raise ValueError("the places of its samples are no places in it")
    file.seek(int(edges[0]))
    return (exactly(file, size) for size in np.diff(edges).tolist())


def value_bytes(content: bytes, sizes: Sequence[int], where: str) -> list[bytes]:
    """The bytes of each value of a sample.

    Args:
        content: the sample: lengths, uint32, of the values that have no fixed one, then all values.
        sizes: the length of each value; 0 if it is in the sample.
        where: where it comes from, for the error.

    Raises:
        FormatError: if its values are not as long as it is.
    """
    place = 4 * sum(not size for size in sizes)
    lengths = iter(np.frombuffer(content[:place], "<u4").tolist() if len(content) >= place else [])
    found = []
    for size in sizes:
        end = place + (size or next(lengths, len(content) + 1))
        found.append(content[place:end])
        place = end
    if place != len(content):
        raise FormatError(f"the sample has {len(content)} bytes, but its values {place}", file=where)
    return found


def decoded(values: Mapping[str, bytes], decoders: Mapping[str, Callable[[bytes], Any]], where: str) -> dict[str, Any]:
    """The sample that decoders make.

    Raises:
        FormatError: if a value is damaged.
    """
    found: dict[str, Any] = {}
    for name, decode in decoders.items():
        try:  # `reading` would take a third of the time that a number takes
            value = decode(values[name])
            put(found, value if isinstance(value, dict) else {name: value}, where)
        except GdsloadError:
            raise
        except ValueError as error:
            raise FormatError(f"field {name!r} cannot be decoded: {in_words(error)}", file=where) from None
    return found


def refuse_pickles(what: str, file: str, remedy: str) -> NoReturn:
    """Raise FormatError: loading a pickle runs whatever it says."""
    raise FormatError(f"{what} is stored as pickles, which are never loaded", file=file, remedy=remedy)


def scalar(dtype: np.dtype[Any], content: bytes) -> Any:
    """A number."""
    return shaped(content, 0, dtype, (1,))[0]


def shaped(content: bytes, offset: int, dtype: np.dtype[Any], shape: Sequence[int]) -> NDArray[Any]:
    """An array whose values begin at an offset and end where the content does, lowest byte first."""
    left, wanted = len(content) - offset, math.prod(shape) * dtype.itemsize
    if wanted != left:
        raise ValueError(f"an array of shape {list(shape)} has {wanted} bytes, but {left} are there")
    return np.frombuffer(content[offset:], dtype.newbyteorder("<")).astype(dtype).reshape(shape)


def raw_image(content: bytes, look: ImageForm, field: str, file: str) -> dict[str, Any]:
    """The fields of an image of Pillow's: width, height, length of the mode's name, that name, pixels."""
    stream, where = io.BytesIO(content), f"{file}: {field}"
    width, height, length = struct.unpack("<III", exactly(stream, 12))
    mode = exactly(stream, length).decode()
    pixels = stream.read()
    if mode not in _PIXEL_BYTES:
        raise FormatError(f"an image of mode {mode!r:.50} cannot be taken", file=where)
    if width * height * _PIXEL_BYTES[mode] != len(pixels) or not pixels:
        raise ValueError(f"an image of {height} × {width} pixels cannot have {len(pixels)} bytes")
    return look.picture(field, need("PIL.Image").frombytes(mode, (width, height), pixels), where)


Encoding = Literal["bytes", "text", "npy", "image"]
"""The forms of values: bytes as they are, UTF-8, a `.npy` file, an image file."""


def decoded_fields(name: str, content: bytes, encoding: str, look: ImageForm, where: str) -> dict[str, Any]:
    """The fields that a value becomes in a sample.

    Raises:
        FormatError: if it is damaged, or something else.
    """
    if encoding == "image":
        return look.fields(name, content, where)
    decoders: Mapping[str, Callable[[bytes], Any]] = {
        "bytes": bytes, "text": partial(str, encoding="utf-8"), "npy": decode_npy,
    }  # fmt: skip
    # numpy parses headers as Python does
    with reading(f"it cannot be decoded as {encoding}", where, ValueError, SyntaxError, EOFError):
        return {name: decoders[encoding](content)}
