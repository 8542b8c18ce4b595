"""The variables of MATLAB files of version 5: arrays of numbers, out of bytes that are not trusted.

scipy's reader ends the process with some damaged files. What is wrong is a `ValueError`, for those who know the file's
name to hand on. The format is that of MathWorks' "MAT-File Format", chapter 1.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["NUMBERS", "MatVariable", "list_variables", "read_variable"]

_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_INT32, _UINT32, _INT8, _MATRIX, _COMPRESSED = 5, 6, 1, 14, 15
_CLASSES = {
    1: "cell", 2: "struct", 3: "object", 4: "char", 5: "sparse", 6: "double", 7: "single", 8: "int8", 9: "uint8",
    10: "int16", 11: "uint16", 12: "int32", 13: "uint32", 14: "int64", 15: "uint64", 16: "function", 17: "opaque",
}  # fmt: skip
NUMBERS = {name: name for number, name in _CLASSES.items() if number > 7 and number < 16} | {
    "double": "float64", "single": "float32", "logical": "bool",
}  # fmt: skip
"""The classes that are numbers, and their element types."""

_COMPLEX, _LOGICAL = 0x0800, 0x0200
_HEADER_BYTES, _TAG_BYTES, _START_BYTES = 128, 8, 4096
_MAX_BYTES, _PIECE_BYTES = 2**33, 2**22
_MAX_DIMS, _MAX_VARIABLES = 32, 100_000


@dataclass(frozen=True, slots=True)
class MatVariable:
    """A variable of a file.

    Attributes:
        name: its name.
        kind: its class: ``"double"``, ``"logical"``, ``"struct"``.
        shape: its shape.
        is_complex: whether it has an imaginary part.
        order: ``"<"`` or ``">"``: which byte of a number comes first.
        begin: where its element begins in the file, after the tag.
        nbytes: how many bytes that has.
        packed: whether zlib has packed it.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    is_complex: bool
    order: str
    begin: int
    nbytes: int
    packed: bool


class _Elements:
    """The elements in some bytes, one after the other."""

    def __init__(self, content: bytes, order: str) -> None:
        self._content, self._order, self._place = content, order, 0

    def next(self, *, whole: bool = True) -> tuple[int, bytes]:
        """Type and bytes of the next one; of one that ends after these bytes none if it need not be whole."""
        kind, nbytes = self._numbers(self._place)
        begin, end = self._place + _TAG_BYTES, self._place + _TAG_BYTES + nbytes
        if kind >> 16:  # one of up to four bytes, which stand where its length would
            kind, nbytes = kind & 0xFFFF, kind >> 16
            if nbytes > 4:
                raise ValueError("a small element has more than four bytes")
            begin, end = self._place + 4, self._place + 4 + nbytes
            self._place += _TAG_BYTES
        else:
            self._place = end + -nbytes % 8
        if end > len(self._content) and whole:
            raise ValueError(f"an element has {nbytes} bytes, but {len(self._content) - begin} are there")
        return kind, self._content[begin:end]

    def _numbers(self, place: int) -> tuple[int, int]:
        if place + _TAG_BYTES > len(self._content):
            raise ValueError("it ends where an element should begin")
        kind, nbytes = struct.unpack_from(f"{self._order}II", self._content, place)
        return int(kind), int(nbytes)


def list_variables(stream: IO[bytes], file_bytes: int) -> list[MatVariable]:
    """The variables of a file.

    Args:
        stream: the file.
        file_bytes: its length.
    """
    stream.seek(0)
    header = stream.read(_HEADER_BYTES)
    order = {b"IM": "<", b"MI": ">"}.get(header[126:128])
    if order is None or struct.unpack(f"{order}H", header[124:126])[0] != 0x0100:
        raise ValueError("it does not begin as a MATLAB file of version 5; save it with -v7")
    found: list[MatVariable] = []
    place = _HEADER_BYTES
    while place < file_bytes:
        stream.seek(place)
        tag = stream.read(_TAG_BYTES)
        if len(tag) < _TAG_BYTES:
            raise ValueError("it ends where a variable should begin")
        kind, nbytes = struct.unpack(f"{order}II", tag)
        begin, place = place + _TAG_BYTES, place + _TAG_BYTES + nbytes
        if kind not in (_MATRIX, _COMPRESSED) or place > file_bytes:
            raise ValueError(f"at byte {begin - _TAG_BYTES} no variable begins that is in it whole")
        variable = _described(stream, begin, nbytes, order, packed=kind == _COMPRESSED)
        if variable is not None:
            found.append(variable)
        if len(found) > _MAX_VARIABLES:
            raise ValueError(f"it has more than {_MAX_VARIABLES} variables")
    return found


def _described(stream: IO[bytes], begin: int, nbytes: int, order: str, *, packed: bool) -> MatVariable | None:
    """What a variable's first elements say; None for what MATLAB keeps for itself, which has no name."""
    elements = _Elements(_content(stream, begin, nbytes, order, packed=packed, most=_START_BYTES), order)
    kind, flags = elements.next()
    if kind != _UINT32 or len(flags) != 8:
        raise ValueError("a variable does not say what it is")
    word = struct.unpack(f"{order}I", flags[:4])[0]
    name_of_class = _CLASSES.get(word & 0xFF, "unknown")
    if name_of_class == "opaque":
        _, name = elements.next()
        return MatVariable(name.decode("latin-1"), name_of_class, (), False, order, begin, nbytes, packed)
    kind, sizes = elements.next()
    if kind != _INT32 or len(sizes) % 4 or not 2 <= len(sizes) // 4 <= _MAX_DIMS:
        raise ValueError("a variable has no shape")
    shape = tuple(np.frombuffer(sizes, f"{order}i4").tolist())
    if min(shape) < 0:
        raise ValueError(f"a variable has shape {shape}")
    _, name = elements.next()
    if not name:
        return None
    logical = word & _LOGICAL and name_of_class in NUMBERS
    is_complex = bool(word & _COMPLEX)
    found = "logical" if logical else name_of_class
    return MatVariable(name.decode("latin-1"), found, shape, is_complex, order, begin, nbytes, packed)


def read_variable(stream: IO[bytes], variable: MatVariable) -> NDArray[Any]:
    """The array of a variable that is of numbers, of the element type of its class.

    Its values may be stored in fewer bytes: what they are stored in differs from file to file, what it is does not.
    """
    dtype = np.dtype(NUMBERS[variable.kind])
    count = math.prod(variable.shape)
    if count * dtype.itemsize > _MAX_BYTES:
        raise ValueError(f"variable {variable.name!r:.100} has {count} values")
    content = _content(stream, variable.begin, variable.nbytes, variable.order, packed=variable.packed, most=_MAX_BYTES)
    elements = _Elements(content, variable.order)
    for _ in ("flags", "shape", "name"):
        elements.next()
    values = _part(elements, variable, count, dtype)
    if variable.is_complex:
        wide = np.dtype(np.complex64 if dtype == np.float32 else np.complex128)
        both = np.empty(count, wide)
        both.real, both.imag = values, _part(elements, variable, count, dtype)
        values = both
    return values.reshape(variable.shape, order="F")


def _part(elements: _Elements, variable: MatVariable, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    kind, content = elements.next()
    if kind not in _TYPES:
        raise ValueError(f"variable {variable.name!r:.100} has values of type {kind}")
    stored = np.dtype(variable.order + _TYPES[kind])
    if len(content) != count * stored.itemsize:
        raise ValueError(
            f"variable {variable.name!r:.100} of shape {variable.shape} has {len(content)} bytes of {stored.name}"
        )
    values = np.frombuffer(content, stored)
    with np.errstate(invalid="ignore"):
        found = values.astype(dtype)
        same = np.can_cast(stored, dtype) or dtype.kind == "b" or np.array_equal(found.astype(stored), values)
    if not same:
        raise ValueError(f"variable {variable.name!r:.100} has values that its class has not")
    return found


def _content(stream: IO[bytes], begin: int, nbytes: int, order: str, *, packed: bool, most: int) -> bytes:
    """The bytes of a variable, unpacked, or the first of them: no more than are asked for, or there."""
    stream.seek(begin)
    if not packed:
        return stream.read(min(nbytes, most))
    unpack, pieces, made, left = zlib.decompressobj(), [], 0, nbytes
    while left and made < most and not unpack.eof:
        read = stream.read(min(left, _PIECE_BYTES))
        left -= len(read)
        if not read:
            raise ValueError("it ends too early")
        while read and made < most and not unpack.eof:
            pieces.append(unpack.decompress(read, most - made))
            made += len(pieces[-1])
            read = unpack.unconsumed_tail
    found = b"".join(pieces)
    if made < _TAG_BYTES:
        raise ValueError("a packed variable is empty")
    kind, length = struct.unpack(f"{order}II", found[:_TAG_BYTES])
    if kind != _MATRIX:
        raise ValueError("what was packed is no variable")
    if made < most and (not unpack.eof or length != made - _TAG_BYTES):
        raise ValueError("a packed variable is not all there")  # at its end its checksum was compared
    return found[_TAG_BYTES:]
