"""LitData chunks, read without their library, which unpickles what an index tells it to."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import open_file
from gdsload.conversion.reasons import in_words, reading
from gdsload.conversion.row_source import filled, run_parts
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.arrow_columns import table_items
from gdsload.conversion.sources.arrow_types import TableForm
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
_TOKENS = "TokensLoader"
_KNOWN = {"compression": (None,), "encryption": (None,), "item_loader": ("PyTreeLoader", _TOKENS)}
_TABLE_FOLLOWS = b"LDARW01\0"
_BY_NAME = ("builtins.dict", "collections.OrderedDict")
_BY_NUMBER = ("builtins.list", "builtins.tuple")
# The numbers that stand for element types, of tensors and of arrays; what is not in them is refused.
_TENSORS = {
    0: "float32", 1: "float32", 2: "float64", 3: "float64", 4: "complex64", 5: "complex64", 6: "complex128",
    7: "complex128", 8: "float16", 9: "float16", 11: "uint8", 12: "int8", 13: "int16", 14: "int16", 15: "int32",
    16: "int32", 17: "int64", 18: "int64", 19: "bool", 20: "uint16",
}  # fmt: skip
_ARRAYS = {
    0: "int8", 1: "int16", 2: "int32", 3: "int64", 4: "uint8", 5: "uint16", 6: "uint32", 7: "uint64", 8: "float16",
    9: "float32", 10: "float64", 11: "complex64", 12: "complex128", 13: "bool",
}  # fmt: skip


class LitDataSource(ImageSource):
    """A dataset that LitData's `optimize` wrote, neither packed nor encrypted.

    The keys of a sample are fields, those of dictionaries in it joined by dots; values of a list are ``"0"``, ``"1"``
    and so on, and a sample that is one value is the field ``"0"``; what was written for `TokensLoader` is ``tokens``.
    Numbers, tensors, arrays, texts and bytes are taken as they are, images as uint8 ``[channels, height, width]``,
    turned as their EXIF data say. Plain rows, which LitData stores as Arrow tables, become fields as those of Parquet
    files do, and need pyarrow. Pickles are refused.

    Args:
        path: the folder with `index.json`.
    """

    kind = "LitData chunks"
    threads = False

    def all_files(self) -> list[str]:
        folder = self.files.folder(_INDEX)
        return [self.files.inside(folder, name) for name in (_INDEX, *(one.name for one in self._index().chunks))]

    def parts(self, target_bytes: int) -> list[Part]:
        chunks = self._index().chunks
        sizes, samples = [chunk.nbytes for chunk in chunks], [chunk.samples for chunk in chunks]
        return filled(run_parts("chunks", sizes, target_bytes, samples=samples), "sample", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        low, high = (int(edge) for edge in part.where)
        index, folder = self._index(self.form), self.files.folder(_INDEX)
        for chunk in index.chunks[low:high]:
            path = self.files.inside(folder, chunk.name)
            with reading("the chunk cannot be read", path, OSError, ValueError), open_file(path) as file:
                found = os.fstat(file.fileno()).st_size
                if found != chunk.nbytes:
                    raise ValueError(f"it has {found} bytes, but the index says {chunk.nbytes}")
                if (table := _table(file, found)) is not None:
                    yield from _rows(table, chunk, path)
                    continue
                for number, content in enumerate(sample_bytes(file, chunk.samples, chunk.nbytes)):
                    make = partial(index.sample, content, f"{path}, sample {number}")
                    yield Item(f"{chunk.name}, sample {number}", make)

    def _index(self, look: ImageForm | None = None) -> _Index:
        path = self.files.inside(self.files.folder(_INDEX), _INDEX)
        with reading("the index is none of LitData chunks", path), open_file(path) as file:
            tree = json.load(file)
            config = tree["config"]
            for name, known in _KNOWN.items():
                if config.get(name) not in known:
                    raise FormatError(
                        f"its chunks have {name} {config.get(name)!r:.50}, which is not supported",
                        file=path,
                        remedy="Write it again with the default item loader, neither packed nor encrypted.",
                    )
            version, spec = json.loads(config["data_spec"])
            bare = config["item_loader"] == _TOKENS
            names = ["tokens"] if bare else list(_names(spec))
            if version != 1 or len(set(names)) < len(names):
                raise ValueError("its samples are described in a way that is not known")
            formats = zip(names, config["data_format"], strict=True)
            decoders = {name: _decoder(how, name, look or self.look, path) for name, how in formats}
            return _Index([_Chunk.of(chunk) for chunk in tree["chunks"]], decoders, bare)


@dataclass(frozen=True, slots=True)
class _Index:
    """The chunks, what decodes each field, and whether samples are values without lengths before them."""

    chunks: list[_Chunk]
    decoders: dict[str, Callable[[bytes], Any]]
    bare: bool

    def sample(self, content: bytes, where: str) -> dict[str, Any]:
        """A sample of its bytes."""
        values = [content] if self.bare else value_bytes(content, [0] * len(self.decoders), where)
        return decoded(dict(zip(self.decoders, values, strict=True)), self.decoders, where)


@dataclass(frozen=True, slots=True)
class _Chunk:
    name: str
    nbytes: int
    samples: int

    @classmethod
    def of(cls, tree: Any) -> _Chunk:
        """The chunk of an index; raises anything if it is damaged."""
        name, nbytes, samples = tree["filename"], tree["chunk_bytes"], tree["chunk_size"]
        if type(name) is not str or type(nbytes) is not int or type(samples) is not int or not 0 <= samples < 2**32:
            raise ValueError(f"a chunk is {tree!r:.100}")
        return cls(name, nbytes, samples)


def _decoder(how: str, field: str, look: ImageForm, file: str) -> Callable[[bytes], Any]:
    kind, _, detail = how.partition(":")
    where = f"{file}: {field}"
    found: dict[str, Callable[[bytes], Any]] = {
        "int": partial(scalar, np.dtype("int64")),
        "float": partial(scalar, np.dtype("float64")),
        "bool": partial(scalar, np.dtype("bool")),
        **dict.fromkeys(("str", "text"), partial(str, encoding="utf-8")),
        **dict.fromkeys(("bytes", "file"), bytes),
        "tensor": partial(_array, ">", _TENSORS),
        "numpy": partial(_array, "<", _ARRAYS),
        "no_header_tensor": partial(_vector, _TENSORS, detail),
        "no_header_numpy": partial(_vector, _ARRAYS, detail),
        **dict.fromkeys(("jpeg", "image"), partial(look.fields, field, where=where)),
        "pil": partial(raw_image, look=look, field=field, file=file),
    }
    if kind == "pickle":
        refuse_pickles(f"field {field!r}", file, "Write it again, with numbers, tensors, arrays, texts or bytes.")
    if kind == "json":
        return partial(_refused, where)
    if kind not in found:
        raise FormatError(f"field {field!r} is stored as {how!r:.50}, which no field can have", file=file)
    return found[kind]


def _names(spec: Any, prefix: str = "") -> Iterator[str]:
    """The names of the values of a sample, in the order in which they are stored."""
    kind, inner = spec["type"], spec["children_spec"]
    if kind is None:
        yield prefix.removesuffix(".") or "0"
        return
    if kind not in _BY_NAME + _BY_NUMBER:
        raise ValueError(f"samples are {kind!r:.50}, not dictionaries, lists or tuples")
    names = json.loads(spec["context"]) if kind in _BY_NAME else range(len(inner))
    for name, child in zip(names, inner, strict=True):
        yield from _names(child, f"{prefix}{name}.")


def _table(file: IO[bytes], nbytes: int) -> bytes | None:
    """The Arrow table in which a chunk of plain rows has them, not as samples: at its end, before its length."""
    file.seek(max(nbytes - 12, 0))
    end = file.read()
    file.seek(0)
    if not end.endswith(_TABLE_FOLLOWS):
        return None
    length = int.from_bytes(end[:4], "little")
    if length > nbytes - 12:
        raise ValueError(f"its table cannot have {length} bytes")
    file.seek(nbytes - 12 - length)
    return exactly(file, length)


def _rows(table: bytes, chunk: _Chunk, path: str) -> Iterator[Item]:
    arrow, ipc = need("pyarrow", file=path), need("pyarrow.ipc", file=path)
    row = 0
    try:
        opened = ipc.open_file(arrow.py_buffer(table))
        leaves = TableForm().leaves(opened.schema, path)
        for number in range(opened.num_record_batches):
            batch = opened.get_batch(number)
            for item in table_items(batch, leaves, row, path):
                yield Item(f"{chunk.name}, {item.key}", item.make, item.count)
            row += batch.num_rows
    except arrow.ArrowException as error:
        raise ValueError(in_words(error)) from None
    if row != chunk.samples:
        raise ValueError(f"its table has {row} rows, but the index says {chunk.samples}")


def _refused(where: str, _content: bytes) -> Any:
    # Such fields have values only in chunks without a table, which are written where pyarrow is missing.
    raise FormatError("it is stored in a form of LitData's own", file=where, remedy="Write it again, with pyarrow.")


def _array(order: str, types: dict[int, str], content: bytes) -> NDArray[Any]:
    """An array that says itself what it is: element type, number of dimensions and sizes, uint32."""
    try:
        kind, dimensions = struct.unpack_from(f"{order}II", content)
        shape = struct.unpack_from(f"{order}{dimensions}I", content, 8)
    except struct.error:
        raise ValueError("it ends too early") from None
    return shaped(content, 8 + 4 * dimensions, _dtype(types, kind), shape)


def _vector(types: dict[int, str], kind: str, content: bytes) -> NDArray[Any]:
    dtype = _dtype(types, int(kind))
    return shaped(content, 0, dtype, (len(content) // dtype.itemsize,))


def _dtype(types: dict[int, str], number: int) -> np.dtype[Any]:
    if number not in types:
        raise ValueError(f"it is of element type {number}, which is not supported")
    return np.dtype(types[number])
