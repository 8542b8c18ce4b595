"""Formats of token files: llm.c's header, Megatron-LM's index, or no header at all. None of them is trusted."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import check_file, open_file
from gdsload.errors import FormatError, OptionError

# llm.c, dev/data/data_common.py, and the trainers that took its form over: magic number to version and element type.
_HEADERS = {20240520: (1, "uint16"), 20240801: (7, "uint32")}
_HEADER_BYTES = 1024
_EXAMPLES = 20240522  # its HellaSwag and MMLU

# Megatron-LM, megatron/core/datasets/indexed_dataset.py.
_INDEX = struct.Struct("<9sQBQQ")
_INDEX_MAGIC, _OLD_MAGIC = b"MMIDIDX\0\0", b"TNTIDX\0\0"
_CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}

_NO_TOKENS = (
    ".npy", ".npz", ".json", ".jsonl", ".ndjson", ".txt", ".md", ".csv", ".tsv", ".xml", ".html", ".py",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenRow:
    """Tokens that follow each other in a file from a byte on."""

    file: str
    dtype: np.dtype[Any]
    offset: int
    count: int

    def tokens(self) -> NDArray[Any]:
        """All of them, mapped."""
        if not self.count:  # there is nothing to map
            return np.empty(0, self.dtype)
        check_file(self.file)
        return np.memmap(self.file, self.dtype, "r", self.offset, (self.count,))


def token_row(file: str, dtype: np.dtype[Any] | None) -> TokenRow:
    """The tokens of a file, whose element type is that of its header, or else the one that was asked for.

    Raises:
        FormatError: if it is damaged, or no such file.
        OptionError: if neither says the element type, or they differ.
    """
    if file.lower().endswith(_NO_TOKENS):
        raise FormatError(
            "by its name it is an array or a text, no flat file of tokens",
            file=file,
            remedy="Pass the kind that takes it: `kind='numpy'` (with `each='file'` if each file is a document), "
            "`kind='text'`, `kind='csv'` or `kind='jsonl'`.",
        )
    with open_file(file) as opened:
        nbytes = os.fstat(opened.fileno()).st_size
        head = opened.read(_HEADER_BYTES)
    magic, version, count = struct.unpack_from("<3i", head) if len(head) >= 12 else (0, 0, 0)
    if magic == _EXAMPLES:
        raise FormatError("it holds examples that llm.c evaluates with, no documents of tokens", file=file)
    if magic in _HEADERS:
        return _headed(file, nbytes, (magic, version, count), dtype)
    if dtype is None:
        raise OptionError(
            "the file does not say of what element type its tokens are",
            file=file,
            remedy="Pass `dtype='uint16'`, say: it is what nanoGPT writes for vocabularies of up to 65536 "
            "tokens, larger ones need uint32.",
        )
    if nbytes % dtype.itemsize:
        raise FormatError(f"it has {nbytes} bytes, no whole number of {dtype}", file=file)
    return TokenRow(file, dtype, 0, nbytes // dtype.itemsize)


def _headed(file: str, nbytes: int, header: tuple[int, int, int], asked: np.dtype[Any] | None) -> TokenRow:
    magic, version, count = header
    known, name = _HEADERS[magic]
    if version != known:
        raise FormatError(f"its header (byte 4) is of version {version}, but {known} is known", file=file)
    dtype = np.dtype(name)
    wanted = _HEADER_BYTES + count * dtype.itemsize
    if count < 0 or wanted != nbytes:
        raise FormatError(
            f"its header (byte 8) promises {count} tokens of {name}, {wanted} bytes in all, but it has {nbytes}",
            file=file,
            remedy="Copy it again, whole.",
        )
    _check_dtype(dtype, asked, file)
    return TokenRow(file, dtype, _HEADER_BYTES, count)


def _check_dtype(found: np.dtype[Any], asked: np.dtype[Any] | None, file: str) -> None:
    if asked not in (None, found):
        raise OptionError(
            f"is {asked}, but the file itself says {found}",
            option="dtype",
            file=file,
            remedy="Leave `dtype` out: it is known.",
        )


@dataclass(frozen=True, slots=True)
class IndexedTokens:
    """Tokens of a file that Megatron-LM's index tells the documents of.

    Attributes:
        row: the tokens.
        starts: the byte in the file where each sequence begins, int64 ``[sequences]``.
        ends: how many sequences there are before each document, and in all, int64 ``[documents + 1]``.
    """

    row: TokenRow
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.ends) - 1

    def edges(self, low: int, high: int) -> NDArray[np.int64]:
        """The offsets, in tokens, at which documents `low` to `high` - 1 begin, and at which the last one ends."""
        ends = np.asarray(self.ends[low : high + 1])
        found = np.full(len(ends), self.row.count, np.int64)
        within = ends < len(self.starts)
        found[within] = self.starts[ends[within]] // self.row.dtype.itemsize
        return found

    def runs(self, low: int, high: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """Documents from `low` to `high` - 1 in runs of about so many bytes, as (first, after the last)."""
        edges, most = self.edges(low, high), max(nbytes // self.row.dtype.itemsize, 1)
        begin = 0
        while begin < high - low:
            end = max(int(np.searchsorted(edges, edges[begin] + most, side="right")) - 1, begin + 1)
            yield low + begin, low + end
            begin = end


def is_index(path: str) -> bool:
    """Return whether a file is an index of Megatron-LM's.

    Raises:
        FormatError: if it is one of an older form.
        OSError: if it cannot be read.
    """
    with open_file(path) as opened:
        head = opened.read(len(_INDEX_MAGIC))
    if head.startswith(_OLD_MAGIC):
        raise FormatError(
            "it is an index of an older form (TNTIDX)", file=path, remedy="Write it again with Megatron-LM (mmap)."
        )
    return head == _INDEX_MAGIC


def indexed_tokens(file: str, index: str, dtype: np.dtype[Any] | None, *, check: bool) -> IndexedTokens:
    """The tokens of a file that has an index beside it; to `check` all of the index takes as long as to read it.

    Raises:
        FormatError: if the index is damaged, or does not belong to the file.
        OptionError: if another element type was asked for.
        OSError: if one of the two cannot be read.
    """
    with open_file(index) as opened:
        nbytes = os.fstat(opened.fileno()).st_size
        head = opened.read(_INDEX.size)
    if len(head) < _INDEX.size:
        raise FormatError(f"the index ends after {nbytes} bytes, in its header", file=index)
    _, version, code, sequences, ends = _INDEX.unpack(head)
    if version != 1 or code not in _CODES:
        kind = f"is of version {version} (byte 9)" if version != 1 else f"has the element type {code} (byte 17)"
        raise FormatError(f"the index {kind}, which is not supported", file=index)
    found = np.dtype(_CODES[code])
    wanted = _INDEX.size + 12 * sequences + 8 * ends
    if nbytes != wanted or not ends:
        raise FormatError(
            f"the index counts {sequences} sequences and {ends} edges of documents (bytes 18 to 33), {wanted} bytes "
            f"in all, but it has {nbytes}",
            file=index,
        )
    _check_dtype(found, dtype, file)
    count, rest = divmod(os.path.getsize(file), found.itemsize)
    if rest:
        raise FormatError(f"it is no whole number of {found}, the element type of its index", file=file)
    starts = _mapped(index, "<i8", _INDEX.size + 4 * sequences, sequences)
    made = IndexedTokens(TokenRow(file, found, 0, count), starts, _mapped(index, "<i8", nbytes - 8 * ends, ends))
    if check:
        _check(made, _mapped(index, "<i4", _INDEX.size, sequences), index)
    return made


def _mapped(index: str, dtype: str, offset: int, count: int) -> NDArray[Any]:
    return np.memmap(index, dtype, "r", offset, (count,)) if count else np.empty(0, dtype)


def _check(found: IndexedTokens, sizes: NDArray[Any], index: str) -> None:
    """Look at every number of an index: sequences follow one another and fill the file, documents likewise."""
    row, ends = found.row, found.ends
    edges = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]) * row.dtype.itemsize
    if (sizes < 0).any() or not np.array_equal(found.starts, edges[:-1]):
        raise FormatError("its sequences do not follow one another from byte 0 on", file=index)
    if edges[-1] != row.count * row.dtype.itemsize:
        there = row.count * row.dtype.itemsize
        raise FormatError(f"its sequences have {edges[-1]} bytes, but {row.file} has {there}", file=index)
    if ends[0] != 0 or ends[-1] != len(sizes) or (np.diff(ends) < 0).any():
        raise FormatError(f"its documents do not rise from sequence 0 to {len(sizes)}", file=index)
