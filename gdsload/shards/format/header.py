"""The safetensors header, parsed and validated as if the file were hostile.

The format (https://github.com/huggingface/safetensors#format): eight bytes, little-endian, the length N of the header;
N bytes of JSON; then the tensors' bytes without holes. Every problem of a header is reported, not only the first, if it
is JSON at all.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass

from gdsload.errors import FormatError, Problem
from gdsload.shards.format import strict
from gdsload.shards.format.dtypes import DTYPES, DType
from gdsload.shards.format.strict import JsonError, is_text, show

PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""Longest header that is read, as in safetensors."""

_MAX_DIMS = 64
# Finding a name costs a pass over the header; a header of a million faults must not cost a million passes.
_MAX_LOCATED = 64


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """The element type, shape and place of one tensor in a file.

    Attributes:
        name: its name in the header.
        dtype: its element type.
        shape: its shape.
        begin: byte offset of its first byte in the file.
        end: byte offset after its last byte in the file.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """A valid safetensors header.

    Attributes:
        tensors: entries by name, in order of their offsets.
        metadata: the text pairs of ``__metadata__``.
        data_start: byte offset of the data section in the file.
        file_bytes: length of the file.
        sha256: SHA-256 of the file's first `data_start` bytes, in hexadecimal.
    """

    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]
    data_start: int
    file_bytes: int
    sha256: str


def header_bytes(prefix: bytes, file_bytes: int, file: str) -> int:
    """Length of the header in bytes, prefix included, from the file's first eight bytes.

    Raises:
        FormatError: if the file cannot hold such a header.
    """
    length = int.from_bytes(prefix[:PREFIX_BYTES], "little")
    if len(prefix) < PREFIX_BYTES or file_bytes < PREFIX_BYTES + 2:
        message = f"the file has {file_bytes} bytes, too few for any header"
    elif length > MAX_HEADER_BYTES:
        message = f"it is no safetensors file: its header would have {length} bytes, and the most is {MAX_HEADER_BYTES}"
    elif length > file_bytes - PREFIX_BYTES:
        message = f"the header claims {length} bytes, but only {file_bytes - PREFIX_BYTES} follow"
    else:
        return PREFIX_BYTES + length
    raise _error(file, [Problem(message, file, 0)])


def parse_header(raw: bytes, file_bytes: int, file: str) -> Header:
    """Parse and check a header.

    Args:
        raw: the file's first bytes, as many as `header_bytes` says.
        file_bytes: length of the whole file.
        file: the file's name, for errors.

    Raises:
        FormatError: with all that is wrong in `.problems`.
    """
    check = _Check(raw, file_bytes, file)
    tree = check.json()
    if isinstance(tree, dict):
        metadata = check.metadata(tree.pop("__metadata__", {}))
        before = len(check.problems)
        entries = [entry for entry in (check.entry(name, value) for name, value in tree.items()) if entry]
        entries.sort(key=lambda entry: (entry.begin, entry.end))
        if len(check.problems) == before:  # else a hole may be where a tensor belongs that was refused
            check.cover(entries)
        if not check.problems:
            tensors = {entry.name: entry for entry in entries}
            return Header(tensors, metadata, len(raw), file_bytes, hashlib.sha256(raw).hexdigest())
    raise _error(file, check.problems)


def _error(file: str, problems: list[Problem]) -> FormatError:
    return FormatError(
        f"no valid safetensors file ({len(problems)} problem{'s' if len(problems) != 1 else ''})",
        problems=problems,
        file=file,
        remedy="If a tool wrote it, write it again; if it was copied, compare it with the original.",
    )


class _Check:
    def __init__(self, raw: bytes, file_bytes: int, file: str) -> None:
        self.raw, self.file_bytes, self.file = raw, file_bytes, file
        self.problems: list[Problem] = []

    def add(self, message: str, offset: int | None = None, tensor: str | None = None) -> None:
        if offset is None and tensor is not None:
            name = json.dumps(tensor, ensure_ascii=False).encode(errors="replace")
            found = self.raw.find(name) if len(self.problems) < _MAX_LOCATED else -1
            offset = found if found >= 0 else PREFIX_BYTES
        self.problems.append(Problem(message, self.file, offset, tensor))

    def json(self) -> object:
        """The header as JSON; None, and a problem, if it is none."""
        try:
            body = self.raw[PREFIX_BYTES:]
            if body[:1] != b"{":
                raise JsonError(f"nothing that begins with '{{', but with {body[:1]!r}", 0)
            return strict.loads(body)
        except JsonError as error:
            self.add(f"the header is {error}", PREFIX_BYTES + error.offset)
            return None

    def metadata(self, value: object) -> dict[str, str]:
        if not isinstance(value, dict):
            self.add("__metadata__ is no JSON object", tensor="__metadata__")
            return {}
        for name, text in value.items():
            if not (is_text(name) and is_text(text)):
                self.add(f"__metadata__[{show(name)}] is no valid Unicode text", tensor="__metadata__")
        return value

    def entry(self, name: str, value: object) -> TensorEntry | None:
        before = len(self.problems)
        if not is_text(name):
            self.add(f"the name {show(name)} is no valid Unicode text", PREFIX_BYTES, name)
        if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
            self.add("an entry has exactly dtype, shape and data_offsets", tensor=name)
            return None
        code, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        dtype = DTYPES.get(code) if isinstance(code, str) else None
        if dtype is None:
            self.add(f"dtype {show(code)} is unknown", tensor=name)
        if not _whole_numbers(shape) or len(shape) > _MAX_DIMS:
            self.add(f"shape {show(shape)} is no list of at most {_MAX_DIMS} whole numbers from 0", tensor=name)
        elif math.prod(max(size, 1) for size in shape) * (dtype.itemsize if dtype else 1) >= 2**63:
            self.add(f"shape {show(shape)} has more bytes than 64 bits can count", tensor=name)
        if not _whole_numbers(offsets) or len(offsets) != 2:
            self.add(f"data_offsets {show(offsets)} are no two whole numbers from 0", tensor=name)
        if len(self.problems) > before or dtype is None:
            return None
        begin, end = offsets
        needed = math.prod(shape) * dtype.itemsize
        data_bytes = self.file_bytes - len(self.raw)
        if end - begin != needed:
            said = f"{show(offsets)} span {show(end - begin)} bytes, but {dtype.code} {show(shape)} needs {needed}"
            self.add(f"data_offsets {said}", tensor=name)
        if max(begin, end) > data_bytes:
            self.add(f"data_offsets {show(offsets)} end after the data, which have {data_bytes} bytes", tensor=name)
        return TensorEntry(name, dtype, tuple(shape), len(self.raw) + begin, len(self.raw) + end)

    def cover(self, entries: list[TensorEntry]) -> None:
        """Add a problem for each hole and overlap of the tensors, which come in the order of their places."""
        position = len(self.raw)
        for entry in entries:
            if entry.begin < position:
                self.add(f"the tensor begins at byte {entry.begin}, inside the one before it", entry.begin, entry.name)
            elif entry.begin > position:
                self.add(f"a hole of {entry.begin - position} bytes before the tensor", position, entry.name)
            position = max(position, entry.end)
        if position < self.file_bytes:
            self.add(f"{self.file_bytes - position} bytes after the last tensor", position)


def _whole_numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
