"""Checksums of blocks."""

import random

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.shards.format.checksum import (
    ALGORITHM,
    BLOCK_BYTES,
    DIGEST_CHARS,
    block_count,
    block_digest,
    block_digests,
)

DATA = random.Random(0).randbytes(3 * BLOCK_BYTES + 1000)


@settings(derandomize=True, max_examples=30)
@given(
    st.sampled_from([0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES]) | st.integers(0, len(DATA))
)
def test_each_block_has_a_digest(length):
    blocks = [DATA[begin : min(begin + BLOCK_BYTES, length)] for begin in range(0, length, BLOCK_BYTES)]
    assert block_count(length) == len(blocks)
    expected = "".join(xxhash.xxh3_64_hexdigest(block, seed=0) for block in blocks)
    assert expected == block_digests(memoryview(DATA)[:length])


@pytest.mark.parametrize(
    ("data", "expected"),
    # Pinned: with any other values, shards already written could not be verified.
    [(b"", "2d06800538d394c2"), (b"a", "e6c632b61e964e1f"), (b"abc", "78af5f94892f3950")],
)
def test_digest_is_xxh3_64_with_seed_0(data, expected):
    assert expected == block_digest(data)
    assert (ALGORITHM, BLOCK_BYTES, block_count(2**62)) == ("xxh3_64", 256 * 1024, 2**44)


def test_digest_has_16_lower_case_digits():
    digests = {block_digest(bytes([value])) for value in range(256)}
    assert {DIGEST_CHARS} == {len(digest) for digest in digests}
    assert set("".join(digests)) == set("0123456789abcdef")
    assert any(digest.startswith("0") for digest in digests)
