"""Hostile safetensors headers. Each has a number for good and says what it tries; the check above it stops it."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from gdsload.errors import FormatError
from gdsload.shards.format.header import MAX_HEADER_BYTES, PREFIX_BYTES, Header, header_bytes, parse_header

FILE = "hostile.safetensors"


class Attack(NamedTuple):
    """The content of a file, and the problem that must be found: its words, its tensor, and its offset where that is exact."""

    tries: str
    header: bytes
    data_bytes: int
    says: str
    field: str | None = None
    offset: int | None = None


def parse(header: bytes, data_bytes: int) -> Header:
    raw = len(header).to_bytes(PREFIX_BYTES, "little") + header
    length = header_bytes(raw[:PREFIX_BYTES], len(raw) + data_bytes, FILE)
    return parse_header(raw[:length], len(raw) + data_bytes, FILE)


def entry(dtype: object = "U8", shape: object = (4,), offsets: object = (0, 4)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def header(**tensors: object) -> bytes:
    return json.dumps(tensors).encode()


def text(shape: str = "[4]", offsets: str = "[0,4]", dtype: str = '"U8"') -> bytes:
    """A header of one tensor `x`, of JSON as it stands."""
    return f'{{"x":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}}}'.encode()


GOOD = text()
NINES = "9" * 19
SHAPE, OFFSETS = "is no list of at most 64 whole numbers", "are no two whole numbers"

# header_bytes: number -> (what it tries, the first bytes, length of the file, complaint)
PREFIXES = {
    "H004": ("half a pair of braces", b"\1" + b"\0" * 7, 9, "too few for any header"),
    "H006": ("reading one byte past the end", b"\x03" + b"\0" * 7, 10, "claims 3 bytes, but only 2 follow"),
    "H007": ("allocating an exabyte", b"\xff" * 8, 2**40, "header would have 18446744073709551615 bytes"),
    "H009": ("a header just over the cap", (10**8 + 1).to_bytes(8, "little"), 2**40, "would have 100000001 bytes"),
}

# _Check.json
JSON = {
    "H020": Attack("a header of no bytes", b"", 2, r"begins with '\{', but with b''", None, 8),
    "H024": Attack("hiding behind a leading blank", b" " + GOOD, 4, r"begins with '\{', but with b' '", None, 8),
    "H025": Attack("hiding behind a byte order mark", b"\xef\xbb\xbf" + GOOD, 4, r"begins with '\{'", None, 8),
    "H026": Attack("a brace alone", b"{ ", 0, "no valid JSON", None, 10),
    "H028": Attack("a second object after the first", GOOD + GOOD, 4, "no valid JSON: Extra data", None, 8 + len(GOOD)),
    "H031": Attack("bytes that are no UTF-8", GOOD.replace(b"x", b"\xff"), 4, "no valid UTF-8", None, 10),
    "H035": Attack("overflowing the stack with objects", b'{"a":' * 200_000, 0, "nested too deeply", None, 8),
    "H036": Attack("memory of thirty times its size", b'{"a":[' + b"[]," * 2**23 + b"[]]}", 0, "nothing but brackets"),
    "H037": Attack("a raw line end in a name", GOOD.replace(b"x", b"x\n"), 4, "JSON: Invalid control", None, 11),
    "H043": Attack("a tensor under two names of one key", GOOD[:-1] + b"," + GOOD[1:], 4, "'x' occurs twice", None, 8),
    "H044": Attack("one key written with escapes", GOOD[:-1] + b',"\\u0078' + GOOD[3:], 4, "'x' occurs twice"),
    "H045": Attack("two shapes", text('[4],"shape":[2]'), 4, "'shape' occurs twice"),
}

# _Check.entry: the numbers of shape and data_offsets
NUMBERS = {
    "H061": Attack("a whole number as a fraction", text("[4.0]"), 4, SHAPE, "x"),
    "H067": Attack("true, which Python takes for 1", text("[4,true]"), 4, SHAPE, "x"),
    "H071": Attack("two negative sizes, whose product is positive", text("[-2,-2]"), 4, SHAPE, "x"),
    "H072": Attack("a size of 19 digits", text(f"[{NINES}]"), 4, "more bytes than 64 bits", "x"),
    "H075": Attack("a size of a million digits", text(f"[{'9' * 10**6}]"), 4, "no valid JSON: Exceeds the limit"),
    "H076": Attack("a product that wraps to 4", text("[4611686018427387905,4]"), 4, "more bytes than 64 bits", "x"),
    "H078": Attack("a product hidden by a zero", text(f"[0,{2**62},{2**62}]", "[0,0]"), 0, "more bytes than", "x"),
    "H079": Attack("bytes overflow, elements do not", text(f"[0,{2**61}]", "[0,0]", '"F64"'), 0, "more bytes", "x"),
    "H080": Attack("65 dimensions", text(str([1] * 65), "[0,1]"), 1, SHAPE, "x"),
    "H082": Attack("a shape that is a number", text("4"), 4, SHAPE, "x"),
    "H086": Attack("no offsets", text("[4]", "[]"), 4, OFFSETS, "x"),
    "H088": Attack("three offsets", text("[4]", "[0,4,4]"), 4, OFFSETS, "x"),
    "H095": Attack("reading the header as data", text("[4]", "[-4,0]"), 0, OFFSETS, "x"),
    "H099": Attack("a zero with a sign", text("[4]", "[-0,4]"), 4, OFFSETS, "x"),
    "H098": Attack("an offset negative if signed", text("[4]", f"[{2**63},{2**63 + 4}]"), 4, "after the data", "x"),
}

# _Check.entry: the rest of an entry, and of __metadata__
ENTRIES = {
    "H110": Attack("offsets in reverse", header(x=entry(offsets=(4, 0))), 4, "span -4 bytes", "x"),
    "H111": Attack("fewer bytes than needed", header(x=entry(offsets=(0, 3))), 3, r"3 bytes, but U8 \[4\] needs 4"),
    "H112": Attack("more bytes than the shape needs", header(x=entry(offsets=(0, 5))), 5, "span 5 bytes", "x"),
    "H117": Attack("a file cut short", header(x=entry()), 3, "end after the data, which have 3 bytes", "x", 9),
    "H119": Attack("a dtype nobody knows", header(x=entry("F128")), 4, "dtype 'F128' is unknown", "x"),
    "H122": Attack("a list, which cannot be looked up", header(x=entry(["U8"])), 4, "is unknown", "x"),
    "H126": Attack("a dtype of a megabyte", header(x=entry("U" * 10**6)), 4, r"dtype 'U{36,40}\.\.\.U{36,40}'", "x"),
    "H130": Attack("no dtype", header(x={"shape": [4], "data_offsets": [0, 4]}), 4, "has exactly dtype, shape", "x"),
    "H133": Attack("one key more", header(x=entry() | {"strides": [1]}), 4, "has exactly dtype, shape", "x"),
    "H135": Attack("a tensor that is a list", header(x=["U8", [4], [0, 4]]), 4, "has exactly dtype, shape", "x"),
    "H138": Attack("half a surrogate pair as name", b'{"\\ud800' + GOOD[3:], 4, "no valid Unicode text", "\ud800", 8),
    "H140": Attack("a list", b'{"__metadata__":[]}', 0, "is no JSON object", "__metadata__", 9),
    "H143": Attack("a number", b'{"__metadata__":{"a":1}}', 0, r"__metadata__\['a'\] is no valid", "__metadata__"),
    "H146": Attack("text that cannot be printed", b'{"__metadata__":{"a":"\\ud800"}}', 0, "no valid Unicode text"),
    "H147": Attack("a key that cannot be printed", b'{"__metadata__":{"\\udc00":""}}', 0, "no valid Unicode text"),
}

A, B = entry(shape=[4], offsets=[0, 4]), entry(shape=[4], offsets=[4, 8])

# _Check.cover
COVER = {
    "H161": Attack("overlap by one byte", header(a=A, b=entry(offsets=(3, 7))), 7, "inside the one before it", "b"),
    "H163": Attack("nothing inside another", header(a=A, b=entry(shape=[0], offsets=[2, 2])), 4, "inside the one", "b"),
    "H165": Attack("a hole for a payload", header(a=A, b=entry(offsets=(5, 9))), 9, "a hole of 1 bytes", "b"),
    "H167": Attack("a payload at the end", header(a=A, b=B), 9, "1 bytes after the last tensor"),
    "H168": Attack("a payload without tensors", b"{}", 100, "100 bytes after the last tensor", None, 10),
    "H169": Attack("overlap in another order", header(b=B, a=entry(shape=[5], offsets=[0, 5])), 8, "inside", "b"),
}

ATTACKS = JSON | NUMBERS | ENTRIES | COVER


@pytest.mark.parametrize("number", PREFIXES)
def test_hostile_prefix_is_refused(number):
    _, prefix, file_bytes, says = PREFIXES[number]
    with pytest.raises(FormatError, match=says) as caught:
        header_bytes(prefix, file_bytes, FILE)
    assert [(problem.file, problem.offset) for problem in caught.value.problems] == [(FILE, 0)]


def test_longest_header_is_accepted():
    assert header_bytes(MAX_HEADER_BYTES.to_bytes(8, "little"), 2**40, FILE) == MAX_HEADER_BYTES + 8


@pytest.mark.timeout(20)
@pytest.mark.parametrize("number", ATTACKS)
def test_hostile_header_is_refused(number):
    attack = ATTACKS[number]
    with pytest.raises(FormatError, match=attack.says) as caught:
        parse(attack.header, attack.data_bytes)
    problem = caught.value.problems[0]
    if number not in JSON:
        assert len(caught.value.problems) == 1
    assert FILE == caught.value.file == problem.file
    if attack.field is not None:
        assert attack.field == problem.field
    if attack.offset is not None:
        assert attack.offset == problem.offset
    assert 8 <= problem.offset <= 8 + len(attack.header) + attack.data_bytes
    assert len(str(caught.value)) < 20_000


@pytest.mark.parametrize("key", ["shape", "dtype", "offsets"])
def test_nesting_of_any_depth_is_refused(key):
    """Somewhere between, what could be parsed could perhaps not be shown."""
    for depth in range(2, 1100, 3):
        nested = "[" * depth + "]" * depth
        with pytest.raises(FormatError, match=r"nested too deeply|whole numbers|is unknown"):
            parse(text(**{key: nested}), 4)


def test_names_are_data():
    """A name that looks dangerous is a name, and is shown with escapes."""
    names = ["", "\0", "\n", "../x", "/etc/passwd", "a\x1b[31mb", "%s", "{0}", "\u202e", "x" * 10**6]
    tensors = {name: entry(offsets=(4 * at, 4 * at + 4)) for at, name in enumerate(names)}
    assert names == list(parse(header(**tensors), 4 * len(names)).tensors)
    with pytest.raises(FormatError, match=r"field 'a\\x1b\[31mb'") as caught:
        parse(header(**tensors), 3)
    shown = str(caught.value)
    assert r"'\x00'" in shown
    assert r"'\u202e'" in shown
    assert len(shown) < 5000


def test_every_problem_is_reported_at_once():
    raw = (
        b'{"__metadata__":{"a":1,"b":[]},"twice":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
        b'"shape":{"dtype":"U8","shape":[1.5],"data_offsets":[4,8]},'
        b'"all":{"dtype":"F4","shape":[-1],"data_offsets":[8]},'
        b'"keys":{},'
        b'"far":{"dtype":"U8","shape":[4],"data_offsets":[96,100]}}'
    )
    with pytest.raises(FormatError, match=r"\(8 problems\)") as caught:
        parse(raw, 90)
    fields = [problem.field for problem in caught.value.problems]
    metadata = ["__metadata__"] * 2
    assert [*metadata, "shape", "all", "all", "all", "keys", "far"] == fields
    places = [problem.offset for problem in caught.value.problems if problem.field != "shape"]
    names = [problem.field for problem in caught.value.problems if problem.field != "shape"]
    assert [8 + raw.index(f'"{name}"'.encode()) for name in names] == places


def test_holes_and_overlaps_are_reported_together():
    tensors = {"a": A, "b": entry(offsets=(3, 7)), "c": entry(offsets=(10, 14)), "d": entry(offsets=(20, 24))}
    with pytest.raises(FormatError, match="4 problems") as caught:
        parse(header(**tensors), 30)
    assert [problem.field for problem in caught.value.problems] == ["b", "c", "d", None]
    data = 8 + len(header(**tensors))
    assert [problem.offset - data for problem in caught.value.problems] == [3, 7, 14, 24]


def test_file_cut_anywhere_is_refused():
    whole = len(GOOD).to_bytes(PREFIX_BYTES, "little") + GOOD + bytes(4)
    for length in range(len(whole)):
        with pytest.raises(FormatError, match="no valid safetensors file"):
            parse_header(whole[: header_bytes(whole[: min(length, PREFIX_BYTES)], length, FILE)], length, FILE)


@pytest.mark.timeout(20)
def test_many_faults_take_no_longer_than_many_tensors():
    # With a search of the header for each fault this takes minutes: names with escapes are searched for in vain.
    faults = ",".join(f'"\\u0078{number}":{{}}' for number in range(40_000))
    with pytest.raises(FormatError, match="40000 problems"):
        parse(b"{" + faults.encode() + b"}", 0)


@pytest.mark.parametrize(
    ("raw", "data_bytes"),
    [
        (b"{}", 0),
        (b"{}   \n\t\r ", 0),
        (GOOD + b" " * 4096, 4),
        (header(b=B, a=A), 8),
        (header(a=A, z=entry(shape=[0], offsets=[4, 4]), y=entry("F64", [3, 0], [4, 4]), b=B), 8),
        (header(x=entry("F64", [], [0, 8])), 8),
        (header(x=entry(shape=[1] * 64, offsets=[0, 1])), 1),
        (header(x=entry(shape=[0, 2**63 - 1], offsets=[0, 0])), 0),
    ],
)
def test_odd_but_good_header_is_read(raw, data_bytes):
    found = parse(raw, data_bytes)
    assert 8 + len(raw) == found.data_start
    assert data_bytes == sum(tensor.end - tensor.begin for tensor in found.tensors.values())
