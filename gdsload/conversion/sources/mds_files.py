"""MDS datasets, which MosaicML's streaming writes: an index and shards, packed or not."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from gdsload.conversion.input_files import open_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import check_fields, filled, run_parts
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.binary_samples import (
    decoded,
    raw_image,
    refuse_pickles,
    sample_bytes,
    scalar,
    shaped,
    value_bytes,
)
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageForm, ImageSource
from gdsload.conversion.sources.streams import exactly
from gdsload.errors import FormatError

_INDEX = "index.json"
_MAX_SHARD_BYTES = 2**32  # places in it are uint32
_PIECE_BYTES = 2**22
_BY_ARROW = {"gz": "gzip", "bz2": "bz2", "zstd": "zstd", "br": "brotli"}
_XXHASH = ("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128")
_SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
# The names of element types in arrays that name theirs.
_TYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip


class MdsSource(FieldChoice, ImageSource):
    """A dataset that `streaming.MDSWriter` wrote.

    Numbers, arrays, texts and bytes become fields as they are, ``json`` and ``str_decimal`` a text, images uint8
    ``[channels, height, width]``, turned as their EXIF data say. Columns stored as pickles are refused. Shards may be
    packed by gzip, bzip2, Zstandard or Brotli, which pyarrow unpacks; Snappy is refused. Hashes in the index are
    compared: those that `hashlib` has, and those of xxHash.

    Args:
        path: the folder with `index.json`.
    """

    kind = "MDS shards"
    threads = False

    def all_files(self) -> list[str]:
        return [self._index(), *(self._place(shard)[0] for shard in self._shards())]

    def parts(self, target_bytes: int) -> list[Part]:
        shards = self._shards()
        sizes, samples = [shard.raw.nbytes for shard in shards], [shard.samples for shard in shards]
        parts = filled(run_parts("shards", sizes, target_bytes, samples=samples), "sample", self.path)
        for shard in shards:
            self._decoders(shard)
        return parts

    def read(self, part: Part) -> Iterator[Item]:
        low, high = (int(edge) for edge in part.where)
        for shard in self._shards()[low:high]:
            decoders = self._decoders(shard)
            with self._opened(shard) as (file, opened):
                for number, content in enumerate(sample_bytes(opened, shard.samples, shard.raw.nbytes)):
                    key = f"{shard.raw.name}, sample {number}"
                    yield Item(key, partial(_sample, content, shard.columns, decoders, f"{file}, sample {number}"))

    def _decoders(self, shard: _Shard) -> dict[str, Callable[[bytes], Any]]:
        file = os.path.join(self.path, shard.raw.name)
        wanted = check_fields(self.fields, shard.columns, self.path)
        return {name: decoder(shard.columns[name][0], name, self.form, file) for name in wanted}

    def _index(self) -> str:
        return self.files.inside(self.files.folder(_INDEX), _INDEX)

    def _place(self, shard: _Shard) -> tuple[str, _File]:
        """The path of a shard's file, the packed one if there is no other, and what the index says of it."""
        folder, found = self.files.folder(_INDEX), shard.raw
        if shard.packed is not None and not os.path.lexists(os.path.join(folder, found.name)):
            found = shard.packed
        return self.files.inside(folder, found.name), found

    @contextmanager
    def _opened(self, shard: _Shard) -> Iterator[tuple[str, IO[bytes]]]:
        """A shard, unpacked; whatever is wrong with it is a FormatError."""
        path, expected = self._place(shard)
        errors = OSError, ValueError, TypeError
        with (
            reading("the shard cannot be read", path, *errors, remedy="Copy it again, whole."),
            open_file(path) as file,
        ):
            found = os.fstat(file.fileno()).st_size
            if found != expected.nbytes:
                raise ValueError(f"it has {found} bytes, but the index says {expected.nbytes}")
            expected.compare(file)
            if expected is not shard.raw:
                file = io.BytesIO(_unpacked(shard, file, path))  # noqa: PLW2901 - what was packed in it
                shard.raw.compare(file)
            yield path, file

    def _shards(self) -> list[_Shard]:
        path = self._index()
        with reading("the index is none of MDS shards", path), open_file(path) as file:
            tree = json.load(file)
            if tree["version"] != 2:
                raise ValueError(f"version {tree['version']!r:.50} is not known, but 2 is")
            return [_Shard.of(shard) for shard in tree["shards"]]


@dataclass(frozen=True, slots=True)
class _File:
    """A file's name below the dataset's folder, its length, and its hashes in hexadecimal, by algorithm."""

    name: str
    nbytes: int
    hashes: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, tree: Any) -> _File:
        hashes = tuple((_text(name), _text(value)) for name, value in (tree.get("hashes") or {}).items())
        return cls(_text(tree["basename"]), _count(tree["bytes"]), hashes)

    def compare(self, file: IO[bytes]) -> None:
        """Compare the hashes of a file's bytes with those that are known of it; ValueError if one differs."""
        hashers = {name: _new_hash(name) for name, _ in self.hashes}
        while hashers and (piece := file.read(_PIECE_BYTES)):
            for hasher in hashers.values():
                hasher.update(piece)
        for name, wanted in self.hashes:
            if (found := hashers[name].hexdigest()) != wanted.lower():
                raise ValueError(f"its {name} is {found}, but the index says {wanted[:200]}")
        file.seek(0)


@dataclass(frozen=True, slots=True)
class _Shard:
    """A shard as the index has it: what it is unpacked, and what it is packed, if it is.

    Of each column it has the encoding, and the bytes of a value; 0 if they stand before each.
    """

    raw: _File
    packed: _File | None
    packer: str
    samples: int
    columns: dict[str, tuple[str, int]]

    @classmethod
    def of(cls, tree: Any) -> _Shard:
        """The shard of an index; raises anything if it is damaged."""
        if tree["format"] != "mds" or tree["version"] != 2:
            raise ValueError(f"a shard is of format {tree['format']!r:.50}, version {tree['version']!r:.50}")
        listed = zip(tree["column_names"], tree["column_encodings"], tree["column_sizes"], strict=True)
        columns = {_text(name): (_text(how), _count(size or 0)) for name, how, size in listed}
        if len(columns) < len(tree["column_names"]):
            raise ValueError("two columns have one name")
        packed = _File.of(tree["zip_data"]) if tree.get("zip_data") else None
        packer = _text(tree.get("compression") or "").partition(":")[0]
        return cls(_File.of(tree["raw_data"]), packed, packer, _count(tree["samples"]), columns)


def _new_hash(name: str) -> Any:
    """The hash of a name, as `hashlib` or `xxhash` has it; ValueError if neither has it."""
    if name in _XXHASH:
        return getattr(xxhash, "xxh3_128" if name == "xxh128" else name)()
    return hashlib.new(name, usedforsecurity=False)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.50} is no text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MAX_SHARD_BYTES:
        raise ValueError(f"{value!r:.50} is no number from 0 to 2**32 - 1")
    return value


def _unpacked(shard: _Shard, file: IO[bytes], path: str) -> bytes:
    """A shard's bytes: exactly as many as the index says, and never more than that in memory."""
    nbytes = shard.raw.nbytes
    if shard.packer not in _BY_ARROW:
        raise ValueError(f"it is packed with {shard.packer!r:.50}, which is not read")
    stream = need("pyarrow", file=path).CompressedInputStream(file, _BY_ARROW[shard.packer])
    found = cast("bytes", stream.read(nbytes + 1))
    if len(found) != nbytes:
        raise ValueError(f"it does not unpack to the {nbytes} bytes that the index says")
    return found


def _sample(
    content: bytes, columns: dict[str, tuple[str, int]], decoders: dict[str, Callable[[bytes], Any]], where: str
) -> dict[str, Any]:
    values = value_bytes(content, [nbytes for _, nbytes in columns.values()], where)
    return decoded(dict(zip(columns, values, strict=True)), decoders, where)


def decoder(encoding: str, field: str, look: ImageForm, file: str) -> Callable[[bytes], Any]:
    """A function that decodes bytes to a value, or an image's fields; damaged ones raise `ValueError` or numpy's error.

    The encoding is that of the index: ``"int"``, ``"ndarray:float32:3,4"``.

    Raises:
        FormatError: if there is no such encoding, or it is one that is never read.
    """
    name, _, details = encoding.partition(":")
    if name == "pkl":
        remedy = "Leave it out: `fields=[...]`, or write it again with another encoding."
        refuse_pickles(f"column {field!r}", file, remedy)
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
        **dict.fromkeys(("jpeg", "png"), partial(look.fields, field, where=f"{file}: {field}")),
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
        kind = _TYPES.get(exactly(stream, 1)[0])
        if kind is None:
            raise ValueError("it is of an unknown element type")
    if shape is None:
        packed = exactly(stream, 1)[0]
        dimensions, wide = packed >> 2, 1 << (packed & 3)
        shape = tuple(np.frombuffer(exactly(stream, dimensions * wide), f"<u{wide}").tolist())
    if 0 in shape:
        raise ValueError("an array of no values is none")
    return shaped(content, stream.tell(), np.dtype(kind), shape)
