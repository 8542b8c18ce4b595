"""Headers and indexes that are changed, and are well-formed but for that.

Attacks are numbered for good: a number that is missing was one of the same branch as another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import NamedTuple

import pytest

from gdsload.errors import FormatError
from gdsload.shards.format.header import PREFIX_BYTES, parse_header
from gdsload.shards.format.index import parse_index
from gdsload.shards.format.layout import ShardLayout, align_up
from gdsload.shards.format.shard import Shard, read_shard

FILE, SHA = "hostile", "0123456789abcdef" * 4
Change = Callable[[dict], object]


class Attack(NamedTuple):
    """A change of a good header or index, or what to put into it, and the complaint that must follow."""

    tries: str
    change: object
    says: str
    field: str | None = None

    def on_shard(self, tree: dict) -> FormatError:
        """The error of a shard with this header, which has the words that must follow the attack."""
        with pytest.raises(FormatError, match=self.says) as caught:
            read(tree)
        if self.field is not None:
            assert self.field in {problem.field for problem in caught.value.problems}
        assert len(str(caught.value)) < 5000
        return caught.value

    def on_index(self, raw: bytes) -> FormatError:
        """The error of an index, whose problems are of the whole of it."""
        with pytest.raises(FormatError, match=self.says) as caught:
            parse_index(raw, FILE)
        assert {(problem.file, problem.offset) for problem in caught.value.problems} == {(FILE, 0)}
        assert len(str(caught.value)) < 2000
        return caught.value


def tree_of(layout: ShardLayout) -> dict:
    """The JSON of a good shard's header."""
    return json.loads(layout.header()[PREFIX_BYTES:])


def read(tree: dict, *, alignment: int = 4096, file_bytes: int | None = None) -> Shard:
    """What the reader makes of a shard with this header, in a file of so many bytes of data."""
    text = json.dumps(tree).encode()
    length = align_up(PREFIX_BYTES + len(text), alignment) - PREFIX_BYTES
    raw = length.to_bytes(PREFIX_BYTES, "little") + text.ljust(length)
    ends = [entry["data_offsets"][1] for name, entry in tree.items() if name != "__metadata__"]
    return read_shard(parse_header(raw, len(raw) + (file_bytes or max(ends)), FILE), FILE)


def inside(key: str, change_it: Change) -> Change:
    """Change the JSON inside a metadata text."""

    def change(tree: dict) -> None:
        inner = json.loads(tree["__metadata__"][key])
        change_it(inner)
        tree["__metadata__"][key] = json.dumps(inner)

    return change


def in_schema(change: Change) -> Change:
    """Change the schema inside a shard's metadata."""
    return inside("gdsload.schema", change)


def version(text: str) -> Change:
    """Say another version of the format."""
    return lambda tree: tree["__metadata__"].update({"gdsload.version": text})


def forged(tree: dict) -> bytes:
    """The index with a digest that is right, so that it is not what complains."""
    tree.pop("sha256", None)
    try:
        text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        text = b""
    return json.dumps({**tree, "sha256": hashlib.sha256(text).hexdigest()}).encode()
