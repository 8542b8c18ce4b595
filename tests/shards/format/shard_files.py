"""Whole shards in memory, from a layout and back; and any schema, layout and index that a writer may make."""

from __future__ import annotations

import json
import random
from itertools import pairwise

from hypothesis import strategies as st

from gdsload.shards.format.checksum import block_digests
from gdsload.shards.format.dtypes import DTYPES
from gdsload.shards.format.header import PREFIX_BYTES, Header, header_bytes, parse_header
from gdsload.shards.format.image_header import IMAGE_CODECS
from gdsload.shards.format.index import Index, IndexEntry
from gdsload.shards.format.layout import ShardLayout
from gdsload.shards.format.schema import RESERVED_PREFIX, Field, Schema
from gdsload.shards.format.shard import Shard, read_shard
from gdsload.shards.format.stored import StoredSchema
from tests.shards.small_dataset import ODD_NAMES

# With what images of each codec begin.
SIGNATURES = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n", "webp": b"RIFF\1\2\3\4WEBP"}
FILE, SHA = "shard.safetensors", "0123456789abcdef" * 4


def digests_of(payloads: dict[str, bytes]) -> dict[str, str]:
    return {name: block_digests(memoryview(payload)) for name, payload in payloads.items()}


def random_payloads(layout: ShardLayout) -> dict[str, bytes]:
    generator = random.Random(0)
    return {name: generator.randbytes(nbytes) for name, (_, _, nbytes) in layout.tensors().items()}


def file_of(layout: ShardLayout, payloads: dict[str, bytes]) -> bytes:
    """A whole shard with these bytes in its tensors."""
    data = bytearray(layout.data_bytes())
    for name, begin in layout.data_offsets().items():
        data[begin : begin + len(payloads[name])] = payloads[name]
    return layout.header(digests_of(payloads)) + bytes(data)


def header_of(raw: bytes) -> Header:
    return parse_header(raw[: header_bytes(raw[:PREFIX_BYTES], len(raw), FILE)], len(raw), FILE)


def shard_of(raw: bytes) -> Shard:
    return read_shard(header_of(raw), FILE)


def tree_of(raw: bytes) -> dict:
    """The JSON of a header, with which a file begins."""
    return json.loads(raw[PREFIX_BYTES : PREFIX_BYTES + int.from_bytes(raw[:PREFIX_BYTES], "little")])


SMALL = ShardLayout(
    StoredSchema(Schema({
        "x": Field("float32", (3,)), "tokens": Field("int32", (None, 2)), "mask": Field("bool", (None,)), "name": "str",
    })),
    5, {"tokens": 7, "mask": 7, "name": 30}, {"tokens": "tokens", "mask": "tokens", "name": "name"},
)  # fmt: skip

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = TEXTS.filter(lambda name: name not in ("", "__metadata__") and not name.startswith(RESERVED_PREFIX))
FILES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\\\0"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..")
)


@st.composite
def fields(draw: st.DrawFn) -> Field:
    kind = draw(st.sampled_from(["fixed", "fixed", "fixed", "ragged", "str", "bytes", "image"]))
    if kind == "image":
        return Field(kind, codecs=draw(st.sets(st.sampled_from(IMAGE_CODECS), min_size=1)))
    if kind in ("str", "bytes"):
        return Field(kind)
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    return Field(draw(st.sampled_from(sorted(DTYPES))), (None, *shape) if kind == "ragged" else tuple(shape))


@st.composite
def stored_schemas(draw: st.DrawFn) -> StoredSchema:
    """Any fields, any of those that can be packed in any order in up to three columns."""
    names = draw(st.lists(NAMES | st.sampled_from(ODD_NAMES), min_size=1, max_size=6, unique=True))
    schema = Schema({name: draw(fields()) for name in names})
    able = [name for name, field in schema.items() if not field.ragged and field.row_bytes]
    chosen = draw(st.lists(st.sampled_from(able), unique=True)) if able else []
    edges = [0, *sorted(draw(st.sets(st.integers(1, max(len(chosen) - 1, 1)), max_size=2))), len(chosen)]
    columns = [tuple(chosen[low:high]) for low, high in pairwise(edges)]
    return StoredSchema(schema, tuple(names for names in columns if names))


@st.composite
def layouts(draw: st.DrawFn) -> ShardLayout:
    """Any layout a writer may ask for; ragged fields of equal length may share offsets."""
    stored = draw(stored_schemas())
    rows: dict[str, int] = {}
    offsets: dict[str, str] = {}
    for name in (name for name, field in stored.schema.items() if field.ragged):
        owner = draw(st.sampled_from([name, *dict.fromkeys(offsets.values())]))
        offsets[name] = owner
        rows[name] = rows[owner] if owner in rows else draw(st.integers(0, 40) | st.integers(4000, 9000))
    samples = draw(st.integers(1, 30) | st.integers(500, 2000))
    return ShardLayout(stored, samples, rows, offsets)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXTS
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def deep(levels: int) -> object:
    """A list in an object in a list, and so on."""
    value: object = 1
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


METADATA = st.dictionaries(TEXTS, VALUES, max_size=3)
SHARDS = st.lists(
    st.builds(IndexEntry, FILES, st.integers(1, 2**60), st.integers(1, 2**63 - 1), st.just(SHA)),
    max_size=4, unique_by=lambda shard: shard.file,
)  # fmt: skip


@st.composite
def indexes(draw: st.DrawFn) -> Index:
    return Index(draw(stored_schemas()), tuple(draw(SHARDS)), draw(METADATA))
