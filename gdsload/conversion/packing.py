"""Documents of tokens, packed into blocks of one length: a source made of another one.

All documents are taken as one long row of tokens, which is cut every `length` tokens. A first pass counts the tokens of
each part of the source, so that each part knows where in that row it begins: the blocks whose first token it has are
its own, and for the end of the last of them a reader goes on into the parts after it. So blocks do not depend on the
workers, and a reader has one document and a few blocks in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.part import key_of, place_of
from gdsload.conversion.provenance import notes_of, told_by
from gdsload.conversion.reasons import reason_of
from gdsload.conversion.row_source import given
from gdsload.conversion.source import Item, OfDocuments, Part, Source, may_crash, path_of
from gdsload.errors import FormatError, OptionError, SchemaError
from gdsload.shards.encode import sample_of

_BATCH_TOKENS = 2**20
_EDGES = "cu_seqlens"
_WholeType = Literal["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]


@dataclass(frozen=True, slots=True)
class Packing:
    """The form of the blocks that documents become.

    Attributes:
        field: the field with the tokens of a document: whole numbers, one-dimensional.
        length: tokens of a block.
        eos: a token that is put after each document; None: none is.
        pad: a token that fills the last block; None: the tokens that do not fill one are left out.
        dtype: the element type of the tokens, where a document is their bytes, as MDS often has them.

    Raises:
        OptionError: if they cannot be used.
    """

    field: str
    length: int
    eos: int | None = None
    pad: int | None = None
    dtype: _WholeType | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.length < 2**31:
            raise OptionError(f"blocks cannot have {self.length} tokens", remedy="Pass a length from 1 to 2**31 - 1.")
        if self.field == _EDGES:
            raise OptionError(f"the field to pack cannot be {_EDGES!r}: blocks have one of that name")

    def check(self, dtype: np.dtype[Any]) -> None:
        """Refuse tokens that documents of this element type cannot have."""
        limits = np.iinfo(dtype)
        for name, token in (("eos", self.eos), ("pad", self.pad)):
            if token is not None and not limits.min <= token <= limits.max:
                raise OptionError(f"is {token}, but tokens are {dtype}", option=name)


@dataclass(frozen=True, slots=True)
class _PackedRun:
    """The blocks of one packed part, and the parts of the inner source that they are made of; JSON-able.

    Attributes:
        parts: those parts: name, place and number of tokens.
        own: how many of the parts are read to their end, and have their bad documents reported, here.
        skip: tokens of the first part that belong to the block before.
        first: the number of the first block.
        blocks: how many blocks there are.
        dtype: element type of the tokens.
    """

    parts: list[tuple[str, list[str | int], int]]
    own: int
    skip: int
    first: int
    blocks: int
    dtype: str


class PackedSource:
    """Blocks of tokens, made of the documents of another source.

    Fields: the one with the tokens, now ``[length]``, and ``cu_seqlens``, ragged int32: where in the block documents
    begin, with 0 in front, whatever begins there, and `length` after them. A token of one piece must not attend to
    those of another. The filling of the last block counts as one more piece. Other fields are left out.

    A document that cannot be read has no tokens, and is an error of itself alone.

    Args:
        inner: where the documents come from.
        packing: how they become blocks.
    """

    def __init__(self, inner: Source, packing: Packing) -> None:
        self.inner = inner.documents() if isinstance(inner, OfDocuments) else inner
        self.packing = packing
        self.kind = f"{inner.kind}, packed"

    @property
    def threads(self) -> bool:
        """As the documents' source, which may have to read a file to know it."""
        return self.inner.threads

    @property
    def crashes(self) -> bool:
        return may_crash(self.inner)

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "documents": self.inner.describe(), **asdict(self.packing)}

    @property
    def path(self) -> str | None:
        """The path of the documents; None if they are not files."""
        return path_of(self.inner)

    @property
    def name(self) -> str | None:
        """The name of the documents, if they are a dataset of the user's; else None."""
        return getattr(self.inner, "name", None)

    def metadata(self) -> dict[str, Any]:
        """The metadata of the documents' source, such as the tokenizer that made them."""
        return told_by(self.inner, [self.packing.field])

    def notes(self) -> tuple[str, ...]:
        return notes_of(self.inner)

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`. All documents are read, to count their tokens."""
        inner = self.inner.parts(target_bytes)
        dtype = self._element_type(inner)
        self.packing.check(dtype)
        counts, documents = self._count(inner, dtype)
        edges = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).tolist()
        length, total = self.packing.length, edges[-1]
        blocks = total // length if self.packing.pad is None else -(-total // length)
        if not blocks:
            raise FormatError(
                f"all documents have {total} tokens, too few for a block of {length}",
                remedy="Pass a shorter length, or `pad=` to fill the last block.",
            )
        # The first block that begins in each part, or after it.
        firsts = [min(-(-edge // length), blocks) for edge in edges]
        owners = [k for k in range(len(inner)) if firsts[k] < firsts[k + 1]]
        owners[0] = 0  # parts before it that have no tokens may have bad documents
        found = []
        for low, after in zip(owners, [*owners[1:], len(inner)], strict=True):
            first, last = firsts[low], firsts[after]
            high = max(after, int(np.searchsorted(edges, min(last * length, total))))
            listed = [(part.name, list(part.where), counts[low + k]) for k, part in enumerate(inner[low:high])]
            run = _PackedRun(listed, after - low, first * length - edges[low], first, last - first, dtype.name)
            nbytes = (last - first) * length * dtype.itemsize
            name, made_of = f"blocks {first} to {last - 1}", sum(documents[low:after])
            found.append(Part(name, (json.dumps(asdict(run)),), last - first, nbytes, made_of))
        return found

    def _count(self, parts: list[Part], dtype: np.dtype[Any]) -> tuple[list[int], list[int]]:
        """The numbers of tokens and of documents, whole or not, of each part."""
        counts, documents = [0] * len(parts), [0] * len(parts)
        for number, part in enumerate(parts):
            for _, found in self._documents(part, dtype):
                documents[number] += 1
                counts[number] += 0 if isinstance(found, Exception) else self._tokens_in(found)
        return counts, documents

    def read(self, part: Part) -> Iterator[Item]:
        run = _PackedRun(**json.loads(str(part.where[0])))
        cutter = _Cutter(self.packing, run)
        for number, (name, where, tokens) in enumerate(run.parts):
            seen = 0
            for key, found in self._documents(Part(name, tuple(where)), np.dtype(run.dtype)):
                if isinstance(found, Exception):
                    if number < run.own:
                        yield Item(f"{key} of {name}", partial(given, found))
                    continue
                seen += self._tokens_in(found)
                yield from cutter.add(found)
                if number >= run.own and not cutter.left:
                    return
            if seen != tokens:
                raise FormatError(f"{name} has {seen} tokens, but had {tokens} when they were counted")
        yield from cutter.close()

    def _element_type(self, parts: list[Part]) -> np.dtype[Any]:
        first = None
        for part in parts:
            for key, found in self._documents(part, None):
                if not isinstance(found, Exception):
                    return found.dtype
                first = first or f"{place_of(key, part)}: {reason_of(found)}"
        why = "it has none" if first is None else f"the first, {first}"
        raise FormatError("not one document of the source can be read", cause=why)

    def _tokens_in(self, tokens: NDArray[Any]) -> int:
        return len(tokens) + (self.packing.eos is not None)

    def _documents(self, part: Part, dtype: np.dtype[Any] | None) -> Iterator[tuple[str, NDArray[Any] | Exception]]:
        """Each document of a part: where it comes from, and its tokens, or what is wrong with it."""
        for item in self.inner.read(part):
            try:
                values = item.make()
            except (MemoryError, OptionError):
                raise
            except Exception as error:
                yield item.key, error
                continue
            if self.packing.field not in values:
                listed = ", ".join(map(repr, values))
                raise OptionError(f"there is no field {self.packing.field!r} to pack", remedy=f"There are {listed}.")
            batch = {"": values[self.packing.field]}
            if item.count is None:
                yield item.key, self._checked(batch[""], dtype)
            for index in range(item.count or 0):
                yield key_of(item, index), self._checked(sample_of(batch, index)[""], dtype)

    def _checked(self, value: Any, dtype: np.dtype[Any] | None) -> NDArray[Any] | Exception:
        packed = isinstance(value, bytes)
        if packed and self.packing.dtype is not None:
            kind = np.dtype(self.packing.dtype).newbyteorder("<")
            if len(value) % kind.itemsize:
                return SchemaError(f"{len(value)} bytes are no tokens of type {kind}", field=self.packing.field)
            value = np.frombuffer(value, kind)
        tokens = np.asarray(value)
        if tokens.ndim == 1 and tokens.dtype == dtype:
            return tokens
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            typed = {"field": self.packing.field, "length": self.packing.length, "dtype": "int64"}
            are = "bytes" if packed else f"{tokens.dtype!s:.50} of shape {tokens.shape}"
            return SchemaError(
                f"tokens are one-dimensional whole numbers, but these are {are}",
                field=self.packing.field,
                remedy=f"If these bytes are numbers, say of which type: `pack={typed}`, say." if packed else None,
            )
        tokens = tokens.astype(tokens.dtype.newbyteorder("="), copy=False)
        if dtype is not None and tokens.dtype != dtype:
            return SchemaError(f"tokens are {tokens.dtype}, those before {dtype}", field=self.packing.field)
        return tokens


class _Cutter:
    """Cuts documents, as they come, into blocks, and gives several blocks at once."""

    def __init__(self, packing: Packing, run: _PackedRun) -> None:
        self._packing, self._most = packing, max(_BATCH_TOKENS // packing.length, 1)
        self._skip, self._number, self.left = run.skip, run.first, run.blocks
        self._after = np.array([] if packing.eos is None else [packing.eos], run.dtype)
        self._pieces: list[NDArray[Any]] = []
        self._starts: list[int] = []
        self._total = 0

    def add(self, document: NDArray[Any]) -> Iterator[Item]:
        """Cut a document, which may be overwritten then; what comes are batches of whole blocks."""
        if self.left:
            self._put(np.concatenate([document, self._after])[self._skip :])
            self._skip = max(self._skip - len(document) - len(self._after), 0)
        while self.left and self._total >= (count := min(self._most, self.left)) * self._packing.length:
            yield self._cut(count)

    def _put(self, piece: NDArray[Any]) -> None:
        if len(piece):
            self._pieces.append(piece)
            self._starts.append(self._total)
            self._total += len(piece)

    def close(self) -> Iterator[Item]:
        """Yield the last blocks, the very last one padded if a pad token is given."""
        length, pad = self._packing.length, self._packing.pad
        if self.left and pad is not None:
            self._put(np.full(-self._total % length, pad, self._after.dtype))
        if self.left:
            yield self._cut(self.left)

    def _cut(self, count: int) -> Item:
        length = self._packing.length
        row = self._pieces[0] if len(self._pieces) == 1 else np.concatenate(self._pieces)
        size, starts = count * length, np.array(self._starts)
        edges = np.union1d(starts[starts < size], np.arange(0, size, length))
        ends = np.cumsum(np.bincount(edges // length))
        batch = {
            self._packing.field: row[:size].reshape(count, length),
            _EDGES: (
                np.insert(edges % length, ends, length).astype(np.int32),
                np.concatenate([[0], ends + np.arange(1, count + 1)]),
            ),
        }
        self._pieces, self._total = [row[size:]], self._total - size
        self._starts = [0, *(starts[starts > size] - size).tolist()]
        self._number, first = self._number + count, self._number
        self.left -= count
        return Item(f"blocks {first} to {self._number - 1}", partial(dict, batch), count)
