"""The safetensors header, parsed and validated as if the file were hostile.

The format (https://github.com/huggingface/safetensors#format): eight bytes, little-endian, the length N of the header;
N bytes of JSON; then the tensors' bytes without holes. Every problem of a header is reported, not only the first.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass

from gdsload.errors import FormatError, Problem
from gdsload.shards.format.dtypes import DTYPES, SUB_BYTE_DTYPES, DType
from gdsload.shards.format.strict import show

__all__ = ["MAX_HEADER_BYTES", "PREFIX_BYTES", "Header", "TensorEntry", "header_bytes", "parse_header"]

PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""Longest header that is read, as in safetensors."""

_MAX_DIGITS = 19
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
    if len(prefix) < PREFIX_BYTES or file_bytes < PREFIX_BYTES + 2:
        raise _error(file, [Problem(f"the file has {file_bytes} bytes, too few for any header", file, 0)])
    length = int.from_bytes(prefix[:PREFIX_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        message = f"it is no safetensors file: its header would have {length} bytes, and the most is {MAX_HEADER_BYTES}"
        raise _error(file, [Problem(message, file, 0)])
    if length > file_bytes - PREFIX_BYTES:
        message = f"the header claims {length} bytes, but only {file_bytes - PREFIX_BYTES} follow"
        raise _error(file, [Problem(message, file, 0)])
    return PREFIX_BYTES + length


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
        check.cover(entries, complete=len(check.problems) == before)
        if not check.problems:
            return Header(
                {entry.name: entry for entry in entries},
                metadata,
                len(raw),
                file_bytes,
                hashlib.sha256(raw).hexdigest(),
            )
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
        """The header as JSON, or a problem."""
        body = self.raw[PREFIX_BYTES:]
        if body[:1] != b"{":
            self.add(f"a header begins with '{{', this one with {body[:1]!r}", PREFIX_BYTES)
            return None
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError as error:
            self.add("the header is no valid UTF-8", PREFIX_BYTES + error.start)
            return None
        try:
            tree = json.loads(text, object_pairs_hook=self._pairs, parse_int=_parse_int)
        except json.JSONDecodeError as error:
            self.add(f"the header is no valid JSON: {error.msg}", PREFIX_BYTES + len(text[: error.pos].encode()))
            return None
        except RecursionError:
            self.add("the header's JSON is nested too deeply", PREFIX_BYTES)
            return None
        return tree

    def _pairs(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for name, value in pairs:
            if name in found:
                self.add(f"the key {show(name)} occurs twice", tensor=name)
            found[name] = value
        return found

    def metadata(self, value: object) -> dict[str, str]:
        if not isinstance(value, dict):
            self.add("__metadata__ is no JSON object", tensor="__metadata__")
            return {}
        for name, text in value.items():
            if not isinstance(text, str):
                self.add(f"__metadata__[{show(name)}] is no text", tensor="__metadata__")
            elif not (_encodable(name) and _encodable(text)):
                self.add(f"__metadata__[{show(name)}] is no valid Unicode text", tensor="__metadata__")
        return {name: text for name, text in value.items() if isinstance(text, str)}

    def entry(self, name: str, value: object) -> TensorEntry | None:
        before = len(self.problems)
        if not _encodable(name):
            self.add(f"the name {show(name)} is no valid Unicode text", PREFIX_BYTES, name)
        if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
            self.add("an entry has exactly dtype, shape and data_offsets", tensor=name)
            return None
        dtype = self._dtype(name, value["dtype"])
        shape, offsets = value["shape"], value["data_offsets"]
        if not _whole_numbers(shape) or len(shape) > _MAX_DIMS:
            self.add(f"shape {show(shape)} is no list of at most {_MAX_DIMS} whole numbers from 0", tensor=name)
        elif math.prod(max(size, 1) for size in shape) * (dtype.itemsize if dtype else 1) >= 2**63:
            self.add(f"shape {shape} has more bytes than 64 bits can count", tensor=name)
        if not _whole_numbers(offsets) or len(offsets) != 2:
            self.add(f"data_offsets {show(offsets)} are no two whole numbers from 0", tensor=name)
        if len(self.problems) > before or dtype is None:
            return None
        begin, end = offsets
        needed = math.prod(shape) * dtype.itemsize
        data_bytes = self.file_bytes - len(self.raw)
        if end - begin != needed:
            self.add(
                f"data_offsets {offsets} span {end - begin} bytes, but {dtype.code} {shape} needs {needed}",
                tensor=name,
            )
        if max(begin, end) > data_bytes:
            self.add(f"data_offsets {offsets} end after the data, which have {data_bytes} bytes", tensor=name)
        return TensorEntry(name, dtype, tuple(shape), len(self.raw) + begin, len(self.raw) + end)

    def _dtype(self, name: str, code: object) -> DType | None:
        dtype = DTYPES.get(code) if isinstance(code, str) else None
        if isinstance(code, str) and code in SUB_BYTE_DTYPES:
            self.add(f"dtype {code} has elements that are no whole bytes, which gdsload does not read", tensor=name)
        elif dtype is None:
            self.add(f"dtype {show(code)} is unknown", tensor=name)
        return dtype

    def cover(self, entries: list[TensorEntry], *, complete: bool) -> None:
        """The tensors must cover the data section without holes or overlaps.

        Args:
            entries: the tensors that have a place, in order.
            complete: whether no tensor has been refused; if one was, a hole may be where it belongs.
        """
        position = len(self.raw)
        for entry in entries:
            if entry.begin < position:
                self.add(
                    f"the tensor begins at byte {entry.begin}, inside the one before it",
                    entry.begin,
                    entry.name,
                )
            elif entry.begin > position and complete:
                self.add(f"a hole of {entry.begin - position} bytes before the tensor", position, entry.name)
            position = max(position, entry.end)
        if position < self.file_bytes and complete:
            self.add(f"{self.file_bytes - position} bytes after the last tensor", position)


def _parse_int(text: str) -> int | float:
    # int() takes quadratic time or refuses; a float is refused wherever the format wants a number, as -0 must be.
    return int(text) if len(text) <= _MAX_DIGITS and text != "-0" else float(text)


def _whole_numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
