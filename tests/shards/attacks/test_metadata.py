"""Hostile metadata in an index. Numbered for good."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import pytest

from gdsload.errors import FormatError
from gdsload.shards.format.index import Index, IndexEntry, parse_index
from gdsload.shards.format.metadata import MAX_METADATA_BYTES
from gdsload.shards.format.schema import Field, Schema
from tests.shards.attacks.forging import FILE, SHA, Attack

INDEX = Index(
    Schema({"x": Field("int32")}),
    (IndexEntry("0.safetensors", 5, 8192, SHA),),
    (),
    {"classes": {"x": ["cat", "dog"]}, "n": [1, 2.5, None, True]},
)


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = {"a": value}
    return value


METADATA = {
    "D001": Attack("a list", [1], r"metadata is \[1\], no object"),
    "D002": Attack("nothing", {}, "metadata is {}, no object of at least one key"),
    "D005": Attack("too deep", deep(33), "nested more than 32 levels deep"),
    "D006": Attack("a number of 100 digits", {"a": 10**100}, "does not fit 64 bits"),
    "D007": Attack("NaN", {"a": float("nan")}, "metadata has the number nan"),
    "D008": Attack("infinity", {"a": [float("inf")]}, "metadata has the number inf"),
    "D009": Attack("half a surrogate pair", {"a": "\ud800"}, "no valid Unicode"),
    "D010": Attack("half a surrogate pair as a key", {"a": {"\ud800": 1}}, "no valid Unicode"),
    "D011": Attack("more bytes than there may be", {"a": "x" * MAX_METADATA_BYTES}, "bytes; the most is"),
    "D012": Attack("a hundred faults", dict.fromkeys(map(str, range(100)), float("inf")), "metadata has the number"),
}


def raised(**values: object) -> Callable[[dict], object]:
    return lambda tree: tree.update(values)


INDEXES = {
    "D040": Attack("version 1", raised(version=1), r"unknown keys \['metadata', 'metadata_sha256'\]"),
    "D041": Attack("version 2", raised(version=2), r"unknown keys \['metadata', 'metadata_sha256'\]"),
    "D042": Attack("no digest", lambda tree: tree.pop("metadata_sha256"), "do not match metadata_sha256"),
    "D043": Attack("a digest alone", lambda tree: tree.pop("metadata"), "metadata is None, no object"),
    "D044": Attack("a digest of another kind", raised(metadata_sha256=3), "do not match metadata_sha256"),
    "D045": Attack("packed columns that there are not", raised(packed=[]), "no list of at least one column"),
    "D046": Attack("none, and the version", lambda tree: [tree.pop(key) for key in ("metadata", "metadata_sha256")],
                   "its version is 3, but fields like these are version 1"),
}  # fmt: skip


def forged(tree: dict) -> bytes:
    """An index whose digest of metadata is right, wherever there can be one."""
    try:
        text = json.dumps(tree["metadata"], separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        text = b""
    return json.dumps({**tree, "metadata_sha256": hashlib.sha256(text).hexdigest()}).encode()


def test_what_is_changed_is_good():
    assert parse_index(forged(json.loads(INDEX.to_bytes())), FILE) == INDEX


@pytest.mark.timeout(20)
@pytest.mark.parametrize("number", [*METADATA, *INDEXES])
def test_hostile_metadata_are_refused(number):
    tree = json.loads(INDEX.to_bytes())
    if number in METADATA:
        attack = METADATA[number]
        raw = forged({**tree, "metadata": attack.change})
    else:
        attack = INDEXES[number]
        attack.change(tree)
        raw = json.dumps(tree).encode()
    attack.on_index(raw)


@pytest.mark.timeout(20)
def test_nesting_of_any_depth_is_refused():
    raw = INDEX.to_bytes().replace(b'"n": [', b'"n": [' + b"[" * 10**6)
    with pytest.raises(FormatError, match="no valid JSON"):
        parse_index(raw, FILE)


def test_a_key_twice_is_refused():
    raw = INDEX.to_bytes().replace(b'"n": [', b'"classes": 1, "n": [')
    with pytest.raises(FormatError, match="the key 'classes' occurs twice"):
        parse_index(raw, FILE)


@pytest.mark.parametrize("found", [deep(31), {"a": "x" * (MAX_METADATA_BYTES - 8)}, {"a": [2**64 - 1, -(2**63)]}])
def test_metadata_at_the_limits_are_read(found):
    index = Index(INDEX.schema, INDEX.shards, (), found)
    assert parse_index(index.to_bytes(), FILE).metadata == found


def test_changed_metadata_are_refused():
    """Every byte of them: a name of a class that is another one is as wrong as a flipped pixel."""
    raw = INDEX.to_bytes()
    begin, end = raw.index(b'"metadata"'), raw.index(b'"metadata_sha256"')
    for at in range(begin, end):
        for bit in (1, 2, 16):
            changed = raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :]
            try:
                assert parse_index(changed, FILE) == INDEX  # white space, or another escape of the same letter
            except FormatError:
                continue
