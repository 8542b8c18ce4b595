"""The index of a dataset: round trip, and what a change of any byte does to it."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.errors import FormatError
from gdsload.shards.format.index import INDEX_NAME, Index, IndexEntry, parse_index
from gdsload.shards.format.schema import RESERVED_PREFIX, Field, Schema

SETTINGS = settings(derandomize=True, deadline=None, max_examples=80)
SHA = "0123456789abcdef" * 4

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name != "__metadata__" and not name.startswith(RESERVED_PREFIX)
)
FILES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\\\0"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..")
)
FIELDS = st.sampled_from(
    [Field("float32"), Field("bfloat16", (None, 3)), Field("str"), Field("bytes"), Field("uint8", (0, 2**40))]
)
ENTRIES = st.tuples(st.integers(1, 2**60), st.integers(1, 2**63 - 1), st.binary(min_size=32, max_size=32))


@st.composite
def indexes(draw: st.DrawFn) -> Index:
    schema = Schema(draw(st.dictionaries(NAMES, FIELDS, min_size=1, max_size=4)))
    files = draw(st.lists(FILES, max_size=4, unique=True))
    return Index(
        schema,
        tuple(IndexEntry(file, samples, size, sha.hex()) for file in files for samples, size, sha in [draw(ENTRIES)]),
    )


EXAMPLE = Index(
    Schema({"é": Field("float32", (None, 2)), "name": Field("str")}),
    (IndexEntry("00000.safetensors", 7, 8192, SHA), IndexEntry("00001.safetensors", 5, 12288, SHA[::-1])),
)


@SETTINGS
@given(indexes())
def test_index_reads_back_what_was_written(index):
    raw = index.to_bytes()
    assert index == parse_index(raw, INDEX_NAME)
    assert index.digest() == parse_index(raw, INDEX_NAME).digest()
    assert raw == parse_index(raw, INDEX_NAME).to_bytes()


def test_form_of_the_index():
    tree = json.loads(EXAMPLE.to_bytes())
    assert list(tree) == ["format", "version", "samples", "schema", "shards", "sha256"]
    assert (tree["format"], tree["version"], tree["samples"]) == ("gdsload-dataset", 1, 12)
    assert tree["shards"][0] == {"file": "00000.safetensors", "samples": 7, "bytes": 8192, "sha256": SHA}
    assert EXAMPLE.schema.to_json() == tree["schema"]
    assert INDEX_NAME == "index.json"


def test_index_digest_is_the_sha256_of_its_compact_json():
    tree = json.loads(EXAMPLE.to_bytes())
    sha = tree.pop("sha256")
    assert sha == EXAMPLE.digest()
    assert sha == hashlib.sha256(json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


def test_index_digest_names_the_content():
    other_order = Index(EXAMPLE.schema, EXAMPLE.shards[::-1])
    other_sha = Index(EXAMPLE.schema, (IndexEntry("00000.safetensors", 7, 8192, SHA[::-1]), EXAMPLE.shards[1]))
    other_schema = Index(Schema(dict(reversed(list(EXAMPLE.schema.items())))), EXAMPLE.shards)
    assert len({index.digest() for index in (EXAMPLE, other_order, other_sha, other_schema)}) == 4


def test_empty_dataset_is_an_index_without_shards():
    index = Index(EXAMPLE.schema, ())
    assert index.samples == 0
    assert index == parse_index(index.to_bytes(), INDEX_NAME)


def test_blanks_and_line_ends_do_not_matter():
    raw = EXAMPLE.to_bytes()
    assert parse_index(raw.replace(b"\n", b"\r\n\t "), INDEX_NAME) == EXAMPLE
    assert parse_index(json.dumps(json.loads(raw)).encode(), INDEX_NAME) == EXAMPLE


@settings(derandomize=True, deadline=None, max_examples=400)
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


def test_problem_of_the_json_is_located_in_bytes():
    raw = '{"é€": nonsense}'.encode()
    with pytest.raises(FormatError, match="no valid JSON") as caught:
        parse_index(raw, INDEX_NAME)
    assert [raw.index(b"nonsense")] == [problem.offset for problem in caught.value.problems]
    assert [problem.file for problem in caught.value.problems] == [INDEX_NAME]
