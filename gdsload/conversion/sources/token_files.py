"""Files of tokens: arrays, flat binary files and JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import FileOptions, SourceFiles, open_file, stamps
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import BATCH_BYTES, filled, run_parts, spans
from gdsload.conversion.source import Item, OfDocuments, Part
from gdsload.conversion.sources.npy import decode_npy, map_npy
from gdsload.conversion.sources.streams import go_to_line, read_line
from gdsload.conversion.sources.token_formats import IndexedTokens, TokenRow, indexed_tokens, is_index, token_row
from gdsload.errors import FormatError, OptionError

__all__ = ["TokenSource"]

_SUFFIXES = (".npy", ".bin", ".jsonl")
_EACH = ("token", "document")
_DEFAULT = np.dtype(np.uint16)  # of JSON lines, whose numbers are looked at one by one


class TokenSource(OfDocuments):
    """Documents of tokens, ragged, or a long row of tokens, each a sample: the field ``tokens``.

    A `.npy` file is a document; those come first. Each line of a `.jsonl` file is one: a list of numbers, or an object
    that has one.

    Any other file (`.bin`) is a row of tokens. With `end` it has documents, each of which ends with that token. Without
    it, each token is a sample: `Windows` takes any stretch of the row, also from one file to the next. Packed, such a
    file is one document.

    What llm.c and its like write says itself of what element type it is, and its header is no token; any other row is
    as NumPy's `tofile` writes it, and needs `dtype`. A `.bin` with an index of Megatron-LM's beside it (`.idx`) has the
    documents and the element type that this says: a document is all of its sequences.

    Args:
        path: such a file, or a folder of them.
        dtype: the element type of the tokens of files that do not say it. Of JSON lines it is uint16 by default.
        end: the token that ends a document of a row, and belongs to it.
        key: the key of the list, where lines are objects.
        each: what a sample is: ``"token"`` (of `.bin` files alone) or ``"document"``. None: a token, if no file has
            documents.
        **files: `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.
    """

    kind = "token files"
    threads = False

    def __init__(
        self,
        path: str,
        *,
        dtype: str | None = None,
        end: int | None = None,
        key: str = "tokens",
        each: str | None = None,
        **files: Unpack[FileOptions],
    ) -> None:
        if each not in (None, *_EACH):
            raise OptionError(f"is {each!r:.200}", option="each", remedy='Supported are "token" and "document".')
        if each == "token" and end is not None:
            raise OptionError("`end` ends documents, but `each='token'` makes none", remedy="Pass one of them.")
        self.path = path
        self.files = SourceFiles(path, **files)
        self.dtype = None if dtype is None else _whole(dtype)
        self.end = end
        self.key = key
        self.each = each
        if self.dtype is not None:
            self._check_end(self.dtype)

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        files = self.files.find(_SUFFIXES)
        dtype = None if self.dtype is None else self.dtype.name
        listed = stamps([*files, *filter(None, map(self._index, files))])
        return {"kind": self.kind, "files": listed, "dtype": dtype, "end": self.end, "key": self.key, "each": self.each}

    def check_shuffle(self) -> None:
        """See `OfDocuments`."""
        if self._one_by_one(self.files.find(_SUFFIXES)):
            raise OptionError(
                "would put single tokens in random order",
                option="shuffle_seed",
                file=self.path,
                remedy="Leave it out: a loader shuffles windows. Or make documents: `each='document'`, `end=`.",
            )

    def notes(self) -> list[str]:
        """Notes for users: that tokens are samples, or that keys of the first line are left out."""
        if self._one_by_one(self.files.find(_SUFFIXES)):
            return ["each token is a sample: gdsload.Windows takes stretches, `each='document'` makes documents"]
        for file in self.files.find(_SUFFIXES) if os.path.exists(self.path) else []:
            if not file.endswith(".jsonl"):
                continue
            with suppress(ValueError, OSError), open_file(file) as opened:
                found = json.loads(read_line(opened, file))
                others = [key for key in found if key != self.key] if isinstance(found, dict) else []
                if others:
                    return [f"of each line {self.key!r} alone is taken; left out are {', '.join(map(repr, others))}"]
        return []

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of `.npy` files and documents, and of bytes, in which documents begin."""
        files = self.files.find(_SUFFIXES)
        if self._one_by_one(files):
            found = [part for file in files for part in self._tokens(file, target_bytes)]
            return filled(found, "token", self.path)
        arrays = [file for file in files if _has(file, ".npy")]
        if arrays:
            _check_header(arrays[0])
        found = run_parts("files", list(map(os.path.getsize, arrays)), target_bytes, files=arrays)
        for file in files:
            if file not in arrays:
                found += self._documents(file, target_bytes) if self._index(file) else self._ranges(file, target_bytes)
        return filled(found, "token", self.path)

    def _one_by_one(self, files: list[str]) -> bool:
        document = next((file for file in files if _has(file, ".npy") or _has(file, ".jsonl")), None)
        if self.each == "token" and document is not None:
            numbers = "Pass `kind='numpy'`, which takes the values of arrays one by one."
            raise OptionError(
                "`each='token'` is for flat files of tokens, but this one is a document, or has several",
                file=document,
                remedy=numbers if _has(document, ".npy") else "Leave each out: each line is a document.",
            )
        if self.each is None:
            return document is None and self.end is None and not any(map(self._index, files))
        return self.each == "token"

    def _tokens(self, file: str, target_bytes: int) -> list[Part]:
        row, name = self._flat(file), os.path.basename(file)
        size = row.dtype.itemsize
        return [
            Part(f"{name}, tokens {low} to {high - 1}", (file, low, high, "tokens"), high - low, (high - low) * size)
            for low, high in spans(0, row.count, max(target_bytes // size, 1))
        ]

    def _flat(self, file: str) -> TokenRow:
        return self._indexed(file).row if self._index(file) else self._row(file)

    def _ranges(self, file: str, target_bytes: int) -> list[Part]:
        name, step, nbytes = os.path.basename(file), target_bytes, os.path.getsize(file)
        if not _has(file, ".jsonl"):
            row = self._row(file)
            itemsize, nbytes = row.dtype.itemsize, row.count * row.dtype.itemsize
            step = nbytes if self.end is None else target_bytes // itemsize * itemsize or itemsize
        return [
            Part(f"{name}, bytes {low} to {high - 1}", (file, low, high), nbytes=high - low)
            for low, high in spans(0, nbytes, max(step, 1))
        ]

    def _documents(self, file: str, target_bytes: int) -> list[Part]:
        found, name = self._indexed(file, check=True), os.path.basename(file)
        if not found.row.count:
            return []
        parts = []
        for low, high in found.runs(0, found.documents, target_bytes):
            edges = found.edges(low, high)
            nbytes = int(edges[-1] - edges[0]) * found.row.dtype.itemsize
            parts.append(Part(f"{name}, documents {low} to {high - 1}", (file, low, high), high - low, nbytes))
        return parts

    def _index(self, file: str) -> str | None:
        """The index beside a file, if there is one that tells of documents."""
        if not _has(file, ".bin") or not os.path.lexists(index := file[: -len(".bin")] + ".idx"):
            return None
        index = self.files.inside(os.path.dirname(file), os.path.basename(index))
        return index if is_index(index) else None

    def _indexed(self, file: str, *, check: bool = False) -> IndexedTokens:
        if self.end is not None:
            raise OptionError("is given, but the file has an index of its documents", option="end", file=file)
        return indexed_tokens(file, str(self._index(file)), self.dtype, check=check)

    def _row(self, file: str) -> TokenRow:
        row = token_row(file, self.dtype)
        self._check_end(row.dtype)
        return row

    def _check_end(self, dtype: np.dtype[Any]) -> None:
        limits = np.iinfo(dtype)
        if self.end is not None and not limits.min <= self.end <= limits.max:
            raise OptionError(f"is {self.end}, but tokens are {dtype}", option="end")

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        first = str(part.where[0])
        if _has(first, ".npy"):
            for file in part.where:
                yield Item(str(file), partial(_array, str(file)), 1)
            return
        low, high = int(part.where[1]), int(part.where[2])
        with reading("the file cannot be read", first, OSError):
            if part.where[3:]:
                tokens = self._flat(first).tokens()
                for begin, end in spans(low, high, BATCH_BYTES // tokens.itemsize):
                    run = np.asarray(tokens[begin:end])
                    yield Item(f"tokens {begin} to {end - 1}", partial(dict, tokens=run), end - begin)
            elif _has(first, ".jsonl"):
                yield from self._lines(first, low, high)
            elif self._index(first):
                yield from _listed(self._indexed(first), low, high)
            else:
                yield from self._runs(self._row(first), low, high)

    def _lines(self, file: str, low: int, high: int) -> Iterator[Item]:
        """The lines that begin from byte `low` to `high` - 1."""
        with open_file(file) as opened:
            go_to_line(opened, low, file)
            while (place := opened.tell()) < high:
                line = read_line(opened, file)
                if line.strip():
                    yield Item(f"the line at byte {place}", partial(self._document, line), 1)

    def _document(self, line: bytes) -> dict[str, Any]:
        with reading("the line is no JSON", None, ValueError, RecursionError):
            found = json.loads(line)
        listed = found.get(self.key) if isinstance(found, dict) else found
        dtype = self.dtype or _DEFAULT
        limits = np.iinfo(dtype)
        try:
            tokens = np.array(listed if listed != [] else np.empty(0, dtype))
        except ValueError:  # lists of several lengths
            tokens = np.array(None)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise FormatError(
                f"the line has no list of whole numbers: {line!r:.100}", remedy="Other lines are of `kind='jsonl'`."
            )
        low, high = (int(tokens.min()), int(tokens.max())) if len(tokens) else (0, 0)
        if not limits.min <= low <= high <= limits.max:
            # Other lines may have any number that this type holds.
            holds = _holding(min(low, limits.min), max(high, limits.max)) or ("uint64" if low >= 0 else "int64")
            raise FormatError(f"its tokens from {low} to {high} are not {dtype}", remedy=f"Pass `dtype={holds!r}`.")
        return _one(tokens.astype(dtype))

    def _runs(self, row: TokenRow, low: int, high: int) -> Iterator[Item]:
        """The documents that begin from byte `low` to `high` - 1 of the tokens, many at once."""
        tokens, itemsize = row.tokens(), row.dtype.itemsize
        if self.end is None:
            yield Item("all tokens", partial(_one, tokens), 1)
            return
        place = _behind(tokens, self.end, low // itemsize)
        stop = _behind(tokens, self.end, high // itemsize)
        while place < stop:
            edge = min(_behind(tokens, self.end, place + BATCH_BYTES // itemsize), stop)
            run = tokens[place:edge]
            edges = np.flatnonzero(run == self.end) + 1
            if not len(edges) or edges[-1] < len(run):
                edges = np.append(edges, len(run))
            offsets = np.concatenate([[0], edges])
            yield Item(f"tokens {place} to {edge - 1}", partial(dict, tokens=(run, offsets)), len(edges))
            place = edge


def _listed(found: IndexedTokens, low: int, high: int) -> Iterator[Item]:
    """The documents from `low` to `high` - 1, many at once."""
    tokens = found.row.tokens()
    for begin, end in found.runs(low, high, BATCH_BYTES):
        edges = found.edges(begin, end)
        batch = {"tokens": (tokens[edges[0] : edges[-1]], edges - edges[0])}
        yield Item(f"documents {begin} to {end - 1}", partial(dict, batch), end - begin)


def _whole(name: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "iu":
        raise OptionError(f"is {name!r}, no type of whole numbers", option="dtype")
    return dtype


def _holding(low: int, high: int) -> str | None:
    """The smallest type of whole numbers that holds these and all between, if there is one."""
    names = (f"{kind}{bits}" for bits in (8, 16, 32, 64) for kind in ("uint", "int"))
    return next((name for name in names if np.iinfo(name).min <= low <= high <= np.iinfo(name).max), None)


def _has(file: str, suffix: str) -> bool:
    return file.lower().endswith(suffix)


def _behind(tokens: NDArray[Any], end: int, place: int) -> int:
    """The first place from this one on where a document begins: after the token that ends the one before."""
    if place == 0:
        return 0
    step = BATCH_BYTES // tokens.itemsize
    for low, high in spans(place - 1, len(tokens), step):
        found = np.flatnonzero(tokens[low:high] == end)
        if len(found):
            return low + int(found[0]) + 1
    return len(tokens)


def _check_header(file: str) -> None:
    """Refuse files that are no tokens; of a damaged one it is said when its turn comes."""
    found = None
    with suppress(OSError, ValueError, EOFError, SyntaxError):
        found = map_npy(file)
    if found is not None:
        _check(found, file)


def _check(tokens: NDArray[Any], file: str) -> None:
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise FormatError(
            f"it is {tokens.dtype} of shape {tokens.shape}, no row of whole numbers",
            file=file,
            remedy="Arrays of other values are of `kind='numpy'`.",
        )


def _array(file: str) -> dict[str, Any]:
    with open_file(file) as opened:
        tokens = decode_npy(opened.read())
    _check(tokens, file)
    return _one(tokens)


def _one(tokens: NDArray[Any]) -> dict[str, Any]:
    """A batch of one document: a batch says that its field is ragged."""
    return {"tokens": (tokens, np.array([0, len(tokens)]))}
