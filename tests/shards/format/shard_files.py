"""Whole shards in memory, from a layout and back."""

from __future__ import annotations

import json
import random

from gdsload.shards.format.checksum import BlockHasher
from gdsload.shards.format.header import PREFIX_BYTES, Header, header_bytes, parse_header
from gdsload.shards.format.layout import ShardLayout
from gdsload.shards.format.shard import Shard, read_shard

FILE, SHA = "shard.safetensors", "0123456789abcdef" * 4


def digests_of(payloads: dict[str, bytes]) -> dict[str, str]:
    found = {}
    for name, payload in payloads.items():
        hasher = BlockHasher()
        hasher.update(memoryview(payload))
        found[name] = hasher.digests()
    return found


def random_payloads(layout: ShardLayout) -> dict[str, bytes]:
    generator = random.Random(0)
    return {name: generator.randbytes(nbytes) for name, (_, _, nbytes) in layout.tensors().items()}


def file_of(layout: ShardLayout, payloads: dict[str, bytes]) -> bytes:
    """A whole shard with these bytes in its tensors."""
    data = bytearray(layout.data_bytes())
    for name, begin in layout.data_offsets().items():
        data[begin : begin + len(payloads[name])] = payloads[name]
    return layout.header(digests_of(payloads)) + bytes(data)


def header_of(raw: bytes) -> Header:
    return parse_header(raw[: header_bytes(raw[:PREFIX_BYTES], len(raw), FILE)], len(raw), FILE)


def shard_of(raw: bytes) -> Shard:
    return read_shard(header_of(raw), FILE)


def tree_of(raw: bytes) -> dict:
    """The JSON of a header, with which a file begins."""
    return json.loads(raw[PREFIX_BYTES : PREFIX_BYTES + int.from_bytes(raw[:PREFIX_BYTES], "little")])
