"""Hostile shards: valid safetensors files with wrong gdsload metadata. Numbered for good; see test_headers.py."""

from __future__ import annotations

import pytest

from gdsload.errors import FormatError
from tests.shards.attacks.forging import (
    FILE,
    IMAGE_FIELDS,
    IMAGE_LAYOUT,
    PACKED,
    PACKED_LAYOUT,
    Attack,
    Change,
    inside,
    read,
    tree_of,
    version,
)
from tests.shards.format.shard_files import SMALL as LAYOUT

TOKENS, NAME = "gdsload:offsets:tokens", "gdsload:offsets:name"
SAMPLES, SCHEMA, CHECKSUMS, VERSION = (f"gdsload.{key}" for key in ("samples", "schema", "checksums", "version"))


def text_of(key: str, value: str | None) -> Change:
    """Replace a metadata text, or take it away."""

    def change(tree: dict) -> None:
        tree["__metadata__"].pop(key)
        if value is not None:
            tree["__metadata__"][key] = value

    return change


def schema(change_it: Change) -> Change:
    return inside(SCHEMA, change_it)


def said(**values: object) -> Change:
    return schema(lambda tree: tree.update(values))


def fields(**entries: object) -> Change:
    return schema(lambda tree: tree["fields"].update(entries))


def offsets(**owners: object) -> Change:
    return schema(lambda tree: tree["offsets"].update(owners))


def checksums(**values: object) -> Change:
    return inside(CHECKSUMS, lambda tree: tree.update(values))


def digests(**values: object) -> Change:
    return inside(CHECKSUMS, lambda tree: tree["digests"].update(values))


def renamed(old: str, new: str) -> Change:
    return lambda tree: tree.update({new: tree.pop(old)})


def tensor(name: str, **values: object) -> Change:
    return lambda tree: tree[name].update(values)


def moved_by_a_page_less(tree: dict) -> None:
    """Take the padding after the first tensor away, and move all others down."""
    removed = tree.pop("gdsload:pad:0")["shape"][0]
    for name, entry in tree.items():
        if name not in ("__metadata__", TOKENS):
            entry["data_offsets"] = [offset - removed for offset in entry["data_offsets"]]


def last_padding(tree: dict) -> dict:
    return max((entry for name, entry in tree.items() if "pad" in name), key=lambda entry: entry["data_offsets"])


def grown_padding(tree: dict) -> None:
    entry = last_padding(tree)
    begin, end = entry["data_offsets"]
    entry.update(shape=[end - begin + 4096], data_offsets=[begin, end + 4096])


def doubled(key: str, old: str, new: str) -> Change:
    return lambda tree: tree["__metadata__"].update({key: tree["__metadata__"][key].replace(old, new, 1)})


DIGEST = "0" * 16

# _Reading.own and _Reading._count
HEAD = {
    "S001": Attack("a version of the future", text_of(VERSION, "4"), "version is '4'; this gdsload reads versions"),
    "S005": Attack("a 1 of another script", text_of(VERSION, "\u0661"), "version is '\u0661'"),
    "S006": Attack("a version of a megabyte", text_of(VERSION, "1" * 10**6), f"version is '{'1' * 20}'"),
    "S010": Attack("no count", text_of(SAMPLES, None), "samples is '', no whole number from 1"),
    "S014": Attack("a second spelling of 5", text_of(SAMPLES, "05"), "samples is '05'"),
    "S017": Attack("digits of another script", text_of(SAMPLES, "\u0665"), "samples is '\u0665'"),
    "S020": Attack("more than 64 bits", text_of(SAMPLES, "9223372036854775808"), "samples is '9223372036854775808'"),
    "S022": Attack("a sample too many", text_of(SAMPLES, "6"), r"F32 \[5, 3\], but the schema says F32 \[6, 3\]", "x"),
    "S023": Attack("one sample too few", text_of(SAMPLES, "4"), r"offsets are I64 \[5\], not I64 \[6\]", TOKENS),
    "S024": Attack("very many samples", text_of(SAMPLES, "9" * 18), r"schema says F32 \[999999999999999999, 3\]", "x"),
}

# _Reading._stored
SCHEMAS = {
    "S030": Attack("no schema", text_of(SCHEMA, None), "gdsload.schema is no valid JSON"),
    "S033": Attack("a list", text_of(SCHEMA, "[]"), "gdsload.schema is no JSON object of fields, offsets"),
    "S034": Attack("an empty object", text_of(SCHEMA, "{}"), "gdsload.schema is no JSON object of fields, offsets"),
    "S036": Attack("a number that int() refuses", text_of(SCHEMA, "9" * 5000), "gdsload.schema is no valid JSON"),
    "S037": Attack("one key more", schema(lambda tree: tree.update(code="x")), "is no JSON object of fields, offsets"),
    "S038": Attack("two of one name", doubled(SCHEMA, '"x":', '"x":{"dtype":"str"},"x":'), "key 'x' occurs twice"),
    "S039": Attack("no fields", schema(lambda tree: tree.update(fields={}, offsets={})), "at least one field"),
    "S042": Attack("another dtype, as wide", fields(x={"dtype": "int32", "shape": [3]}), "the schema says I32", "x"),
    "S043": Attack("another shape, as large", fields(x={"dtype": "float32", "shape": [1, 3]}), r"F32 \[5, 1, 3\]", "x"),
    "S052": Attack("one row as many", fields(tokens={"dtype": "int32", "shape": [None, 4]}), r"I32 \[7, 4\]", "tokens"),
    "S057": Attack("a field dropped in silence", schema(lambda tree: tree["fields"].pop("x")), "neither a field", "x"),
}

# _Reading._groups and _Reading._column: offsets
OFFSETS = {
    "S061": Attack("offsets for one too few", schema(lambda tree: tree["offsets"].pop("name")), "names offsets for"),
    "S062": Attack("offsets for a fixed field", offsets(x="x"), "names offsets for"),
    "S064": Attack("offsets that are a list", said(offsets=["tokens"]), "names offsets for"),
    "S066": Attack("an owner that is a list", offsets(mask=["tokens"]), "gives it the offsets of", "mask"),
    "S068": Attack("a stranger as owner", offsets(mask="y"), "offsets of 'y', which has none", "mask"),
    "S071": Attack("owners in a circle", offsets(mask="name", name="mask"), "which has none", "mask"),
    "S072": Attack("another field's offsets", offsets(mask="name"), "rows, but 'name', whose offsets it uses", "mask"),
    "S074": Attack("no offsets", renamed(NAME, "gdsload:pad:99"), "there is no tensor 'gdsload:offsets:name'", NAME),
    "S075": Attack("offsets without sign", tensor(TOKENS, dtype="U64"), r"are I64 \[6\], not U64 \[6\]", TOKENS),
    "S078": Attack("two dimensions", tensor(TOKENS, shape=[6, 1]), r"not I64 \[6, 1\]", TOKENS),
}

# _Reading._column, _Reading._others, and the alignment
TENSORS = {
    "S080": Attack("a field missing", renamed("x", "y"), "there is no tensor 'x'", "x"),
    "S081": Attack("a scalar in place of rows", tensor("mask", shape=[7, 1]), "the schema says BOOL .7.", "mask"),
    "S082": Attack("a stranger inside the padding", renamed("gdsload:pad:0", "y"), "neither a field, nor offsets", "y"),
    "S084": Attack("unused offsets", renamed("gdsload:pad:0", "gdsload:offsets:y"), "nor padding", "gdsload:offsets:y"),
    "S085": Attack("padding of another dtype", tensor("gdsload:pad:0", dtype="I8"), "nor padding", "gdsload:pad:0"),
    "S086": Attack("padding with dimensions", tensor("gdsload:pad:0", shape=[4048, 1]), "nor padding", "gdsload:pad:0"),
    "S087": Attack("a payload as padding, which no checksum covers", grown_padding, "neither a field, nor offsets"),
    "S088": Attack("tensors that straddle pages", moved_by_a_page_less, "no multiple of 4096", NAME),
}

# _Reading._digests
CHECKS = {
    "S090": Attack("no checksums", text_of(CHECKSUMS, None), "gdsload.checksums is no valid JSON"),
    "S094": Attack("one key more", checksums(salt=""), "is no JSON object of algorithm, block_bytes, digests"),
    "S096": Attack("an algorithm that proves nothing", checksums(algorithm="none"), "is not of xxh3_64 over blocks"),
    "S103": Attack("a fraction that is whole", checksums(block_bytes=262144.0), "blocks of 262144 bytes"),
    "S108": Attack("blocks of a byte", checksums(block_bytes=1), "blocks of 262144 bytes"),
    "S109": Attack("digests in a list", checksums(digests=[]), "has no object of digests"),
    "S111": Attack("one left out", inside(CHECKSUMS, lambda tree: tree["digests"].pop("x")), "has not the 16", "x"),
    "S113": Attack("a digit too few", digests(x=DIGEST[1:]), "has not the 16 hexadecimal digits", "x"),
    "S114": Attack("a block too many", digests(x=DIGEST * 2), "has not the 16 hexadecimal digits", "x"),
    "S116": Attack("upper case", digests(x="ABCDEF0123456789"), "has not the 16 hexadecimal digits", "x"),
    "S118": Attack("digits of another script", digests(x="\u0660" * 16), "has not the 16 hexadecimal digits", "x"),
    "S122": Attack("digests of a stranger", digests(y=DIGEST), "it is no tensor that has any", "y"),
    "S123": Attack("digests of padding", digests(**{"gdsload:pad:0": DIGEST}), "it is no tensor", "gdsload:pad:0"),
}

ROWS = "gdsload:rows:0"

PACKED_SHARDS = {
    "P040": Attack("version 1", version("1"), "is no JSON object of fields, offsets"),
    "P041": Attack("no columns", schema(lambda tree: tree.pop("packed")), "JSON object of fields, offsets, packed"),
    "P051": Attack("rows in one", tensor(ROWS, shape=[120]), r"is U8 \[120\], but the schema says U8 \[5, 24\]", ROWS),
    "P054": Attack("a larger element", fields(a={"dtype": "int64", "shape": [2]}), r"schema says U8 \[5, 32\]", ROWS),
    "P055": Attack("another order, so other places", said(packed=[["b", "a"], ["c"]]), r"says U8 \[5, 8\]", ROWS),
    "P056": Attack("2^63 bytes", fields(a={"dtype": "int32", "shape": [2**61 - 5]}), "a row has more bytes than"),
    "P060": Attack("no rows", renamed(ROWS, "gdsload:rows:2"), f"there is no tensor {ROWS!r}", ROWS),
    "P062": Attack("rows under the field's name", renamed(ROWS, "a"), "neither a field of its own, being packed", "a"),
    "P063": Attack("a column more", said(packed=[["c", "a"]]), "there is no tensor 'b'", "b"),
    "P064": Attack("a column less", said(packed=[["c", "a"], ["b"], ["wide"]]), "no tensor 'gdsload:rows:2'"),
}


def of_version_1(tree: dict) -> None:
    """A shard that an old reader would have to refuse, and whose version must not let it read."""
    version("1")(tree)
    schema(lambda inner: inner.pop("packed"))(tree)


IMAGE_SHARDS = {
    "E040": Attack("version 2", version("2"), "its version is 2, but fields like these are version 3"),
    "E041": Attack("version 1", of_version_1, "its version is 1, but fields like these are version 3"),
    "E042": Attack("one key more", schema(lambda tree: tree.update(x=1)), "is no JSON object of fields, offsets"),
    "E043": Attack("no columns", schema(lambda tree: tree.update(packed=[])), "no list of at least one column"),
    "E045": Attack("a packed image", schema(lambda tree: tree.update(packed=[["i"]])), "'i' is not fixed"),
}


ATTACKS = {
    number: (layout, attack)
    for layout, attacks in (
        (LAYOUT, HEAD | SCHEMAS | OFFSETS | TENSORS | CHECKS),
        (PACKED_LAYOUT, {number: attack._replace(change=schema(attack.change)) for number, attack in PACKED.items()}),
        (PACKED_LAYOUT, PACKED_SHARDS),
        (IMAGE_LAYOUT, {
            number: attack._replace(change=schema(lambda tree, attack=attack: attack.change(tree["fields"])))
            for number, attack in IMAGE_FIELDS.items()
        }),
        (IMAGE_LAYOUT, IMAGE_SHARDS),
    )
    for number, attack in attacks.items()
}  # fmt: skip


@pytest.mark.parametrize("layout", [LAYOUT, PACKED_LAYOUT, IMAGE_LAYOUT], ids=["plain", "packed", "images"])
def test_the_shard_itself_is_good(layout):
    assert layout.stored == read(tree_of(layout)).stored


def check_places(tree, problems):
    """Damage outside of tensors is found where the metadata are, damage in one where its bytes are."""
    for problem in problems:
        if problem.field in tree:
            begin = tree[problem.field]["data_offsets"][0]
            assert begin % 4096 == problem.offset % 4096
            assert problem.offset >= 4096
        else:
            assert problem.offset == 8


@pytest.mark.timeout(20)
@pytest.mark.parametrize("number", ATTACKS)
def test_hostile_shard_is_refused(number):
    layout, attack = ATTACKS[number]
    tree = tree_of(layout)
    attack.change(tree)
    error = attack.on_shard(tree)
    assert error.file == FILE
    assert {FILE} == {problem.file for problem in error.problems}
    if number in HEAD | CHECKS:
        check_places(tree, error.problems)
    assert all(problem.offset >= 8 for problem in error.problems)
    assert len(set(error.problems)) == len(error.problems)


@pytest.mark.parametrize(
    ("key", "host"),
    [
        (SCHEMA, "NESTED"),
        (SCHEMA, '{"fields":NESTED,"offsets":{}}'),
        (SCHEMA, '{"fields":{"x":{"dtype":"int8","shape":NESTED}},"offsets":{}}'),
        (SCHEMA, '{"fields":{"x":{"dtype":"str"}},"offsets":NESTED}'),
        (SCHEMA, '{"fields":{"x":{"dtype":"str"}},"offsets":{"x":NESTED}}'),
        (CHECKSUMS, '{"algorithm":NESTED,"block_bytes":262144,"digests":{}}'),
        (CHECKSUMS, '{"algorithm":"xxh3_64","block_bytes":262144,"digests":{"x":NESTED}}'),
    ],
)
def test_nesting_of_any_depth_is_refused(key, host):
    tree = tree_of(LAYOUT)
    for depth in range(2, 1100, 11):
        tree["__metadata__"][key] = host.replace("NESTED", "[" * depth + "]" * depth)
        with pytest.raises(FormatError, match=key):
            read(tree)


def test_unaligned_data_are_refused():
    with pytest.raises(FormatError, match="the data begin at byte .* no multiple of 4096") as caught:
        read(tree_of(LAYOUT), alignment=8)
    assert {"x", TOKENS, "tokens", NAME, "mask", "name", None} == {problem.field for problem in caught.value.problems}


def test_unaligned_file_is_refused():
    tree = tree_of(LAYOUT)
    entry = last_padding(tree)
    begin, end = entry["data_offsets"]
    entry.update(shape=[end - begin - 1], data_offsets=[begin, end - 1])
    with pytest.raises(FormatError, match=r"the file has \d+ bytes, no multiple of 4096"):
        read(tree)


def test_every_problem_is_reported_at_once():
    tree = tree_of(LAYOUT)
    digests(x="", y=DIGEST)(tree)
    text_of(SAMPLES, "six")(tree)
    renamed("gdsload:pad:0", "stranger")(tree)
    tensor("gdsload:pad:1", dtype="BOOL")(tree)
    with pytest.raises(FormatError, match="samples is 'six'") as caught:
        read(tree)
    # The stranger is out of place and has no digests.
    named = sorted(problem.field or "" for problem in caught.value.problems)
    assert named == ["", "gdsload:pad:1", "stranger", "stranger", "x", "y"]


def test_every_field_is_checked():
    tree = tree_of(LAYOUT)
    fields(x={"dtype": "int32", "shape": [3]}, mask={"dtype": "int8", "shape": [None]})(tree)
    renamed("name", "title")(tree)
    tensor(TOKENS, dtype="U64")(tree)
    with pytest.raises(FormatError, match="the schema says I32") as caught:
        read(tree)
    assert {"x", "mask", "name", TOKENS, "title"} == {problem.field for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("tensors", "says", "field"),
    [
        ({}, "holds no tensors", None),
        ({"x": ("U8", [], 1)}, "a tensor without dimensions has no samples", "x"),
        ({"": ("U8", [4], 4)}, "at least one character", ""),
        ({"gdsload:offsets:x": ("I64", [4], 32)}, "is reserved", "gdsload:offsets:x"),
        ({"a": ("U8", [4], 4), "b": ("U8", [2, 2], 4)}, r"differ in their first dimension.*'a': 4, 'b': 2", None),
        ({"a" * 10**6: ("U8", [4], 4), "b": ("U8", [2, 2], 4)}, "differ in their first dimension", None),
    ],
    ids=["S150", "S151", "S152", "S155", "S156", "S157"],
)
def test_hostile_plain_file_is_refused(tensors, says, field):
    tree, position = {"__metadata__": {SAMPLES: "4"}}, 0
    for name, (dtype, shape, nbytes) in tensors.items():
        tree[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + nbytes]}
        position += nbytes
    with pytest.raises(FormatError, match=says) as caught:
        read(tree, alignment=1)
    assert [field] == [problem.field for problem in caught.value.problems]
    assert len(str(caught.value)) < 5000


def test_other_metadata_are_ignored():
    tree = tree_of(LAYOUT)
    tree["__metadata__"] |= {"format": "pt", "license": "CC0-1.0", "gdsload.note": "from a later writer of version 1"}
    assert LAYOUT.stored == read(tree).stored


def test_unknown_version_is_the_only_problem():
    """Its other content may mean something else in that version."""
    tree = {"__metadata__": {VERSION: "10", SAMPLES: "?"}, "y": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}
    with pytest.raises(FormatError, match="gdsload.version is '10'; this gdsload reads versions 1, 2, 3") as caught:
        read(tree, alignment=1)
    assert len(caught.value.problems) == 1


def test_every_problem_of_packed_columns_is_reported_at_once():
    tree = tree_of(PACKED_LAYOUT)
    said(packed=[["a", "z", "a"], [], ["r", "none"]], offsets={})(tree)
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
    for problem, start in zip(caught.value.problems, starts, strict=True):
        assert problem.message.startswith(start)
