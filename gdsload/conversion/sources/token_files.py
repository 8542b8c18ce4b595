"""Flat binary files of tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.folders import names_in
from gdsload.conversion.input_files import FileOptions, FileSource, stamps
from gdsload.conversion.reasons import counted_are, reading
from gdsload.conversion.row_source import BATCH_BYTES, batches, filled, spans
from gdsload.conversion.source import Item, OfDocuments, Part
from gdsload.conversion.sources.token_formats import IndexedTokens, TokenRow, indexed_tokens, is_index, token_row
from gdsload.errors import OptionError


class TokenSource(OfDocuments, FileSource):
    """Documents of tokens, ragged, or a long row of tokens, each a sample: the field ``tokens``.

    With `end` a file has documents, each of which ends with that token. Without it, each token is a sample: `Windows`
    takes any stretch of the row, also from one file to the next. Packed, such a file is one document.

    What llm.c and its like write says itself of what element type it is, and its header is no token; any other row is
    as NumPy's `tofile` writes it, and needs `dtype`. A `.bin` with an index of Megatron-LM's beside it (`.idx`) has the
    documents and the element type that this says: a document is all of its sequences.

    Args:
        path: a file, or a folder of `.bin` files.
        dtype: the element type of the tokens of files that do not say it.
        end: the token that ends a document of a row, and belongs to it.
        each: what a sample is: ``"token"`` or ``"document"``. None: a token, if no file has documents.
    """

    kind = "token files"
    threads = False
    suffixes = (".bin",)
    decisive = ("end", "each")

    def __init__(
        self,
        path: str,
        *,
        dtype: str | None = None,
        end: int | None = None,
        each: Literal["token", "document"] | None = None,
        **files: Unpack[FileOptions],
    ) -> None:
        super().__init__(path, **files)
        if each == "token" and end is not None:
            raise OptionError("`end` ends documents, but `each='token'` makes none", remedy="Pass one of them.")
        self.dtype = None if dtype is None else _whole(dtype)
        self.end = end
        self.each = each
        if self.dtype is not None:
            self._check_end(self.dtype)

    def describe(self) -> dict[str, Any]:
        dtype = None if self.dtype is None else self.dtype.name
        indexes = stamps(filter(None, map(self._index, self.all_files())))
        return {**super().describe(), "indexes": indexes, "dtype": dtype}

    def check_shuffle(self) -> None:
        """See `OfDocuments`."""
        if self._one_by_one(self.all_files()):
            raise OptionError(
                "would put single tokens in random order",
                option="shuffle_seed",
                file=self.path,
                remedy="Leave it out: a loader shuffles windows. Or make documents: `each='document'`, `end=`.",
            )

    def notes(self) -> list[str]:
        """Notes for users: that tokens are samples, and on documents in files of other kinds."""
        found = []
        if self._one_by_one(self.all_files()):
            found.append("each token is a sample: gdsload.Windows takes stretches, `each='document'` makes documents")
        names = names_in(self.path) if os.path.isdir(self.path) else []
        for ending, kind in ((".npy", "numpy"), (".jsonl", "jsonl")):
            if others := [name for name in names if name.lower().endswith(ending)]:
                are = counted_are(len(others), "file")
                found.append(f"{are} left out, {others[0]!r} first: convert them apart, `kind={kind!r}`")
        return found

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of tokens, of documents, or of bytes, in which documents begin."""
        files, found = self.all_files(), list[Part]()
        for file in files:
            if self._one_by_one(files):
                found += self._tokens(file, target_bytes)
            else:
                found += self._documents(file, target_bytes) if self._index(file) else self._ranges(file, target_bytes)
        return filled(found, "token", self.path)

    def _one_by_one(self, files: list[str]) -> bool:
        if self.each is not None:
            return self.each == "token"
        return self.end is None and not any(map(self._index, files))

    def _tokens(self, file: str, target_bytes: int) -> list[Part]:
        row, name = self._flat(file), os.path.basename(file)
        size = row.dtype.itemsize
        return [
            Part(f"{name}, tokens {low} to {high - 1}", (file, low, high, "tokens"), high - low, (high - low) * size)
            for low, high in batches(0, row.count, size, target_bytes)
        ]

    def _flat(self, file: str) -> TokenRow:
        return self._indexed(file).row if self._index(file) else self._row(file)

    def _ranges(self, file: str, target_bytes: int) -> list[Part]:
        name, row = os.path.basename(file), self._row(file)
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
        if not file.lower().endswith(".bin") or not os.path.lexists(index := file[: -len(".bin")] + ".idx"):
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
        first = str(part.where[0])
        low, high = int(part.where[1]), int(part.where[2])
        with reading("the file cannot be read", first, OSError):
            if part.where[3:]:
                tokens = self._flat(first).tokens()
                for begin, end in batches(low, high, tokens.itemsize):
                    run = np.asarray(tokens[begin:end])
                    yield Item(f"tokens {begin} to {end - 1}", partial(dict, tokens=run), end - begin)
            elif self._index(first):
                yield from _listed(self._indexed(first), low, high)
            else:
                yield from self._runs(self._row(first), low, high)

    def _runs(self, row: TokenRow, low: int, high: int) -> Iterator[Item]:
        """The documents that begin from byte `low` to `high` - 1 of the tokens, many at once."""
        tokens, itemsize = row.tokens(), row.dtype.itemsize
        if self.end is None:
            yield Item("all tokens", partial(dict, tokens=(tokens, np.array([0, len(tokens)]))), 1)
            return
        place = _next_document(tokens, self.end, low // itemsize)
        stop = _next_document(tokens, self.end, high // itemsize)
        while place < stop:
            edge = min(_next_document(tokens, self.end, place + BATCH_BYTES // itemsize), stop)
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


def _next_document(tokens: NDArray[Any], end: int, place: int) -> int:
    """The first place from this one on where a document begins: after the token that ends the one before."""
    if place == 0:
        return 0
    for low, high in batches(place - 1, len(tokens), tokens.itemsize):
        found = np.flatnonzero(tokens[low:high] == end)
        if len(found):
            return low + int(found[0]) + 1
    return len(tokens)
