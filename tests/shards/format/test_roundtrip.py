"""What the writer's side lays out, the reader's side finds again: random schemas, sizes and bytes."""

from __future__ import annotations

import json
import struct
from itertools import pairwise

import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.shards.format.checksum import ALGORITHM, BLOCK_BYTES, DIGEST_CHARS, block_count
from gdsload.shards.format.dtypes import DTYPES
from gdsload.shards.format.header import PREFIX_BYTES, parse_header
from gdsload.shards.format.layout import ShardLayout, align_up
from gdsload.shards.format.schema import RESERVED_PREFIX, Field, Schema
from gdsload.shards.format.shard import ALIGNMENT, OFFSETS_PREFIX, PADDING_PREFIX, is_gdsload
from tests.shards.format.shard_files import (
    FILE,
    digests_of,
    file_of,
    header_of,
    random_payloads,
    shard_of,
    tree_of,
)
from tests.shards.small_dataset import ODD_NAMES

SETTINGS = settings(derandomize=True, deadline=None, max_examples=80)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__" and not name.startswith(RESERVED_PREFIX)
)
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    names = draw(st.lists(NAMES | st.sampled_from(ODD_NAMES), min_size=1, max_size=5, unique=True))
    fields = {}
    for name in names:
        kind = draw(st.sampled_from(["fixed", "fixed", "ragged", "str", "bytes"]))
        if kind in ("str", "bytes"):
            fields[name] = Field(kind)
        else:
            shape = draw(SHAPES)
            code = draw(st.sampled_from(sorted(DTYPES)))
            fields[name] = Field(code, (None, *shape) if kind == "ragged" else tuple(shape))
    return Schema(fields)


@st.composite
def layouts(draw: st.DrawFn) -> ShardLayout:
    """Any layout a writer may ask for; ragged fields of equal length may share offsets."""
    schema = draw(schemas())
    rows: dict[str, int] = {}
    offsets: dict[str, str] = {}
    for name in (name for name, field in schema.items() if field.ragged):
        owner = draw(st.sampled_from([name, *dict.fromkeys(offsets.values())]))
        offsets[name] = owner
        rows[name] = rows[owner] if owner in rows else draw(st.integers(0, 40) | st.integers(4000, 9000))
    samples = draw(st.integers(1, 30) | st.integers(500, 2000))
    return ShardLayout(schema, samples, rows, offsets)


SMALL = ShardLayout(
    Schema(
        {
            "x": Field("float32", (3,)),
            "tokens": Field("int32", (None, 2)),
            "mask": Field("bool", (None,)),
            "name": "str",
        }
    ),
    5,
    {"tokens": 7, "mask": 7, "name": 30},
    {"tokens": "tokens", "mask": "tokens", "name": "name"},
)


@SETTINGS
@given(layouts())
def test_shard_reads_back_what_was_laid_out(layout):
    payloads = random_payloads(layout)
    raw = file_of(layout, payloads)
    shard = shard_of(raw)

    assert is_gdsload(shard.header)
    assert (layout.schema, layout.samples) == (shard.schema, shard.samples)
    assert digests_of(payloads) == shard.checksums.digests
    assert list(layout.schema) == list(shard.columns)
    for name, column in shard.columns.items():
        field = layout.schema[name]
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


@SETTINGS
@given(layouts())
def test_header_length_does_not_depend_on_digests(layout):
    real = layout.header(digests_of(random_payloads(layout)))
    placeholder = layout.header()
    assert len(placeholder) == len(real)
    tensors = {name: entry for name, entry in tree_of(placeholder).items() if name != "__metadata__"}
    assert tensors == {name: entry for name, entry in tree_of(real).items() if name != "__metadata__"}


@SETTINGS
@given(layouts())
def test_header_is_blank_padded_to_whole_pages(layout):
    raw = layout.header()
    assert len(raw) % ALIGNMENT == 0
    assert len(raw) == PREFIX_BYTES + int.from_bytes(raw[:PREFIX_BYTES], "little")
    assert raw[PREFIX_BYTES : PREFIX_BYTES + 1] == b"{"
    text = raw[PREFIX_BYTES:].rstrip(b" ")
    assert text.endswith(b"}")
    assert len(raw) - PREFIX_BYTES - len(text) < ALIGNMENT


@SETTINGS
@given(layouts())
def test_tensors_and_file_lie_on_whole_pages(layout):
    raw = file_of(layout, random_payloads(layout))
    header = header_of(raw)
    assert header.data_start % ALIGNMENT == 0
    assert len(raw) % ALIGNMENT == 0
    tensors = [entry for name, entry in header.tensors.items() if not name.startswith(PADDING_PREFIX)]
    assert [0] * len(tensors) == [entry.begin % ALIGNMENT for entry in tensors]
    begins = {entry.name: entry.begin - header.data_start for entry in tensors}
    assert layout.data_offsets() == begins


@SETTINGS
@given(layouts())
def test_padding_is_short_and_zero(layout):
    raw = file_of(layout, random_payloads(layout))
    header = header_of(raw)
    padding = [entry for name, entry in header.tensors.items() if name.startswith(PADDING_PREFIX)]
    for entry in padding:
        assert (1, entry.dtype.code) == (len(entry.shape), "U8")
        assert 0 < entry.shape[0] < ALIGNMENT
        assert not any(raw[entry.begin : entry.end])


@SETTINGS
@given(layouts())
def test_tensors_tile_the_data(layout):
    raw = file_of(layout, random_payloads(layout))
    header = header_of(raw)
    places = [(entry.begin, entry.end) for entry in header.tensors.values()]
    assert [begin for begin, _ in places[1:]] == [end for _, end in places[:-1]]
    assert (header.data_start, len(raw)) == (places[0][0], places[-1][1])


@SETTINGS
@given(schemas())
def test_schema_survives_json(schema):
    read = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert schema == read
    assert hash(schema) == hash(read)
    assert list(schema) == list(read)


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


def test_ragged_fields_may_share_offsets():
    shard = shard_of(file_of(SMALL, random_payloads(SMALL)))
    assert shard.columns["tokens"].offsets_begin == shard.columns["mask"].offsets_begin
    assert shard.columns["tokens"].offsets_begin != shard.columns["name"].offsets_begin
    names = [name for name in shard.header.tensors if name.startswith(OFFSETS_PREFIX)]
    assert names == ["gdsload:offsets:tokens", "gdsload:offsets:name"]


def test_strings_are_ragged_rows_of_bytes():
    entry = tree_of(SMALL.header())["name"]
    assert (entry["dtype"], entry["shape"]) == ("U8", [30])


def test_offsets_are_little_endian_rows():
    layout = ShardLayout(Schema({"x": Field("int16", (None,))}), 2, {"x": 3}, {"x": "x"})
    offsets, values = struct.pack("<3q", 0, 1, 3), struct.pack("<3h", 7, 8, 9)
    data = bytearray(layout.data_bytes())
    places = layout.data_offsets()
    data[places[OFFSETS_PREFIX + "x"] : places[OFFSETS_PREFIX + "x"] + len(offsets)] = offsets
    data[places["x"] : places["x"] + len(values)] = values
    theirs = dict(safetensors.deserialize(layout.header() + bytes(data)))
    rows = struct.unpack("<3q", theirs[OFFSETS_PREFIX + "x"]["data"])
    assert [list(struct.unpack("<3h", theirs["x"]["data"])[a:b]) for a, b in pairwise(rows)] == [[7], [8, 9]]


def test_zero_length_tensors_have_empty_digests():
    layout = ShardLayout(Schema({"none": Field("float32", (0, 3)), "x": Field("uint8", ())}), 3, {}, {})
    shard = shard_of(file_of(layout, random_payloads(layout)))
    assert shard.checksums.digests["none"] == ""
    assert len(shard.checksums.digests["x"]) == DIGEST_CHARS


def test_large_tensor_has_a_digest_for_each_block():
    layout = ShardLayout(Schema({"x": Field("uint8", (BLOCK_BYTES // 2 + 1,))}), 3, {}, {})
    shard = shard_of(file_of(layout, random_payloads(layout)))
    assert block_count(3 * (BLOCK_BYTES // 2 + 1)) == 2
    assert len(shard.checksums.digests["x"]) == 2 * DIGEST_CHARS


def test_header_digest_changes_with_any_byte():
    raw = bytearray(SMALL.header())
    size = len(raw) + SMALL.data_bytes()
    first = parse_header(bytes(raw), size, FILE).sha256
    raw[-1:] = b"\n"
    assert first != parse_header(bytes(raw), size, FILE).sha256


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0), (1, 4096), (4095, 4096), (4096, 4096), (4097, 8192), (2**62 + 1, 2**62 + 4096)],
)
def test_align_up(value, expected):
    assert expected == align_up(value)
