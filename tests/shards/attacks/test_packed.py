"""Hostile shards and indexes of version 2: what they say of packed columns is a lie. Numbered for good."""

from __future__ import annotations

import json

import pytest

from gdsload.errors import FormatError
from gdsload.shards.format.index import Index, IndexEntry, parse_index
from gdsload.shards.format.layout import ShardLayout
from gdsload.shards.format.schema import Field, Schema
from tests.shards.attacks.forging import FILE, SHA, Attack, Change, forged, in_schema, inside, read, tree_of, version

FIELDS = Schema(
    {
        "a": Field("int32"),
        "b": Field("bool"),
        "c": Field("float64", (2,)),
        "wide": Field("uint8", (100,)),
        "none": Field("int8", (0,)),
        "r": Field("int8", (None,)),
        "text": "str",
    }
)
PACKED = (("c", "a"), ("b",))
LAYOUT = ShardLayout(FIELDS, 5, {"r": 7, "text": 30}, {"r": "r", "text": "text"}, PACKED)
INDEX = Index(FIELDS, (IndexEntry("0.safetensors", 5, 8192, SHA),), PACKED)
ROWS = "gdsload:rows:0"


# read_packed: the same in a shard and in an index.
NAMES = {
    "P001": Attack("no columns", [], r"packed is \[\], no list of at least one column"),
    "P002": Attack("a column of no fields", [["a"], []], r"packed\[1\] is \[\], no list of at least one field"),
    "P003": Attack("a name for a column", ["a"], r"packed\[0\] is 'a', no list of at least one field"),
    "P004": Attack("an object", {"0": ["a"]}, "packed is {'0': \\['a'\\]}, no list"),
    "P010": Attack("a field that is not there", [["a", "z"]], r"packed\[0\]: the schema has no field 'z'"),
    "P012": Attack("a list for a name", [["a", ["b"]]], r"packed\[0\]: the schema has no field \['b'\]"),
    "P015": Attack("a name of a megabyte", [["a" * 10**6]], r"packed\[0\]: the schema has no field 'aaa"),
    "P020": Attack("a field twice in a row", [["a", "b", "a"]], r"packed\[0\]: the field 'a' is packed twice"),
    "P021": Attack("a field in two columns", [["a"], ["b", "a"]], r"packed\[1\]: the field 'a' is packed twice"),
    "P030": Attack("a ragged field", [["a", "r"]], r"packed\[0\]: the field 'r' is not fixed"),
    "P032": Attack("a field of no bytes", [["none"]], r"packed\[0\]: the field 'none' has no bytes"),
}


def schema(**values: object) -> Change:
    return in_schema(lambda tree: tree.update(values))


def tensor(name: str, **values: object) -> Change:
    return lambda tree: tree[name].update(values)


def renamed(old: str, new: str) -> Change:
    return lambda tree: tree.update({new: tree.pop(old)})


def retyped(name: str, **entry: object) -> Change:
    return in_schema(lambda tree: tree["fields"].update({name: entry}))


def without(key: str) -> Change:
    return in_schema(lambda tree: tree.pop(key))


SHARDS = {
    "P040": Attack("version 1", version("1"), "is no JSON object of fields, offsets"),
    "P041": Attack("no packed columns", without("packed"), "is no JSON object of fields, offsets, packed"),
    "P042": Attack("one key more", schema(rows=[]), "is no JSON object of fields, offsets, packed"),
    "P050": Attack(
        "rows of another type", tensor(ROWS, dtype="I8"), r"is I8 \[5, 24\], but the schema says U8 \[5, 24\]", ROWS
    ),
    "P051": Attack("rows in one", tensor(ROWS, shape=[120]), r"is U8 \[120\], but the schema says U8 \[5, 24\]", ROWS),
    "P054": Attack(
        "a larger element", retyped("a", dtype="int64", shape=[2]), r"but the schema says U8 \[5, 32\]", ROWS
    ),
    "P055": Attack("another order, so other places", schema(packed=[["b", "a"], ["c"]]), r"says U8 \[5, 8\]", ROWS),
    "P056": Attack("rows of 2^63 bytes", retyped("a", dtype="int32", shape=[2**61 - 5]), "a row has more bytes than"),
    "P060": Attack("no rows", renamed(ROWS, "gdsload:rows:2"), f"there is no tensor {ROWS!r}", ROWS),
    "P062": Attack("rows under the field's name", renamed(ROWS, "a"), "neither a field of its own, being packed", "a"),
    "P063": Attack("a column more", schema(packed=[["c", "a"]]), "there is no tensor 'b'", "b"),
    "P064": Attack("a column less", schema(packed=[["c", "a"], ["b"], ["wide"]]), "no tensor 'gdsload:rows:2'"),
    "P070": Attack(
        "no digests of the rows",
        inside("gdsload.checksums", lambda tree: tree["digests"].pop(ROWS)),
        "has not the 16 hexadecimal digits",
        ROWS,
    ),
    "P071": Attack(
        "digests of a packed field",
        inside("gdsload.checksums", lambda tree: tree["digests"].update(a="0" * 16)),
        "has digests of it, but it is no tensor that has any",
        "a",
    ),
}


def test_what_is_changed_is_good():
    assert read(tree_of(LAYOUT)).stored == LAYOUT.stored
    assert parse_index(forged(json.loads(INDEX.to_bytes())), FILE) == INDEX


@pytest.mark.timeout(20)
@pytest.mark.parametrize("number", [*NAMES, *SHARDS])
def test_hostile_shard_is_refused(number):
    attack = SHARDS[number] if number in SHARDS else NAMES[number]
    tree = tree_of(LAYOUT)
    (attack.change if callable(attack.change) else schema(packed=attack.change))(tree)
    attack.on_shard(tree)


INDEXES = {
    "P080": Attack("version 1", lambda tree: tree.update(version=1), r"it has the unknown keys \['packed'\]"),
    "P081": Attack("no packed columns", lambda tree: tree.pop("packed"), "packed is None, no list"),
    "P082": Attack("one key more", lambda tree: tree.update(rows=[]), r"it has the unknown keys \['rows'\]"),
    "P083": Attack(
        "rows of 2^63 bytes",
        lambda tree: tree["schema"]["a"].update(shape=[2**61 - 5]),
        "a row has more bytes than 64-bit offsets can address",
    ),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("number", [*NAMES, *INDEXES])
def test_hostile_index_is_refused(number):
    attack = INDEXES[number] if number in INDEXES else NAMES[number]
    tree = json.loads(INDEX.to_bytes())
    if callable(attack.change):
        attack.change(tree)
    else:
        tree["packed"] = attack.change
    assert len(attack.on_index(forged(tree)).problems) == 1


def test_every_problem_is_reported_at_once():
    tree = tree_of(LAYOUT)
    packed = [["a", "z", "a"], [], ["r", "none"]]
    schema(packed=packed, offsets={})(tree)
    tree["__metadata__"]["gdsload.samples"] = "six"
    with pytest.raises(FormatError, match="cannot be read as a shard") as caught:
        read(tree)
    starts = [
        "gdsload.samples is 'six'",
        "gdsload.schema: packed[0]: the schema has no field 'z'",
        "gdsload.schema: packed[0]: the field 'a' is packed twice",
        "gdsload.schema: packed[1] is []",
        "gdsload.schema: packed[2]: the field 'r' is not fixed",
        "gdsload.schema: packed[2]: the field 'none' has no bytes",
        "gdsload.schema names offsets for {}",
    ]
    assert [problem.message[: len(start)] for problem, start in zip(caught.value.problems, starts, strict=True)] == (
        starts
    )
    tree = json.loads(INDEX.to_bytes())
    tree["packed"], tree["samples"] = packed, None
    with pytest.raises(FormatError, match="no valid index") as caught:
        parse_index(json.dumps(tree).encode(), FILE)
    assert len(caught.value.problems) == 6
