"""The layout of a new shard, from schema and sizes: the place of each tensor, and the header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from gdsload.shards.format.checksum import ALGORITHM, BLOCK_BYTES, DIGEST_CHARS, block_count
from gdsload.shards.format.header import PREFIX_BYTES
from gdsload.shards.format.shard import (
    ALIGNMENT,
    META_CHECKSUMS,
    META_SAMPLES,
    META_SCHEMA,
    META_VERSION,
    OFFSETS_PREFIX,
    PADDING_PREFIX,
)
from gdsload.shards.format.stored import StoredSchema


def align_up(value: int, alignment: int = ALIGNMENT) -> int:
    """The smallest multiple of `alignment` that is at least `value`."""
    return -(-value // alignment) * alignment


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """The layout of the tensors in a new shard.

    Args:
        stored: the shard's fields, and how they are stored.
        samples: its number of samples.
        rows: number of rows of each ragged field.
        offsets: for each ragged field the field whose offsets it uses (itself, or an earlier one with equal lengths).
    """

    stored: StoredSchema
    samples: int
    rows: Mapping[str, int]
    offsets: Mapping[str, str]

    def tensors(self) -> dict[str, tuple[str, list[int], int]]:
        """Name to (dtype code, shape, bytes) of every tensor but padding, in file order: offsets, then columns."""
        found = {}
        for owner in dict.fromkeys(self.offsets.values()):
            found[OFFSETS_PREFIX + owner] = ("I64", [self.samples + 1], (self.samples + 1) * 8)
        for name, field in self.stored.columns.items():
            rows = self.rows[name] if field.ragged else self.samples
            found[name] = (field.dtype.code, [rows, *field.row_shape], rows * field.row_bytes)
        return found

    def data_offsets(self) -> dict[str, int]:
        """Name to offset in the data section, of every tensor but padding."""
        found, position = {}, 0
        for name, (_, _, nbytes) in self.tensors().items():
            found[name] = position
            position = align_up(position + nbytes)
        return found

    def header(self, digests: Mapping[str, str] | None = None) -> bytes:
        """The header, prefix and trailing blanks included; its length does not depend on the digests.

        Args:
            digests: checksums of each tensor; None makes a header of the same length with zeros for them.
        """
        tensors = self.tensors()
        if digests is None:
            digests = {name: "0" * DIGEST_CHARS * block_count(nbytes) for name, (_, _, nbytes) in tensors.items()}
        tree: dict[str, object] = {"__metadata__": self._metadata(digests)}
        position = paddings = 0
        for name, (code, shape, nbytes) in tensors.items():
            tree[name] = {"dtype": code, "shape": shape, "data_offsets": [position, position + nbytes]}
            position += nbytes
            padding = align_up(position) - position
            if padding:
                entry = {"dtype": "U8", "shape": [padding], "data_offsets": [position, position + padding]}
                tree[f"{PADDING_PREFIX}{paddings}"] = entry
                position += padding
                paddings += 1
        text = _dump(tree).encode()
        length = align_up(PREFIX_BYTES + len(text)) - PREFIX_BYTES
        return length.to_bytes(PREFIX_BYTES, "little") + text.ljust(length)

    def data_bytes(self) -> int:
        """Bytes of the data section, padding included."""
        return sum(align_up(nbytes) for _, _, nbytes in self.tensors().values())

    def _metadata(self, digests: Mapping[str, str]) -> dict[str, str]:
        schema: dict[str, object] = {"fields": self.stored.schema.to_json(), "offsets": dict(self.offsets)}
        if self.stored.packed:
            schema["packed"] = list(map(list, self.stored.packed))
        return {
            META_VERSION: str(self.stored.version),
            META_SAMPLES: str(self.samples),
            META_SCHEMA: _dump(schema),
            META_CHECKSUMS: _dump({"algorithm": ALGORITHM, "block_bytes": BLOCK_BYTES, "digests": dict(digests)}),
        }


def _dump(tree: object) -> str:
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False)
