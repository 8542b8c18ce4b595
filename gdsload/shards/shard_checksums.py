"""A shard's bytes against the checksums in its header."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gdsload.shards.format.checksum import BLOCK_BYTES, DIGEST_CHARS, block_digest

__all__ = ["PIECE_BYTES", "Read", "pieces", "wrong_blocks"]

PIECE_BYTES = 32 * BLOCK_BYTES
"""How many bytes are read at once: whole blocks of checksums, and so whole elements."""

Read = Callable[[memoryview, int], None]
"""Fills memory with the bytes of a file from an offset on."""


def pieces(read: Read, begin: int, end: int) -> Iterator[tuple[int, memoryview]]:
    """Offset and bytes of each piece of a file from `begin` to `end` - 1. A piece is overwritten by the next one."""
    buffer = bytearray(min(PIECE_BYTES, max(end - begin, 1)))
    for offset in range(begin, end, len(buffer)):
        view = memoryview(buffer)[: min(len(buffer), end - offset)]
        read(view, offset)
        yield offset, view


def wrong_blocks(piece: memoryview, first: int, digests: str) -> Iterator[tuple[int, int]]:
    """The blocks that differ from what was written: the place in the piece at which each begins, and its bytes.

    Args:
        piece: consecutive blocks of a tensor.
        first: the tensor's number of the first of them.
        digests: the checksums of all the tensor's blocks.
    """
    for number, low in enumerate(range(0, len(piece), BLOCK_BYTES), first):
        block = piece[low : low + BLOCK_BYTES]
        if block_digest(block) != digests[number * DIGEST_CHARS : (number + 1) * DIGEST_CHARS]:
            yield low, len(block)
