"""The reader's side finds all that the writer's side lays out: random schemas, sizes and bytes."""

import json
import struct
from dataclasses import replace
from itertools import pairwise

import pytest
import safetensors
from hypothesis import given, settings

from gdsload.shards.format.checksum import ALGORITHM, BLOCK_BYTES, DIGEST_CHARS
from gdsload.shards.format.header import PREFIX_BYTES, parse_header
from gdsload.shards.format.index import Index
from gdsload.shards.format.layout import ShardLayout
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.shard import ALIGNMENT, OFFSETS_PREFIX, PADDING_PREFIX, is_gdsload
from gdsload.shards.format.stored import StoredSchema
from tests.shards.format.shard_files import (
    FILE,
    SMALL,
    digests_of,
    file_of,
    header_of,
    layouts,
    random_payloads,
    shard_of,
    stored_schemas,
    tree_of,
)

SETTINGS = settings(derandomize=True, max_examples=80)


@SETTINGS
@given(layouts())
def test_shard_reads_back_what_was_laid_out(layout):
    payloads = random_payloads(layout)
    raw = file_of(layout, payloads)
    shard = shard_of(raw)

    assert is_gdsload(shard.header)
    assert (layout.stored, layout.samples) == (shard.stored, shard.samples)
    assert digests_of(payloads) == shard.digests
    assert list(layout.stored.columns) == list(shard.columns)
    for name, column in shard.columns.items():
        field = layout.stored.columns[name]
        assert (layout.rows[name] if field.ragged else layout.samples) == column.rows
        assert payloads[name] == raw[column.begin : column.begin + column.rows * field.row_bytes]
        if field.ragged:
            offsets = payloads[OFFSETS_PREFIX + layout.offsets[name]]
            assert offsets == raw[column.offsets_begin : column.offsets_begin + (layout.samples + 1) * 8]
        else:
            assert column.offsets_begin is None


@SETTINGS
@given(layouts())
def test_safetensors_reads_the_same_bytes(layout):
    payloads = random_payloads(layout)
    raw = file_of(layout, payloads)
    theirs, ours = dict(safetensors.deserialize(raw)), header_of(raw).tensors
    assert set(theirs) == set(ours)
    for name, entry in ours.items():
        assert entry.dtype.code == theirs[name]["dtype"]
        assert list(entry.shape) == theirs[name]["shape"]
        assert raw[entry.begin : entry.end] == bytes(theirs[name]["data"])
    assert payloads == {name: bytes(theirs[name]["data"]) for name in payloads}
    for name, field in layout.stored.schema.items():  # texts and images are rows of bytes, and packed fields are in one
        if field.is_string:
            assert (theirs[name]["dtype"], theirs[name]["shape"]) == ("U8", [layout.rows[name]])
    for number, names in enumerate(layout.stored.packed):
        rows = theirs[f"gdsload:rows:{number}"]
        assert (rows["dtype"], rows["shape"][0]) == ("U8", layout.samples)
        assert not theirs.keys() & set(names)


@SETTINGS
@given(layouts())
def test_header_tensors_and_file_are_whole_pages(layout):
    """The header is padded by blanks, and tensors by zeros, of less than a page each."""
    raw = file_of(layout, random_payloads(layout))
    header = header_of(raw)
    assert len(layout.header()) == header.data_start, "it is as long without digests"
    assert len(raw) % ALIGNMENT == header.data_start % ALIGNMENT == 0
    assert header.data_start == PREFIX_BYTES + int.from_bytes(raw[:PREFIX_BYTES], "little")
    text = raw[PREFIX_BYTES : header.data_start].rstrip(b" ")
    assert (text[:1], text[-1:]) == (b"{", b"}")
    assert header.data_start - PREFIX_BYTES - len(text) < ALIGNMENT
    tensors = [entry for entry in header.tensors.values() if not entry.name.startswith(PADDING_PREFIX)]
    assert [0] * len(tensors) == [entry.begin % ALIGNMENT for entry in tensors]
    assert layout.data_offsets() == {entry.name: entry.begin - header.data_start for entry in tensors}
    for entry in header.tensors.values():
        if entry.name.startswith(PADDING_PREFIX):
            assert (1, entry.dtype.code) == (len(entry.shape), "U8")
            assert 0 < entry.shape[0] < ALIGNMENT
            assert not any(raw[entry.begin : entry.end])


@SETTINGS
@given(layouts())
def test_version_is_the_lowest_that_says_it_all(layout):
    stored = layout.stored
    version = 3 if any(field.kind == "image" for field in stored.schema.values()) else 2 if stored.packed else 1
    metadata = tree_of(layout.header())["__metadata__"]
    assert metadata["gdsload.version"] == str(version)
    assert json.loads(Index(stored, ()).to_bytes())["version"] == version
    tree = json.loads(metadata["gdsload.schema"])
    assert list(tree) == ["fields", "offsets", *(["packed"] if stored.packed else [])]


@SETTINGS
@given(layouts())
def test_images_are_laid_out_as_bytes_are(layout):
    schema, packed = layout.stored.schema, layout.stored.packed
    fields = {name: Field("bytes") if field.kind == "image" else field for name, field in schema.items()}
    plain = replace(layout, stored=StoredSchema(Schema(fields), packed))
    assert layout.tensors() == plain.tensors()
    assert layout.data_offsets() == plain.data_offsets()


@SETTINGS
@given(stored_schemas())
def test_schema_survives_json(stored):
    read = Schema.from_json(json.loads(json.dumps(stored.schema.to_json())))
    assert stored.schema == read
    assert hash(stored.schema) == hash(read)
    assert list(stored.schema) == list(read)


def test_metadata_of_a_shard():
    payloads = random_payloads(SMALL)
    metadata = tree_of(file_of(SMALL, payloads))["__metadata__"]
    assert {"gdsload.version", "gdsload.samples", "gdsload.schema", "gdsload.checksums"} == set(metadata)
    assert (metadata["gdsload.version"], metadata["gdsload.samples"]) == ("1", "5")
    schema = json.loads(metadata["gdsload.schema"])
    assert schema["offsets"] == {"tokens": "tokens", "mask": "tokens", "name": "name"}
    assert schema["fields"]["tokens"] == {"dtype": "int32", "shape": [None, 2]}
    assert schema["fields"]["name"] == {"dtype": "str"}
    checksums = json.loads(metadata["gdsload.checksums"])
    assert {"algorithm": ALGORITHM, "block_bytes": 262144, "digests": digests_of(payloads)} == checksums


def test_metadata_of_a_shard_with_packed_fields_and_images():
    schema = Schema({"x": Field("int32"), "i": Field("image", codecs=["png", "jpeg"]), "y": Field("int64")})
    tree = tree_of(ShardLayout(StoredSchema(schema, (("y", "x"),)), 3, {"i": 5}, {"i": "i"}).header())
    said = json.loads(tree.pop("__metadata__")["gdsload.schema"])
    assert said == {"fields": schema.to_json(), "offsets": {"i": "i"}, "packed": [["y", "x"]]}
    assert said["fields"]["i"] == {"dtype": "image", "codecs": ["jpeg", "png"]}
    assert tree["gdsload:rows:0"] == {"dtype": "U8", "shape": [3, 16], "data_offsets": [4096, 4144]}
    assert [name for name in tree if "pad" not in name] == ["gdsload:offsets:i", "gdsload:rows:0", "i"]


def test_ragged_fields_may_share_offsets():
    shard = shard_of(file_of(SMALL, random_payloads(SMALL)))
    assert shard.columns["tokens"].offsets_begin == shard.columns["mask"].offsets_begin
    assert shard.columns["tokens"].offsets_begin != shard.columns["name"].offsets_begin
    names = [name for name in shard.header.tensors if name.startswith(OFFSETS_PREFIX)]
    assert names == ["gdsload:offsets:tokens", "gdsload:offsets:name"]


def test_offsets_are_little_endian_rows():
    layout = ShardLayout(StoredSchema(Schema({"x": Field("int16", (None,))})), 2, {"x": 3}, {"x": "x"})
    payloads = {OFFSETS_PREFIX + "x": struct.pack("<3q", 0, 1, 3), "x": struct.pack("<3h", 7, 8, 9)}
    theirs = dict(safetensors.deserialize(file_of(layout, payloads)))
    rows = struct.unpack("<3q", theirs[OFFSETS_PREFIX + "x"]["data"])
    assert [list(struct.unpack("<3h", theirs["x"]["data"])[a:b]) for a, b in pairwise(rows)] == [[7], [8, 9]]


@pytest.mark.parametrize(("shape", "blocks"), [((0, 3), 0), ((), 1), ((BLOCK_BYTES // 2 + 1,), 2)])
def test_a_tensor_has_a_digest_for_each_block(shape, blocks):
    layout = ShardLayout(StoredSchema(Schema({"x": Field("uint8", shape)})), 3, {}, {})
    shard = shard_of(file_of(layout, random_payloads(layout)))
    assert len(shard.digests["x"]) == blocks * DIGEST_CHARS


def test_header_digest_changes_with_any_byte():
    raw = bytearray(SMALL.header())
    size = len(raw) + SMALL.data_bytes()
    first = parse_header(bytes(raw), size, FILE).sha256
    raw[-1:] = b"\n"
    assert first != parse_header(bytes(raw), size, FILE).sha256
