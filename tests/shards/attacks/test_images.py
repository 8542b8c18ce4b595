"""Hostile shards and indexes of version 3: what they say of encoded images is a lie. Numbered for good."""

from __future__ import annotations

import json

import pytest

from gdsload.shards.format.index import Index, IndexEntry, parse_index
from gdsload.shards.format.layout import ShardLayout
from gdsload.shards.format.schema import Field, Schema
from tests.shards.attacks.forging import FILE, SHA, Attack, Change, forged, in_schema, read, tree_of, version

FIELDS = Schema({"i": Field("image", codecs=["jpeg", "png"]), "a": Field("int32"), "b": Field("bool")})
PACKED = (("a", "b"),)
LAYOUT = ShardLayout(FIELDS, 5, {"i": 70}, {"i": "i"}, PACKED)
INDEX = Index(FIELDS, (IndexEntry("0.safetensors", 5, 8192, SHA),), PACKED)


def codecs(value: object) -> Change:
    return lambda fields: fields["i"].update(codecs=value)


# Changes of the fields: the same in a shard and in an index.
FIELD = {
    "E001": Attack("no codec", codecs([]), r"the codecs of encoded images are \[\]"),
    "E002": Attack("one that there is not", codecs(["gif"]), r"the codecs of encoded images are \['gif'\]"),
    "E003": Attack("another order", codecs(["png", "jpeg"]), "is to be written"),
    "E004": Attack("one twice", codecs(["jpeg", "jpeg"]), "is to be written"),
    "E005": Attack("a text", codecs("jpeg"), "codecs 'jpeg' is no list"),
    "E009": Attack("a list among them", codecs([["jpeg"]]), "the codecs of encoded images are"),
    "E010": Attack("a megabyte", codecs(["a" * 10**6]), "the codecs of encoded images are"),
    "E012": Attack("no word of them", lambda fields: fields["i"].pop("codecs"), "is to be written"),
    "E013": Attack("a shape", lambda fields: fields["i"].update(shape=[3]), "has no shape"),
    "E014": Attack("an empty shape", lambda fields: fields["i"].update(shape=[]), "is to be written"),
    "E015": Attack("codecs of a number", lambda fields: fields["a"].update(codecs=["png"]), "codecs are those of"),
    "E016": Attack("no codecs of a number", lambda fields: fields["a"].update(codecs=[]), "codecs are those of"),
    "E017": Attack("bytes", lambda fields: fields.update(i={"dtype": "bytes"}), "fields like these are version 2"),
}


def of_version_1(tree: dict) -> None:
    """A shard that an old reader would have to refuse, and must not be told to read."""
    version("1")(tree)
    in_schema(lambda inner: inner.pop("packed"))(tree)


SHARDS = {
    "E040": Attack("version 2", version("2"), "its version is 2, but fields like these are version 3"),
    "E041": Attack("version 1", of_version_1, "its version is 1, but fields like these are version 3"),
    "E042": Attack("one key more", in_schema(lambda tree: tree.update(x=1)), "is no JSON object of fields, offsets"),
    "E043": Attack("no columns", in_schema(lambda tree: tree.update(packed=[])), "no list of at least one column"),
    "E045": Attack("a packed image", in_schema(lambda tree: tree.update(packed=[["i"]])), "'i' is not fixed"),
    "E046": Attack("no offsets", in_schema(lambda tree: tree.update(offsets={})), "names offsets for {}"),
    "E047": Attack("rows of another type", lambda tree: tree["i"].update(dtype="I8"), "but the schema says U8"),
}


def test_what_is_changed_is_good():
    assert read(tree_of(LAYOUT)).stored == LAYOUT.stored
    assert parse_index(forged(json.loads(INDEX.to_bytes())), FILE) == INDEX


@pytest.mark.timeout(20)
@pytest.mark.parametrize("number", [*FIELD, *SHARDS])
def test_hostile_shard_is_refused(number):
    attack, tree = {**FIELD, **SHARDS}[number], tree_of(LAYOUT)
    (attack.change if number in SHARDS else in_schema(lambda inner: attack.change(inner["fields"])))(tree)
    attack.on_shard(tree)


INDEXES = {
    "E080": Attack("version 2", lambda tree: tree.update(version=2), "but fields like these are version 3"),
    "E081": Attack("one key more", lambda tree: tree.update(rows=[]), r"it has the unknown keys \['rows'\]"),
    "E082": Attack("no columns", lambda tree: tree.update(packed=[]), "no list of at least one column"),
    "E083": Attack("no images", lambda tree: tree["schema"].pop("i"), "fields like these are version 2"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("number", [*FIELD, *INDEXES])
def test_hostile_index_is_refused(number):
    attack, tree = {**FIELD, **INDEXES}[number], json.loads(INDEX.to_bytes())
    attack.change(tree if number in INDEXES else tree["schema"])
    assert len(attack.on_index(forged(tree)).problems) == 1
