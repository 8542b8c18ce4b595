"""Metadata of datasets: what was written is read, and changes nothing of the content's name."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.errors import OptionError
from gdsload.shards.format.index import INDEX_NAME, Index, IndexEntry, parse_index
from gdsload.shards.format.metadata import MAX_METADATA_BYTES, checked_metadata
from gdsload.shards.format.schema import Field, Schema

SETTINGS = settings(derandomize=True, deadline=None, max_examples=80)
ENTRY = IndexEntry("0.safetensors", 7, 8192, "0123456789abcdef" * 4)
SCHEMAS = {
    1: (Schema({"x": Field("int32")}), ()),
    2: (Schema({"x": Field("int32"), "y": Field("int8")}), (("x", "y"),)),
    3: (Schema({"x": Field("image")}), ()),
}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
metadata = st.dictionaries(texts, values, min_size=1, max_size=4)


def index_of(version: int, found: dict) -> Index:
    schema, packed = SCHEMAS[version]
    return Index(schema, (ENTRY,), packed, found)


@SETTINGS
@given(st.sampled_from([1, 2, 3]), metadata)
def test_metadata_read_back_what_was_written(version, found):
    index = index_of(version, checked_metadata(found))
    read = parse_index(index.to_bytes(), INDEX_NAME)
    assert (index, found) == (read, read.metadata)
    assert index.to_bytes() == read.to_bytes()
    assert str(found) == str(read.metadata)  # 1 is not 1.0, nor True


@SETTINGS
@given(st.sampled_from([1, 2, 3]), metadata)
def test_metadata_are_no_part_of_the_digest(version, found):
    with_them, without = index_of(version, found), index_of(version, {})
    assert with_them.digest() == without.digest()
    assert json.loads(with_them.to_bytes())["sha256"] == json.loads(without.to_bytes())["sha256"]
    assert json.loads(without.to_bytes())["version"] == version


@SETTINGS
@given(metadata)
def test_digest_of_metadata_is_that_of_their_compact_json(found):
    tree = json.loads(index_of(1, found).to_bytes())
    text = json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()
    assert tree["metadata_sha256"] == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("version", SCHEMAS)
def test_form_of_the_index(version):
    tree = json.loads(index_of(version, {"classes": {"x": ["a", "b"]}}).to_bytes())
    packed = ["packed"] if version == 2 else []
    keys = ["format", "version", "samples", "schema", *packed, "shards", "sha256", "metadata", "metadata_sha256"]
    assert list(tree) == keys
    assert (tree["version"], tree["metadata"]) == (3, {"classes": {"x": ["a", "b"]}})


def test_what_users_pass_is_what_is_read():
    given_them = {"a": (1, 2, {"b": ()}), "c": True}
    assert checked_metadata(given_them) == {"a": [1, 2, {"b": []}], "c": True}
    assert checked_metadata(None) == checked_metadata({}) == {}


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("given_them", "says"),
    [
        ([1], r"metadata is \[1\]"),
        ({1: 2}, "metadata has the key 1"),
        ({"a": {None: 2}}, "metadata has the key None"),
        ({"a": float("nan")}, "metadata has the number nan"),
        ({"a": 2**64}, "does not fit 64 bits"),
        ({"a": -(2**63) - 1}, "does not fit 64 bits"),
        ({"a": {1, 2}}, "a value of type set, which is none of JSON's"),
        ({"a": "\ud800"}, "a text that is no valid Unicode"),
        ({"\udfff": 1}, "a text that is no valid Unicode"),
        ({"a": "x" * MAX_METADATA_BYTES}, f"metadata has {MAX_METADATA_BYTES + 8} bytes; the most is"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_json_cannot_hold_is_refused(given_them, says):
    with pytest.raises(OptionError, match=says):
        checked_metadata(given_them)


@pytest.mark.parametrize("levels", [40, 10**5])
def test_what_is_nested_too_deep_is_refused(levels):
    with pytest.raises(OptionError, match="nested more than 32 levels deep"):
        checked_metadata({"a": deep(levels)})
