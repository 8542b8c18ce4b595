"""Memory of the batches of a group on a device: small ones share an allocation.

Each call of torch's allocator gives the interpreter lock back, and the thread that makes batches then waits for it
where others run Python: for longer than the link takes to copy a small batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

import torch

from gdsload.shards.format.schema import Field
from gdsload.shards.values import torch_dtype

SHARED_BYTES = 32 * 2**20
"""The most bytes that batches share: a batch that is kept keeps all of them."""
_ALIGNED = 512
"""Bytes that a batch's address is a multiple of, as of torch's own allocations."""


def batch_tensors(counts: Sequence[int], field: Field, device: torch.device) -> list[torch.Tensor]:
    """A tensor ``[rows, *row_shape]`` for each batch of a group, on the current stream.

    None is a view for autograd: what is done in place to one of them does not concern the others.
    """
    dtype, shape = torch_dtype(field.dtype), field.row_shape
    found: list[torch.Tensor] = []
    for some in _shared(counts, field.row_bytes):
        if len(some) == 1:
            found.append(torch.empty((some[0][0], *shape), dtype=dtype, device=device))
            continue
        parts = [rows for pair in some for rows in pair]
        whole = torch.empty((sum(parts), *shape), dtype=dtype, device=device)
        found += [part.data for part in whole.split_with_sizes(parts)[::2]]
    return found


def _shared(counts: Sequence[int], row_bytes: int) -> Iterator[list[tuple[int, int]]]:
    """Batches that share an allocation: rows of each, and rows that are left out after it."""
    step = _ALIGNED // gcd(_ALIGNED, row_bytes)
    some: list[tuple[int, int]] = []
    wanted = taken = 0  # rows of the batches of `some`, and with what is left out after each
    for count in counts:
        room = -(-count // step) * step
        # Rows of an odd size are aligned after many of them alone.
        spare = taken + room - wanted - count
        if some and ((taken + room) * row_bytes > SHARED_BYTES or 8 * spare > wanted + count):
            yield some
            some, wanted, taken = [], 0, 0
        some.append((count, room - count))
        wanted, taken = wanted + count, taken + room
    if some:
        yield some
