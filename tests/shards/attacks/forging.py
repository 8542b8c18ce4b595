"""Headers and indexes that are changed, and are well-formed but for that.

Attacks are numbered for good: a number that is missing was one of the same branch as another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import NamedTuple

import pytest

from gdsload.errors import FormatError
from gdsload.shards.format.header import PREFIX_BYTES, parse_header
from gdsload.shards.format.index import Index, IndexEntry, parse_index
from gdsload.shards.format.layout import ShardLayout, align_up
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.shard import Shard, read_shard
from gdsload.shards.format.stored import StoredSchema
from tests.shards.format.shard_files import SHA

FILE = "hostile"
Change = Callable[[dict], object]


class Attack(NamedTuple):
    """A change of a good header or index, and the complaint that must follow."""

    tries: str
    change: Change
    says: str
    field: str | None = None

    def on_shard(self, tree: dict) -> FormatError:
        """The error of a shard with this header, which has the words that must follow the attack."""
        with pytest.raises(FormatError, match=self.says) as caught:
            read(tree)
        if self.field is not None:
            assert self.field in {problem.field for problem in caught.value.problems}
        assert len(str(caught.value)) < 5000
        return caught.value

    def on_index(self, raw: bytes) -> FormatError:
        """The error of an index, whose problems are of the whole of it."""
        with pytest.raises(FormatError, match=self.says) as caught:
            parse_index(raw, FILE)
        assert {(problem.file, problem.offset) for problem in caught.value.problems} == {(FILE, 0)}
        assert len(str(caught.value)) < 2000
        return caught.value


def tree_of(layout: ShardLayout) -> dict:
    """The JSON of a good shard's header."""
    return json.loads(layout.header()[PREFIX_BYTES:])


def read(tree: dict, *, alignment: int = 4096) -> Shard:
    """The reader's result for a shard with this header, in a file that ends with the last tensor."""
    text = json.dumps(tree).encode()
    length = align_up(PREFIX_BYTES + len(text), alignment) - PREFIX_BYTES
    raw = length.to_bytes(PREFIX_BYTES, "little") + text.ljust(length)
    ends = [entry["data_offsets"][1] for name, entry in tree.items() if name != "__metadata__"]
    return read_shard(parse_header(raw, len(raw) + max(ends, default=0), FILE), FILE)


def inside(key: str, change_it: Change) -> Change:
    """Change the JSON inside a metadata text."""

    def change(tree: dict) -> None:
        inner = json.loads(tree["__metadata__"][key])
        change_it(inner)
        tree["__metadata__"][key] = json.dumps(inner)

    return change


def version(text: str) -> Change:
    """Say another version of the format."""
    return lambda tree: tree["__metadata__"].update({"gdsload.version": text})


def forged(tree: dict, key: str = "sha256") -> bytes:
    """The index with a digest that is right, so that it is not what complains: of all of it, or of its metadata."""
    covered = {name: value for name, value in tree.items() if name != key} if key == "sha256" else tree["metadata"]
    try:
        text = json.dumps(covered, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        text = b""
    return json.dumps({**tree, key: hashlib.sha256(text).hexdigest()}).encode()


# Version 2, of packed columns, and version 3, of images.
PACKED_FIELDS = Schema({
    "a": Field("int32"), "b": Field("bool"), "c": Field("float64", (2,)), "wide": Field("uint8", (100,)),
    "none": Field("int8", (0,)), "r": Field("int8", (None,)), "text": "str",
})  # fmt: skip
SHARDS = (IndexEntry("0.safetensors", 5, 8192, SHA),)
PACKED_STORED = StoredSchema(PACKED_FIELDS, (("c", "a"), ("b",)))
PACKED_LAYOUT = ShardLayout(PACKED_STORED, 5, {"r": 7, "text": 30}, {"r": "r", "text": "text"})
PACKED_INDEX = Index(PACKED_STORED, SHARDS)
IMAGES = Schema({"i": Field("image", codecs=["jpeg", "png"]), "a": Field("int32"), "b": Field("bool")})
IMAGE_LAYOUT = ShardLayout(StoredSchema(IMAGES, (("a", "b"),)), 5, {"i": 70}, {"i": "i"})
IMAGE_INDEX = Index(IMAGE_LAYOUT.stored, SHARDS)


def packed(value: object) -> Change:
    return lambda tree: tree.update(packed=value)


def codecs(value: object) -> Change:
    return lambda fields: fields["i"].update(codecs=value)


# read_packed: the same in a shard and in an index.
PACKED = {
    "P001": Attack("no columns", packed([]), r"packed is \[\], no list of at least one column"),
    "P002": Attack("a column of no fields", packed([["a"], []]), r"packed\[1\] is \[\], no list of at least one field"),
    "P003": Attack("a name for a column", packed(["a"]), r"packed\[0\] is 'a', no list of at least one field"),
    "P004": Attack("an object", packed({"0": ["a"]}), "packed is {'0': \\['a'\\]}, no list"),
    "P010": Attack("a field that is not there", packed([["a", "z"]]), r"packed\[0\]: the schema has no field 'z'"),
    "P012": Attack("a list for a name", packed([["a", ["b"]]]), r"packed\[0\]: the schema has no field \['b'\]"),
    "P015": Attack("a name of a megabyte", packed([["a" * 10**6]]), r"packed\[0\]: the schema has no field 'aaa"),
    "P020": Attack("a field twice in a row", packed([["a", "b", "a"]]), r"packed\[0\]: the field 'a' is packed twice"),
    "P021": Attack("a field in two columns", packed([["a"], ["b", "a"]]), r"packed\[1\]: .*'a' is packed twice"),
    "P030": Attack("a ragged field", packed([["a", "r"]]), r"packed\[0\]: the field 'r' is not fixed"),
    "P032": Attack("a field of no bytes", packed([["none"]]), r"packed\[0\]: the field 'none' has no bytes"),
}


# Changes of the fields: the same in a shard and in an index.
IMAGE_FIELDS = {
    "E002": Attack("one that there is not", codecs(["gif"]), r"the codecs of encoded images are \['gif'\]"),
    "E003": Attack("another order", codecs(["png", "jpeg"]), "is to be written"),
    "E005": Attack("a text", codecs("jpeg"), "describes no field"),
    "E010": Attack("a megabyte", codecs(["a" * 10**6]), "the codecs of encoded images are"),
    "E012": Attack("no word of them", lambda fields: fields["i"].pop("codecs"), "is to be written"),
    "E013": Attack("a shape", lambda fields: fields["i"].update(shape=[3]), "has no shape"),
    "E014": Attack("an empty shape", lambda fields: fields["i"].update(shape=[]), "is to be written"),
    "E015": Attack("codecs of a number", lambda fields: fields["a"].update(codecs=["png"]), "codecs are those of"),
    "E016": Attack("no codecs of a number", lambda fields: fields["a"].update(codecs=[]), "codecs are those of"),
    "E017": Attack("bytes", lambda fields: fields.update(i={"dtype": "bytes"}), "fields like these are version 2"),
}
