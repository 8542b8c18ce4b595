"""docs/spec/shard-v1.md: its requirements name tests that exist, and its example is what the code writes."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import struct
from pathlib import Path

import pytest

from gdsload.shards.format.checksum import BLOCK_BYTES, block_digest
from gdsload.shards.format.dtypes import DTYPES
from gdsload.shards.format.header import header_bytes, parse_header
from gdsload.shards.format.index import Index, IndexEntry, parse_index
from gdsload.shards.format.layout import ShardLayout
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.shard import ALIGNMENT, read_shard

ROOT = Path(__file__).parents[3]
SPEC = (ROOT / "docs/spec/shard-v1.md").read_text()
PARAGRAPHS = re.split(r"\n\n+", SPEC)
REQUIREMENTS = [paragraph for paragraph in PARAGRAPHS if paragraph.startswith("**M")]
# Its tests come with the dataset; until then there is no file to look into.
LATER = "tests/shards/test_folder.py"

EXAMPLE = ShardLayout(Schema({"x": Field("float32", (2,)), "text": Field("str")}), 2, {"text": 5}, {"text": "text"})
PAYLOADS = {
    "gdsload:offsets:text": struct.pack("<3q", 0, 2, 5),
    "x": struct.pack("<4f", 1, 2, 3, 4),
    "text": b"hiyou",
}


def named_tests(paragraph: str) -> list[tuple[str, str]]:
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", paragraph)


def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def example() -> bytes:
    data = bytearray(EXAMPLE.data_bytes())
    for name, begin in EXAMPLE.data_offsets().items():
        data[begin : begin + len(PAYLOADS[name])] = PAYLOADS[name]
    return EXAMPLE.header({name: block_digest(payload) for name, payload in PAYLOADS.items()}) + bytes(data)


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SPEC, re.DOTALL)


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
        if file == LATER and not (ROOT / file).exists():
            continue
        assert function in functions_of(file), f"{file} has no {function}"


def test_requirements_lean_only_on_tests_that_may_be_checked():
    for paragraph in REQUIREMENTS:
        for file, _ in named_tests(paragraph):
            assert file == LATER or file.startswith(("tests/shards/format/", "tests/shards/attacks/"))


def test_dtypes_are_those_of_the_table():
    rows = re.findall(r"^\| ([A-Z]\w+) \| (\w+) \| (\d) \|$", SPEC, re.MULTILINE)
    assert [(dtype.code, dtype.name, str(dtype.itemsize)) for dtype in DTYPES.values()] == rows


def test_numbers_are_those_of_the_code():
    assert f"multiple of {ALIGNMENT}" in SPEC
    assert f"which is {BLOCK_BYTES}" in " ".join(SPEC.split())


def test_worked_example_is_what_the_code_writes():
    raw = example()
    length = header_bytes(raw[:8], len(raw), "example")
    text = raw[8:length].rstrip(b" ")
    shown = json.loads(code_blocks("json")[0])
    assert json.dumps(shown, separators=(",", ":")).encode() == text
    assert f"it is {len(text)} bytes without any and then {length - 8 - len(text)} blanks" in SPEC
    assert f"The file has {len(raw)} bytes." in SPEC


def test_worked_example_hexdump_is_the_file():
    raw = example()
    length = header_bytes(raw[:8], len(raw), "example")
    shown = bytearray(len(raw))
    shown[:length] = raw[:length]
    for line in code_blocks("hexdump")[0].splitlines():
        place, found = re.match(r"([0-9a-f]{8})  ((?:[0-9a-f]{2} ?)+)", line).groups()
        values = bytes.fromhex(found)
        shown[int(place, 16) : int(place, 16) + len(values)] = values
    assert raw == bytes(shown)


def test_worked_example_never_changes():
    """Version 1 is what was written as version 1: if this fails, the code is wrong, not this digest."""
    assert hashlib.sha256(example()).hexdigest() == "78a70870cce3fe793d20b563b5cbc54849e78a2a4ce6ce2b1741711b6de1fbc4"


def test_worked_example_can_be_read():
    raw = example()
    header = parse_header(raw[: header_bytes(raw[:8], len(raw), "example")], len(raw), "example")
    shard = read_shard(header, "example")
    assert (EXAMPLE.schema, 2) == (shard.schema, shard.samples)
    assert (
        shard.columns["x"].begin,
        shard.columns["text"].begin,
        shard.columns["text"].offsets_begin,
    ) == (0x2000, 0x3000, 0x1000)


def test_example_index_is_what_the_code_writes():
    raw = example()
    header = parse_header(raw[: header_bytes(raw[:8], len(raw), "example")], len(raw), "example")
    index = Index(EXAMPLE.schema, (IndexEntry("00000.safetensors", 2, len(raw), header.sha256),))
    shown = code_blocks("json")[1]
    assert index == parse_index(shown.encode(), "index.json")
    assert json.loads(index.to_bytes()) == json.loads(shown)
    without = re.sub(r',"sha256":"\w+"\}\s*$', "}", shown)
    assert hashlib.sha256(without.encode()).hexdigest() == index.digest()
