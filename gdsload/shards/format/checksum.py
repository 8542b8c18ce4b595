"""Checksums of tensors: XXH3-64 over fixed blocks of bytes.

XXH3 (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md) runs at memory speed on a CPU, and its eight lanes a block
are independent of every other block, so that a GPU can check what landed in its own memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

__all__ = ["ALGORITHM", "BLOCK_BYTES", "DIGEST_CHARS", "BlockHasher", "block_count", "block_digest"]

ALGORITHM = "xxh3_64"
BLOCK_BYTES = 256 * 1024
DIGEST_CHARS = 16


def block_digest(data: memoryview | bytes) -> str:
    """The checksum of one block as 16 lower-case hexadecimal digits."""
    return str(xxhash.xxh3_64_hexdigest(data))


def block_count(nbytes: int, block_bytes: int = BLOCK_BYTES) -> int:
    """The number of blocks that `nbytes` bytes make; the last may be shorter."""
    return -(-nbytes // block_bytes)


class BlockHasher:
    """Checksums of a stream of bytes that comes in pieces of any size."""

    def __init__(self) -> None:
        self._digests: list[str] = []
        self._open = xxhash.xxh3_64()
        self._filled = 0

    def update(self, data: memoryview) -> None:
        """Add bytes; `data` is a contiguous memoryview of unsigned bytes."""
        for piece in self._pieces(data):
            if len(piece) == BLOCK_BYTES:
                self._digests.append(block_digest(piece))
                continue
            self._open.update(piece)
            self._filled += len(piece)
            if self._filled == BLOCK_BYTES:
                self._close()

    def _pieces(self, data: memoryview) -> Iterator[memoryview]:
        position = 0
        while position < len(data):
            length = min(BLOCK_BYTES - self._filled, len(data) - position)
            yield data[position : position + length]
            position += length

    def _close(self) -> None:
        self._digests.append(self._open.hexdigest())
        self._open.reset()
        self._filled = 0

    def digests(self) -> str:
        """All digests so far, one after the other; ends the stream."""
        if self._filled:
            self._close()
        return "".join(self._digests)
