"""The parts that are converted together, and the sizes of the shards that they become.

How many bytes a part will have is estimated, so a task that is to fill one shard may get more than that. Its shards may
get as much, so that no rest of it becomes a shard; and parts are taken together until they come near a whole number of
shards. All of it depends on the parts and the schema alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from gdsload.conversion.room import estimated_bytes
from gdsload.conversion.row_source import BATCH_BYTES
from gdsload.conversion.source import ExactParts, Part, Source
from gdsload.shards.format.schema import Schema

__all__ = ["bytes_of_parts", "bytes_of_shards", "gathered"]

_PARTS_IN_SHARD = 8
_EVEN = 0.15
_ROOM = 0.25


def bytes_of_parts(source: Source, shard_bytes: int) -> int:
    """The size of the parts to ask a source for: several make a shard where sizes are estimates."""
    if isinstance(source, ExactParts):
        return shard_bytes
    return max(min(shard_bytes // _PARTS_IN_SHARD, BATCH_BYTES), 1)


def gathered(source: Source, parts: Sequence[Part], schema: Schema, shard_bytes: int) -> list[list[Part]]:
    """Runs of parts, whose samples fill one shard each, or several where parts are large.

    A part whose size is not known is alone.
    """
    if isinstance(source, ExactParts):
        return [[part] for part in parts]
    found: list[list[Part]] = []
    total = -1
    for part in parts:
        nbytes = estimated_bytes([part], schema)
        if found and total >= 0 <= nbytes and not _fills(total, nbytes, shard_bytes):
            found[-1].append(part)
            total += nbytes
        else:
            found.append([part])
            total = nbytes
    return found


def _fills(total: int, following: int, shard_bytes: int) -> bool:
    """Return whether so many bytes fill some shards evenly, and no better with what follows."""
    even = _shards(total, shard_bytes) * shard_bytes
    return total + following / 2 >= shard_bytes and abs(total - even) <= _EVEN * even


def bytes_of_shards(source: Source, parts: Sequence[Part], schema: Schema, shard_bytes: int) -> int:
    """The size that the shards of a task may get: even ones, with room for more than was estimated."""
    total = estimated_bytes(parts, schema)
    if total < 0 or isinstance(source, ExactParts):
        return shard_bytes
    shards = _shards(total, shard_bytes)
    return max(int(min(total / shards * (1 + _ROOM / shards), shard_bytes * (1 + _ROOM))), 1)


def _shards(total: int, shard_bytes: int) -> int:
    return max(round(total / shard_bytes), 1)
