"""The index of a dataset: round trip, its metadata, and what a change of any byte does to it."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.errors import FormatError, OptionError
from gdsload.shards.format.index import INDEX_NAME, Index, IndexEntry, parse_index
from gdsload.shards.format.metadata import MAX_METADATA_BYTES, checked_metadata
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.stored import StoredSchema
from tests.shards.format.shard_files import SHA, deep, indexes

SETTINGS = settings(derandomize=True, max_examples=80)
EXAMPLE = Index(
    StoredSchema(Schema({"é": Field("float32", (None, 2)), "name": Field("str")})),
    (IndexEntry("00000.safetensors", 7, 8192, SHA), IndexEntry("00001.safetensors", 5, 12288, SHA[::-1])),
)
ROWS = Schema({"a": Field("bool"), "b": Field("int64"), "c": "image"})
PACKED = Index(StoredSchema(ROWS, (("b", "a"),)), EXAMPLE.shards)


def compact(tree: object) -> bytes:
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()


@SETTINGS
@given(indexes())
def test_index_reads_back_what_was_written(index):
    raw = index.to_bytes()
    read = parse_index(raw, INDEX_NAME)
    assert (index, index.stored, index.digest()) == (read, read.stored, read.digest())
    assert raw == read.to_bytes()
    assert str(index.metadata) == str(read.metadata)  # 1 is not 1.0, nor True
    assert checked_metadata(index.metadata) == index.metadata


@SETTINGS
@given(indexes())
def test_digests_are_those_of_compact_json(index):
    """That of the content is what it would be without metadata, which have a digest of their own."""
    without = Index(index.stored, index.shards)
    tree, plain = (json.loads(one.to_bytes()) for one in (index, without))
    assert tree["version"] == (3 if index.metadata else plain["version"])
    sha = plain.pop("sha256")
    assert index.digest() == without.digest() == tree["sha256"] == sha == hashlib.sha256(compact(plain)).hexdigest()
    if index.metadata:
        assert tree["metadata_sha256"] == hashlib.sha256(compact(index.metadata)).hexdigest()


@pytest.mark.parametrize(("index", "version"), [(EXAMPLE, 1), (PACKED, 3)])
@pytest.mark.parametrize("metadata", [{}, {"classes": {"x": ["a", "b"]}}])
def test_form_of_the_index(index, version, metadata):
    tree = json.loads(Index(index.stored, index.shards, metadata).to_bytes())
    packed, described = ["packed"] if index.stored.packed else [], ["metadata", "metadata_sha256"] if metadata else []
    assert list(tree) == ["format", "version", "samples", "schema", *packed, "shards", "sha256", *described]
    assert (tree["format"], tree["version"], tree["samples"]) == ("gdsload-dataset", 3 if metadata else version, 12)
    assert tree["shards"][0] == {"file": "00000.safetensors", "samples": 7, "bytes": 8192, "sha256": SHA}
    assert index.stored.schema.to_json() == tree["schema"]
    assert tree.get("packed", []) == [list(names) for names in index.stored.packed]
    assert tree.get("metadata", {}) == metadata
    assert INDEX_NAME == "index.json"


def test_index_digest_names_the_content():
    other_order = Index(EXAMPLE.stored, EXAMPLE.shards[::-1])
    other_sha = Index(EXAMPLE.stored, (IndexEntry("00000.safetensors", 7, 8192, SHA[::-1]), EXAMPLE.shards[1]))
    other_schema = Index(StoredSchema(Schema(dict(reversed(list(EXAMPLE.stored.schema.items()))))), EXAMPLE.shards)
    other_row = Index(StoredSchema(ROWS, (("a", "b"),)), PACKED.shards)
    assert len({index.digest() for index in (EXAMPLE, PACKED, other_order, other_sha, other_schema, other_row)}) == 6


def test_empty_dataset_is_an_index_without_shards():
    index = Index(EXAMPLE.stored, ())
    assert index.samples == 0
    assert index == parse_index(index.to_bytes(), INDEX_NAME)


def test_blanks_and_line_ends_do_not_matter():
    raw = EXAMPLE.to_bytes()
    assert parse_index(raw.replace(b"\n", b"\r\n\t "), INDEX_NAME) == EXAMPLE
    assert parse_index(json.dumps(json.loads(raw)).encode(), INDEX_NAME) == EXAMPLE


@settings(derandomize=True, max_examples=200)
@given(st.integers(0, len(EXAMPLE.to_bytes()) - 1), st.integers(1, 255))
def test_change_of_a_byte_is_refused_or_harmless(position, change):
    raw = bytearray(EXAMPLE.to_bytes())
    raw[position] ^= change
    try:
        index = parse_index(bytes(raw), INDEX_NAME)
    except FormatError as error:
        assert error.problems
        assert all(0 <= problem.offset <= len(raw) for problem in error.problems)
    else:
        assert index == EXAMPLE


# --- metadata that users pass ---


def test_what_users_pass_is_what_is_read():
    given_them = {"a": (1, 2, {"b": ()}), "c": True}
    assert checked_metadata(given_them) == {"a": [1, 2, {"b": []}], "c": True}
    assert checked_metadata(None) == checked_metadata({}) == {}


@pytest.mark.parametrize(
    ("given_them", "says"),
    [
        ([1], r"metadata is \[1\]"), ({1: 2}, "metadata has the key 1"), ({"a": {None: 2}}, "metadata has the key None"),
        ({"a": float("nan")}, "metadata has the number nan"), ({"a": 2**64}, "does not fit 64 bits"),
        ({"a": -(2**63) - 1}, "does not fit 64 bits"), ({"a": {1, 2}}, "a value of type set, which is none of JSON's"),
        ({"a": "\ud800"}, "a text that is no valid Unicode"), ({"\udfff": 1}, "a text that is no valid Unicode"),
        ({"a": "x" * MAX_METADATA_BYTES}, f"metadata has {MAX_METADATA_BYTES + 8} bytes; the most is"),
        ({"a": deep(40)}, "nested more than 32 levels deep"), ({"a": deep(10**5)}, "nested more than 32 levels deep"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)  # fmt: skip
def test_what_json_cannot_hold_is_refused(given_them, says):
    with pytest.raises(OptionError, match=says):
        checked_metadata(given_them)
