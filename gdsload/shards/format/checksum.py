"""Checksums of tensors: XXH3-64 over fixed blocks of bytes.

XXH3 (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md) runs at memory speed on a CPU, and its eight lanes a block
are independent of every other block, so that a GPU can check what landed in its own memory.
"""

from __future__ import annotations

import xxhash

ALGORITHM = "xxh3_64"
BLOCK_BYTES = 256 * 1024
DIGEST_CHARS = 16


def block_digest(data: memoryview | bytes) -> str:
    """The checksum of one block as 16 lower-case hexadecimal digits."""
    return str(xxhash.xxh3_64_hexdigest(data))


def block_count(nbytes: int) -> int:
    """The number of blocks that `nbytes` bytes make; the last may be shorter."""
    return -(-nbytes // BLOCK_BYTES)


def block_digests(data: memoryview) -> str:
    """The checksums of consecutive blocks, one after the other; the last may be shorter."""
    return "".join(block_digest(data[low : low + BLOCK_BYTES]) for low in range(0, len(data), BLOCK_BYTES))
