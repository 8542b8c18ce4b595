"""Checksums of blocks, whatever the pieces in which the bytes come."""

from __future__ import annotations

import random

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.shards.format.checksum import (
    ALGORITHM,
    BLOCK_BYTES,
    DIGEST_CHARS,
    BlockHasher,
    block_count,
    block_digest,
)

DATA = random.Random(0).randbytes(3 * BLOCK_BYTES + 1000)


def expected_digests(data: bytes) -> str:
    blocks = range(0, len(data), BLOCK_BYTES)
    return "".join(xxhash.xxh3_64_hexdigest(data[begin : begin + BLOCK_BYTES], seed=0) for begin in blocks)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.sampled_from([0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES]) | st.integers(0, len(DATA)),
    st.lists(st.integers(0, len(DATA)) | st.integers(0, 3).map(lambda blocks: blocks * BLOCK_BYTES), max_size=8),
)
def test_any_cut_of_the_stream_gives_the_same_digests(length, cuts):
    hasher = BlockHasher()
    ends = [*sorted(cut for cut in cuts if cut < length), length]
    begin = 0
    for end in ends:
        hasher.update(memoryview(DATA)[begin:end])
        begin = end
    assert expected_digests(DATA[:length]) == hasher.digests()
    assert expected_digests(DATA[:length]) == hasher.digests()


@pytest.mark.parametrize(
    ("data", "expected"),
    # Pinned: with any other values, shards already written could not be verified.
    [(b"", "2d06800538d394c2"), (b"a", "e6c632b61e964e1f"), (b"abc", "78af5f94892f3950")],
)
def test_digest_is_xxh3_64_with_seed_0(data, expected):
    assert expected == block_digest(data)
    assert ALGORITHM == "xxh3_64"


def test_digest_has_16_lower_case_digits():
    digests = {block_digest(bytes([value])) for value in range(256)}
    assert {DIGEST_CHARS} == {len(digest) for digest in digests}
    assert set("".join(digests)) == set("0123456789abcdef")
    assert any(digest.startswith("0") for digest in digests)


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [(0, 0), (1, 1), (BLOCK_BYTES, 1), (BLOCK_BYTES + 1, 2), (2**62, 2**44)],
)
def test_block_count(nbytes, expected):
    assert expected == block_count(nbytes)
    assert BLOCK_BYTES == 256 * 1024
