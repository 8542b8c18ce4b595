"""docs/spec: the requirements of all versions name tests that exist, and the examples are what the code writes."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import struct
from functools import cache
from pathlib import Path

import pytest

from gdsload.shards.format.checksum import BLOCK_BYTES
from gdsload.shards.format.dtypes import DTYPES
from gdsload.shards.format.header import header_bytes
from gdsload.shards.format.index import Index, IndexEntry, parse_index
from gdsload.shards.format.layout import ShardLayout
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.shard import ALIGNMENT
from gdsload.shards.format.stored import StoredSchema
from tests.shards.format.shard_files import file_of, header_of

ROOT = Path(__file__).parents[3]
SPECS = {version: (ROOT / f"docs/spec/shard-v{version}.md").read_text() for version in (1, 2, 3)}
SPEC = SPECS[1]
PARAGRAPHS = [paragraph for spec in SPECS.values() for paragraph in re.split(r"\n\n+", spec)]
REQUIREMENTS = [paragraph for paragraph in PARAGRAPHS if paragraph.startswith("**M")]

EXAMPLES = {
    1: ShardLayout(
        StoredSchema(Schema({"x": Field("float32", (2,)), "text": Field("str")})), 2, {"text": 5}, {"text": "text"},
    ),
    2: ShardLayout(StoredSchema(
        Schema({"on": Field("bool"), "id": Field("int64"), "x": Field("float32"), "y": Field("float32")}),
        (("id", "x", "y", "on"),),
    ), 2, {}, {}),
    3: ShardLayout(
        StoredSchema(Schema({"photo": Field("image", codecs=["jpeg", "png"]), "label": Field("int64")})),
        2, {"photo": 21}, {"photo": "photo"},
    ),
}  # fmt: skip
PAYLOADS = {
    "gdsload:offsets:text": struct.pack("<3q", 0, 2, 5),
    "x": struct.pack("<4f", 1, 2, 3, 4),
    "text": b"hiyou",
    "gdsload:offsets:photo": struct.pack("<3q", 0, 6, 21),
    "photo": b"\xff\xd8\xffabc\x89PNG\r\n\x1a\ndefghij",
    "label": struct.pack("<2q", 7, -1),
    "gdsload:rows:0": struct.pack("<qff?7xqff?7x", 1, 0.5, 2, True, -1, 3, 4, False),
}


def named_tests(paragraph: str) -> list[tuple[str, str]]:
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", paragraph)


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def example(version: int) -> bytes:
    layout = EXAMPLES[version]
    return file_of(layout, {name: PAYLOADS[name] for name in layout.tensors()})


def code_blocks(version: int, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SPECS[version], re.DOTALL)


def test_requirements_are_numbered_in_order():
    numbers = [re.match(r"\*\*M(\d+)\.\*\* ", paragraph)[1] for paragraph in REQUIREMENTS]
    assert [str(number + 1) for number in range(len(REQUIREMENTS))] == numbers


def test_every_must_is_in_a_requirement():
    """A MUST without a number has no test."""
    others = [paragraph for paragraph in PARAGRAPHS if paragraph not in REQUIREMENTS]
    assert [paragraph for paragraph in others if "MUST" in paragraph] == [
        paragraph for paragraph in others if "RFC 2119" in paragraph
    ]
    assert all("MUST" in paragraph for paragraph in REQUIREMENTS)


@pytest.mark.parametrize("paragraph", REQUIREMENTS, ids=lambda paragraph: re.match(r"\*\*(M\d+)", paragraph)[1])
def test_requirement_names_tests_that_exist(paragraph):
    tests = named_tests(paragraph)
    assert tests
    # Whatever looks like a test must be one that the expression above has understood.
    assert len(tests) == paragraph.count("::")
    for file, function in tests:
        assert file.startswith("tests/shards/")
        assert function in functions_of(file), f"{file} has no {function}"


def test_dtypes_are_those_of_the_table():
    rows = re.findall(r"^\| ([A-Z]\w+) \| (\w+) \| (\d) \|$", SPEC, re.MULTILINE)
    assert [(dtype.code, dtype.name, str(dtype.itemsize)) for dtype in DTYPES.values()] == rows


def test_numbers_are_those_of_the_code():
    assert f"multiple of {ALIGNMENT}" in SPEC
    assert f"which is {BLOCK_BYTES}" in " ".join(SPEC.split())


@pytest.mark.parametrize("version", SPECS)
def test_worked_example_is_what_the_code_writes(version):
    raw = example(version)
    length = header_bytes(raw[:8], len(raw), "example")
    text = raw[8:length].rstrip(b" ")
    shown = json.loads(code_blocks(version, "json")[0])
    assert json.dumps(shown, separators=(",", ":")).encode() == text
    words = " ".join(SPECS[version].split())
    assert f"it is {len(text)} bytes without any and then {length - 8 - len(text)} blanks" in words
    assert f"The file has {len(raw)} bytes." in words
    shown = bytearray(len(raw))
    shown[:length] = raw[:length]
    for line in code_blocks(version, "hexdump")[0].splitlines():
        place, found = re.match(r"([0-9a-f]{8})  ((?:[0-9a-f]{2} ?)+)", line).groups()
        values = bytes.fromhex(found)
        shown[int(place, 16) : int(place, 16) + len(values)] = values
    assert raw == bytes(shown)


@pytest.mark.parametrize(
    ("version", "digest"),
    [
        (1, "78a70870cce3fe793d20b563b5cbc54849e78a2a4ce6ce2b1741711b6de1fbc4"),
        (2, "ecd8e9d82b82825e2d1ff73417c29e8071e63be0bb38994fc6bfa6ef9595e9ff"),
        (3, "1dc7efe98617d8aaa585938eabef4251cbf6bb3934d0fd4f3bf763802a850f56"),
    ],
)
def test_worked_example_never_changes(version, digest):
    """A version is what was written as that version: if this fails, the code is wrong, not this digest."""
    assert hashlib.sha256(example(version)).hexdigest() == digest


@pytest.mark.parametrize("version", SPECS)
def test_example_index_is_what_the_code_writes(version):
    raw, layout = example(version), EXAMPLES[version]
    entry = IndexEntry("00000.safetensors", 2, len(raw), header_of(raw).sha256)
    index = Index(layout.stored, (entry,))
    shown = code_blocks(version, "json")[1]
    assert index == parse_index(shown.encode(), "index.json")
    assert json.loads(index.to_bytes()) == json.loads(shown)
    without = re.sub(r',"sha256":"\w+"\}\s*$', "}", shown)
    assert hashlib.sha256(without.encode()).hexdigest() == index.digest()
