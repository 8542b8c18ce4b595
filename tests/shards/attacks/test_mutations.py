"""Good headers, shards and indexes with random damage: refused, or read as something that is whole in itself."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.errors import FormatError
from gdsload.shards.format.header import PREFIX_BYTES, Header, header_bytes, parse_header
from gdsload.shards.format.index import Index, IndexEntry, parse_index
from gdsload.shards.format.layout import ShardLayout, align_up
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.shard import read_shard

SETTINGS = settings(derandomize=True, max_examples=200)
FILE = "mutant.safetensors"
SHA = "0123456789abcdef" * 4
SCHEMA = Schema(
    {
        "x": Field("float32", (3,)),
        "é": Field("int32", (None, 2)),
        "mask": Field("bool", (None,)),
        "name": "str",
    }
)
LAYOUT = ShardLayout(SCHEMA, 5, {"é": 7, "mask": 7, "name": 30}, {"é": "é", "mask": "é", "name": "name"})
OWN, OWN_DATA = LAYOUT.header(), LAYOUT.data_bytes()
INDEX = Index(SCHEMA, (IndexEntry("0.safetensors", 7, 8192, SHA), IndexEntry("1.safetensors", 5, 8192, SHA)))


def plain() -> bytes:
    text = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "b": {"dtype": "F32", "shape": [4, 2], "data_offsets": [12, 44]},
            "a": {"dtype": "U8", "shape": [4, 3], "data_offsets": [0, 12]},
            "none": {"dtype": "I64", "shape": [4, 0], "data_offsets": [44, 44]},
        }
    ).encode()
    return len(text).to_bytes(PREFIX_BYTES, "little") + text


PLAIN, PLAIN_DATA = plain(), 44
OF_EITHER = pytest.mark.parametrize(("raw", "data_bytes"), [(PLAIN, PLAIN_DATA), (OWN, OWN_DATA)], ids=["plain", "own"])

# What a mutation puts in: any byte, or what the format is sensitive to.
TOKENS = st.binary(min_size=1, max_size=2) | st.sampled_from(
    [b"0", b"1", b"9", b"-", b".", b"e", b"[", b"]", b"{", b"}", b'"', b"\\", b",", b":", b" ", b"null", b"true",
     b"NaN", b"[]", b"{}", b"\\u0000", b"\\ud800", b"99999999999999999999", b"\xc3\xa9", b"\0"]
)  # fmt: skip
EDITS = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 3), TOKENS), min_size=1, max_size=4)
ODD_VALUES = st.sampled_from(
    [None, True, False, 0, 1, -1, 4, 2**63, 2**64, 1.5, float("nan"), float("inf"), "", "1", "x", "U8", "\ud800", [],
     [4], [0, 0], [[]], {}, {"dtype": "U8", "shape": [], "data_offsets": [0, 1]}]
)  # fmt: skip


def edited(raw: bytes, edits: list[tuple[int, int, bytes]], last: int) -> bytes:
    """Overwrite, insert or delete at places before `last`."""
    mutant = bytearray(raw)
    for place, deleted, inserted in edits:
        at = place % last
        mutant[at : at + deleted] = inserted
    return bytes(mutant)


def read(raw: bytes) -> Header | None:
    """The header of a whole file; what it says must then be consistent."""
    try:
        length = header_bytes(raw[:PREFIX_BYTES], len(raw), FILE)
        header = parse_header(raw[:length], len(raw), FILE)
    except FormatError as error:
        check_error(error, len(raw))
        return None
    assert length == header.data_start <= header.file_bytes == len(raw)
    position = header.data_start
    for entry in header.tensors.values():
        assert position == entry.begin <= entry.end
        elements = 1
        for size in entry.shape:
            elements *= size
        assert elements * entry.dtype.itemsize == entry.end - entry.begin
        position = entry.end
    assert position == len(raw)
    return header


def read_as_shard(header: Header | None) -> None:
    if header is None:
        return
    try:
        shard = read_shard(header, FILE)
    except FormatError as error:
        check_error(error, header.file_bytes)
        return
    assert list(shard.schema) == list(shard.columns)
    for name, column in shard.columns.items():
        field = shard.schema[name]
        assert header.data_start <= column.begin <= column.begin + column.rows * field.row_bytes <= header.file_bytes
        if field.ragged:
            assert header.data_start <= column.offsets_begin <= header.file_bytes - (shard.samples + 1) * 8
        else:
            assert shard.samples == column.rows


def check_error(error: FormatError, size: int) -> None:
    assert error.problems
    assert all(problem.file == FILE and 0 <= problem.offset <= size for problem in error.problems)
    assert str(error).encode()


@OF_EITHER
def test_unchanged_files_are_read(raw, data_bytes):
    header = read(raw + bytes(data_bytes))
    assert header is not None
    assert read_shard(header, FILE).samples


@OF_EITHER
@SETTINGS
@given(edits=EDITS)
def test_damaged_header_is_refused_or_whole(raw, data_bytes, edits):
    read_as_shard(read(edited(raw, edits, len(raw.rstrip())) + bytes(data_bytes)))


@OF_EITHER
@SETTINGS
@given(edits=EDITS)
def test_damaged_json_of_the_right_length_is_refused_or_whole(raw, data_bytes, edits):
    """As before, but with a length that fits, so that the damage reaches the later checks."""
    text = edited(raw[PREFIX_BYTES:], edits, len(raw.rstrip()) - PREFIX_BYTES).rstrip()
    length = align_up(PREFIX_BYTES + len(text)) - PREFIX_BYTES
    read_as_shard(read(length.to_bytes(PREFIX_BYTES, "little") + text.ljust(length) + bytes(data_bytes)))


def places_in(tree: object, path: tuple = ()) -> list[tuple]:
    """Paths to every value of a JSON tree; JSON inside metadata texts counts as part of it."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path] * bool(path) + [found for key, value in items for found in places_in(value, (*path, key))]


def unfolded(raw: bytes) -> dict:
    tree = json.loads(raw[PREFIX_BYTES:])
    metadata = tree["__metadata__"]
    for key in ("gdsload.schema", "gdsload.checksums"):
        if key in metadata:
            metadata[key] = {"as JSON": json.loads(metadata[key])}
    return tree


def folded(tree: dict) -> bytes:
    metadata = tree.get("__metadata__")
    for key in ("gdsload.schema", "gdsload.checksums"):
        value = metadata.get(key) if isinstance(metadata, dict) else None
        if isinstance(value, dict) and "as JSON" in value:
            metadata[key] = json.dumps(value["as JSON"])
    text = json.dumps(tree).encode()
    length = align_up(PREFIX_BYTES + len(text)) - PREFIX_BYTES
    return length.to_bytes(PREFIX_BYTES, "little") + text.ljust(length)


@OF_EITHER
@SETTINGS
@given(data=st.data())
def test_replaced_values_are_refused_or_whole(raw, data_bytes, data):
    tree = unfolded(raw)
    places = places_in(tree)
    for _ in range(data.draw(st.integers(1, 2))):
        *way, last = data.draw(st.sampled_from(places))
        node = tree
        for key in way:
            node = node[key] if key in keys_of(node) else None
        if last in keys_of(node):
            node[last] = deepcopy(data.draw(ODD_VALUES))
    read_as_shard(read(folded(tree) + bytes(data_bytes)))


def keys_of(node: object) -> object:
    return node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()


@SETTINGS
@given(st.integers(0, len(OWN) + OWN_DATA - 1))
def test_file_cut_anywhere_is_refused(length):
    assert read((OWN + bytes(OWN_DATA))[:length]) is None


@SETTINGS
@given(data=st.data())
def test_replaced_values_of_an_index_are_refused_or_harmless(data):
    tree = json.loads(INDEX.to_bytes())
    *way, last = data.draw(st.sampled_from(places_in(tree)))
    node = tree
    for key in way:
        node = node[key]
    node[last] = deepcopy(data.draw(ODD_VALUES))
    raw = json.dumps(tree).encode()
    try:
        assert parse_index(raw, FILE) == INDEX
    except FormatError as error:
        check_error(error, len(raw))


@SETTINGS
@given(edits=EDITS)
def test_damaged_index_is_refused_or_harmless(edits):
    raw = edited(INDEX.to_bytes(), edits, len(INDEX.to_bytes()))
    try:
        assert parse_index(raw, FILE) == INDEX
    except FormatError as error:
        check_error(error, len(raw))
