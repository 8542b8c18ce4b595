"""Sources whose samples are rows: how they are cut into parts, and parts into batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gdsload.conversion.source import Part
from gdsload.errors import FormatError

__all__ = ["BATCH_BYTES", "common_length", "row_parts", "runs", "spans"]

BATCH_BYTES = 32 * 2**20
"""About how many bytes are read at once."""


def spans(low: int, high: int, step: int) -> Iterator[tuple[int, int]]:
    """The rows from `low` to `high` - 1 in runs of `step`, as (first, behind the last)."""
    return ((begin, min(begin + step, high)) for begin in range(low, high, step))


def runs(sizes: Sequence[int], target_bytes: int) -> Iterator[tuple[int, int]]:
    """Files that follow each other, as (first, behind the last), each run of `target_bytes` or a little more."""
    low, nbytes = 0, 0
    for high, size in enumerate(sizes, 1):
        nbytes += size
        if nbytes >= target_bytes or high == len(sizes):
            yield low, high
            low, nbytes = high, 0


def row_parts(
    count: int, step: int, row_bytes: int, *, prefix: str = "rows", where: tuple[str, ...] = ()
) -> list[Part]:
    """Parts of `step` rows.

    Args:
        count: number of rows.
        step: rows of a part.
        row_bytes: about how many bytes a row has.
        prefix: what a part's name begins with.
        where: what stands in `Part.where` before the two edges.
    """
    return [
        Part(f"{prefix} {low} to {high - 1}", (*where, low, high), high - low, (high - low) * row_bytes)
        for low, high in spans(0, count, step)
    ]


def common_length(lengths: Mapping[str, int], what: str, file: str) -> int:
    """The one length that all have; -1 stands for none.

    Raises:
        FormatError: if they differ, or one has none.
    """
    if len(set(lengths.values())) > 1 or -1 in lengths.values():
        raise FormatError(f"the {what} have different lengths, or none: {dict(lengths)}", file=file)
    return next(iter(lengths.values()))
