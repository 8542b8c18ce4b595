"""Hostile indexes. Numbered for good; see test_headers.py.

Every one carries the right digest of itself: anybody can compute that.
"""

from __future__ import annotations

import json

import pytest

from gdsload.errors import FormatError
from gdsload.shards.format.index import Index, IndexEntry, parse_index
from gdsload.shards.format.metadata import MAX_METADATA_BYTES
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.stored import StoredSchema
from tests.shards.attacks.forging import FILE, IMAGE_FIELDS, IMAGE_INDEX, PACKED, PACKED_INDEX, Attack, Change, forged
from tests.shards.format.shard_files import SHA, deep

INDEX = Index(
    StoredSchema(Schema({"x": Field("float32", (3,))})),
    (IndexEntry("0.safetensors", 7, 8192, SHA), IndexEntry("1.safetensors", 5, 8192, SHA)),
)


def top(**values: object) -> Change:
    return lambda tree: tree.update(values)


def without(key: str) -> Change:
    return lambda tree: tree.pop(key)


def shard(**values: object) -> Change:
    return lambda tree: tree["shards"][1].update(values)


PLAIN = r"shards\[1\]: .* is no plain file name"
COUNT = r"shards\[1\]: samples is .* no whole number from 1"
SIZE = r"shards\[1\]: bytes is .* no whole number from 1"
DIGITS = r"shards\[1\]: sha256 is .* no 64 hexadecimal digits"
KEYS = r"shards\[1\]: an entry has exactly file, samples, bytes and sha256"

# _entry_complaint: files outside the folder
FILES = {
    "I001": Attack("the folder above", shard(file="../x.safetensors"), PLAIN),
    "I005": Attack("no name", shard(file=""), PLAIN),
    "I006": Attack("the folder itself", shard(file="."), PLAIN),
    "I007": Attack("the folder above, as a file", shard(file=".."), PLAIN),
    "I008": Attack("a name that C ends early", shard(file="0.safetensors\0.txt"), PLAIN),
    "I009": Attack("half a surrogate pair", shard(file="\ud800"), PLAIN),
    "I011": Attack("the other slash", shard(file="..\\x.safetensors"), PLAIN),
    "I014": Attack("a number, which open() takes for a descriptor", shard(file=0), PLAIN),
    "I017": Attack("a name of a megabyte", shard(file="/" * 10**6), PLAIN),
    "I018": Attack("one shard twice", shard(file="0.safetensors"), r"shards\[1\]: '0.safetensors' is listed twice"),
}

# _entry_complaint: numbers and digests
ENTRIES = {
    "I030": Attack("true samples", shard(samples=True), COUNT),
    "I031": Attack("a fraction", shard(samples=5.0), COUNT),
    "I032": Attack("none", shard(samples=0), COUNT),
    "I034": Attack("more than 64 bits", shard(samples=2**63), COUNT),
    "I035": Attack("4000 digits", shard(samples=10**4000), COUNT),
    "I043": Attack("none", shard(bytes=0), SIZE),
    "I050": Attack("a digest too short", shard(sha256=SHA[1:]), DIGITS),
    "I052": Attack("a line end after the digest", shard(sha256=SHA + "\n"), DIGITS),
    "I053": Attack("upper case", shard(sha256=SHA.upper()), DIGITS),
    "I055": Attack("digits of another script", shard(sha256="\u0660" * 64), DIGITS),
    "I058": Attack("a number", shard(sha256=10**63), DIGITS),
    "I059": Attack("one key more", shard(url="x"), KEYS),
    "I060": Attack("one key less", lambda tree: tree["shards"][1].pop("sha256"), KEYS),
    "I061": Attack("an entry that is a name", lambda tree: tree["shards"].__setitem__(1, "1.safetensors"), KEYS),
}

# parse_index, _head and _shards
HEAD = {
    "I070": Attack("another format", top(format="webdataset"), "its format is 'webdataset', not 'gdsload-dataset'"),
    "I073": Attack("the future", top(version=4), "its version is 4; this gdsload reads 1, 2, 3"),
    "I074": Attack("true", top(version=True), "its version is True"),
    "I079": Attack("a total that is a fraction", top(samples=12.0), "samples is 12.0, no whole number"),
    "I082": Attack("too large a total", top(samples=13), "claims 13 samples, but its shards hold 12"),
    "I085": Attack("no schema", without("schema"), "schema: a schema is a JSON object, not NoneType"),
    "I086": Attack("an empty schema", top(schema={}), "schema: a schema needs at least one field"),
    "I091": Attack("no shards", without("shards"), "its shards are no list"),
    "I095": Attack("one key more", top(base_url="x"), "it has the unknown keys .'base_url'"),
    "I097": Attack(
        "a total beyond 64 bits",
        lambda tree: [entry.update(samples=2**62) for entry in tree["shards"]] and tree.update(samples=2**63),
        "more samples than 64 bits can count",
    ),
}

PACKED_INDEXES = {
    "P080": Attack("version 1", lambda tree: tree.update(version=1), r"it has the unknown keys \['packed'\]"),
    "P081": Attack("no packed columns", lambda tree: tree.pop("packed"), "packed is None, no list"),
    "P083": Attack("2^63 bytes", lambda tree: tree["schema"]["a"].update(shape=[2**61 - 5]), "a row has more bytes"),
}


IMAGE_INDEXES = {
    "E080": Attack("version 2", lambda tree: tree.update(version=2), "but fields like these are version 3"),
    "E082": Attack("no columns", lambda tree: tree.update(packed=[]), "no list of at least one column"),
    "E083": Attack("no images", lambda tree: tree["schema"].pop("i"), "fields like these are version 2"),
}


ATTACKS = {
    number: (index, attack)
    for index, attacks in (
        (INDEX, FILES | ENTRIES | HEAD),
        (PACKED_INDEX, PACKED | PACKED_INDEXES),
        (IMAGE_INDEX, IMAGE_INDEXES),
        (IMAGE_INDEX, {
            number: attack._replace(change=lambda tree, attack=attack: attack.change(tree["schema"]))
            for number, attack in IMAGE_FIELDS.items()
        }),
    )
    for number, attack in attacks.items()
}  # fmt: skip
GOOD = INDEX.to_bytes()

# _Reading.index: number -> (what it tries, the file, complaint, offset)
RAW = {
    "I110": ("an empty file", b"", "no valid JSON", 0),
    "I111": ("a list", b"[]", "it is no JSON object", 0),
    "I116": ("bytes that are no UTF-8", b'{"\xff":1}', "no valid UTF-8", 2),
    "I117": ("a byte order mark", b"\xef\xbb\xbf" + GOOD, "no valid JSON", 0),
    "I119": ("a second index after the first", GOOD + GOOD, "no valid JSON: Extra data", len(GOOD)),
    "I120": ("no word of JSON, after letters of several bytes", '{"é€": nonsense}'.encode(), "no valid JSON", 10),
    "I121": ("overflowing the stack", b'{"a":' * 10**5, "no valid JSON", 0),
    "I123": ("a number that int() refuses", GOOD.replace(b": 12,", b": " + b"1" * 5000 + b","), "no valid JSON", 0),
    "I124": ("two totals", GOOD.replace(b'"samples": 12', b'"samples": 1, "samples": 12'), "'samples' occurs twice", 0),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("number", ATTACKS)
def test_hostile_index_is_refused(number):
    index, attack = ATTACKS[number]
    tree = json.loads(index.to_bytes())
    attack.change(tree)
    # A file name of a surrogate cannot be part of any digest, so that no second problem may follow from it.
    assert len(attack.on_index(forged(tree)).problems) == 1


@pytest.mark.timeout(20)
@pytest.mark.parametrize("number", RAW)
def test_hostile_json_is_refused(number):
    _, raw, says, offset = RAW[number]
    with pytest.raises(FormatError, match=says) as caught:
        parse_index(raw, FILE)
    assert [(FILE, offset)] == [(problem.file, problem.offset) for problem in caught.value.problems]


@pytest.mark.parametrize("sha", [SHA, None], ids=repr)
def test_wrong_digest_is_refused(sha):
    tree = json.loads(GOOD)
    tree["sha256"] = sha
    with pytest.raises(FormatError, match="does not match its own sha256: it was changed or damaged"):
        parse_index(json.dumps(tree).encode(), FILE)


def test_nesting_of_any_depth_is_refused():
    hosts = [{key: "NESTED"} for key in ("format", "version", "samples", "schema", "shards", "sha256")]
    hosts += [{"schema": {"x": "NESTED"}}, {"schema": {"x": {"dtype": "int8", "shape": "NESTED"}}}]
    hosts += [{"shards": [{"file": "NESTED", "samples": 1, "bytes": 1, "sha256": SHA}]}]
    for depth in range(2, 1100, 11):
        nested = "[" * depth + "]" * depth
        for host in hosts:
            raw = json.dumps(json.loads(GOOD) | host).replace('"NESTED"', nested).encode()
            with pytest.raises(FormatError, match="no valid index"):
                parse_index(raw, FILE)


def test_every_problem_is_reported_at_once():
    tree = json.loads(GOOD)
    tree["samples"] = None
    tree["extra"] = 1
    tree["schema"]["x"]["dtype"] = "object"
    tree["shards"][0]["file"] = "../x"
    tree["shards"][1]["bytes"] = -1
    with pytest.raises(FormatError, match="no valid index") as caught:
        parse_index(json.dumps(tree).encode(), FILE)
    starts = "it has the unknown", "samples is None", "schema: field 'x'", "shards[0]: '../x'", "shards[1]: bytes is"
    for problem, start in zip(caught.value.problems, starts, strict=True):
        assert problem.message.startswith(start)


@pytest.mark.parametrize("name", ["index.json", " ", "a\nb", "-rf", "~", "$HOME", "x" * 300, "\u202e", "con", "a:b"])
def test_odd_names_are_plain_files(name):
    """They lead nowhere but into the folder; whether such a file exists is for the file system to say."""
    tree = json.loads(GOOD)
    tree["shards"][1]["file"] = name
    assert name == parse_index(forged(tree), FILE).shards[1].file


# --- metadata ---

DESCRIBED = Index(
    StoredSchema(Schema({"x": Field("int32")})),
    (IndexEntry("0.safetensors", 5, 8192, SHA),),
    {"classes": {"x": ["cat", "dog"]}, "n": [1, 2.5, None, True]},
)


def metadata(value: object) -> Change:
    """Other metadata, with their digest."""
    return lambda tree: tree.update(json.loads(forged({**tree, "metadata": value}, "metadata_sha256")))


DESCRIBED_INDEXES = {
    "D001": Attack("a list", metadata([1]), r"metadata is \[1\], no object"),
    "D002": Attack("nothing", metadata({}), "metadata is {}, no object of at least one key"),
    "D007": Attack("NaN", metadata({"a": float("nan")}), "metadata has the number nan"),
    "D040": Attack("version 1", top(version=1), r"unknown keys \['metadata', 'metadata_sha256'\]"),
    "D041": Attack("version 2", top(version=2), r"unknown keys \['metadata', 'metadata_sha256'\]"),
    "D042": Attack("no digest", lambda tree: tree.pop("metadata_sha256"), "do not match metadata_sha256"),
    "D043": Attack("a digest alone", lambda tree: tree.pop("metadata"), "metadata is None, no object"),
    "D044": Attack("a digest of another kind", top(metadata_sha256=3), "do not match metadata_sha256"),
    "D046": Attack("none, and the version", lambda tree: [tree.pop(key) for key in ("metadata", "metadata_sha256")],
                   "its version is 3, but fields like these are version 1"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("index", "key"),
    [(INDEX, "sha256"), (PACKED_INDEX, "sha256"), (IMAGE_INDEX, "sha256"), (DESCRIBED, "metadata_sha256")],
    ids=["plain", "packed", "images", "metadata"],
)
def test_the_index_itself_is_good(index, key):
    assert parse_index(forged(json.loads(index.to_bytes()), key), FILE) == index


@pytest.mark.timeout(20)
@pytest.mark.parametrize("number", DESCRIBED_INDEXES)
def test_hostile_metadata_are_refused(number):
    tree, attack = json.loads(DESCRIBED.to_bytes()), DESCRIBED_INDEXES[number]
    attack.change(tree)
    attack.on_index(json.dumps(tree).encode())


@pytest.mark.parametrize(
    "found", [{"a": deep(30)}, {"a": "x" * (MAX_METADATA_BYTES - 8)}, {"a": [2**64 - 1, -(2**63)]}]
)
def test_metadata_at_the_limits_are_read(found):
    index = Index(DESCRIBED.stored, DESCRIBED.shards, found)
    assert parse_index(index.to_bytes(), FILE).metadata == found


@pytest.mark.parametrize("samples", [(2**63 - 1,), (2**62, 2**62 - 1)])
def test_as_many_samples_as_64_bits_count_are_read(samples):
    shards = tuple(IndexEntry(f"{number}.safetensors", count, 8192, SHA) for number, count in enumerate(samples))
    index = Index(INDEX.stored, shards)
    assert parse_index(index.to_bytes(), FILE) == index


def test_a_changed_byte_is_refused():
    """Of metadata, too: a name of a class that is another one is as wrong as a flipped pixel."""
    raw = DESCRIBED.to_bytes()
    for at in range(len(raw)):
        for bit in (1, 2, 16):
            changed = raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :]
            try:
                assert parse_index(changed, FILE) == DESCRIBED  # white space, or another escape of the same letter
            except FormatError:
                continue
