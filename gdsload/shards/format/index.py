"""The index of a dataset: its schema, its shards and how many samples each holds.

`index.json` carries a SHA-256 of itself and one of each shard's header, and each header carries checksums of its
data; so one digest names the whole content of a dataset.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gdsload.errors import FormatError, Problem, SchemaError
from gdsload.shards.format import strict
from gdsload.shards.format.metadata import Metadata, metadata_digest, read_metadata
from gdsload.shards.format.schema import Schema
from gdsload.shards.format.stored import StoredSchema, read_packed
from gdsload.shards.format.strict import JsonError, show

INDEX_NAME = "index.json"
_FORMAT = "gdsload-dataset"
_VERSION_1 = {"format", "version", "samples", "schema", "shards", "sha256"}
_KEYS = {1: _VERSION_1, 2: _VERSION_1 | {"packed"}, 3: _VERSION_1 | {"packed", "metadata", "metadata_sha256"}}
MAX_INDEX_BYTES = 2**30
_MAX_COUNT = 2**63 - 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[^/\\\0\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One shard of a dataset.

    Attributes:
        file: its name in the dataset's folder.
        samples: its number of samples.
        bytes: length of the file.
        sha256: SHA-256 of the file up to its data, in hexadecimal.
    """

    file: str
    samples: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Index:
    """The shards of a dataset, in order.

    Attributes:
        stored: the fields, and how all shards store them.
        shards: the shards.
        metadata: the metadata of the dataset.
    """

    stored: StoredSchema
    shards: tuple[IndexEntry, ...]
    metadata: Metadata = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Number of samples of the dataset."""
        return sum(shard.samples for shard in self.shards)

    def digest(self) -> str:
        """SHA-256 of the index without metadata, which names the dataset's content."""
        return _digest(self._tree())

    def to_bytes(self) -> bytes:
        """The text of `index.json`."""
        tree = self._tree()
        tree["sha256"] = _digest(tree)
        if self.metadata:
            tree |= {"version": 3, "metadata": self.metadata, "metadata_sha256": metadata_digest(self.metadata)}
        return (json.dumps(tree, ensure_ascii=False, indent=1) + "\n").encode()

    def _tree(self) -> dict[str, object]:
        packed = {"packed": list(map(list, self.stored.packed))} if self.stored.packed else {}
        return {
            "format": _FORMAT,
            "version": self.stored.version,
            "samples": self.samples,
            "schema": self.stored.schema.to_json(),
            **packed,
            "shards": [
                {"file": shard.file, "samples": shard.samples, "bytes": shard.bytes, "sha256": shard.sha256}
                for shard in self.shards
            ],
        }


def _digest(tree: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


def parse_index(raw: bytes, file: str) -> Index:
    """Read an index, trusting nothing.

    Raises:
        FormatError: with all that is wrong in `.problems`.
    """
    found = _Reading(file)
    index = found.index(raw)
    if index is not None and not found.problems:
        return index
    remedy = "Write the dataset again, or open its shard files one by one."
    raise FormatError("no valid index of a dataset", problems=found.problems, file=file, remedy=remedy)


class _Reading:
    """Reads an index, and notes all that is wrong with it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []

    def add(self, *messages: str, offset: int = 0) -> None:
        self.problems += [Problem(message, self.file, offset) for message in messages]

    def index(self, raw: bytes) -> Index | None:
        try:
            tree = strict.loads(raw)
            if not isinstance(tree, dict):
                raise JsonError("no JSON object", 0)
        except JsonError as error:
            self.add(f"it is {error}", offset=error.offset)
            return None
        head, shards = self._head(tree), tuple(self._shards(tree.get("shards")))
        if head is None or self.problems:
            return None
        stored, metadata = head
        index = Index(stored, shards, metadata)
        if tree.get("samples") != index.samples:
            self.add(f"it claims {show(tree.get('samples'))} samples, but its shards hold {index.samples}")
        elif index.samples > _MAX_COUNT:
            self.add("its shards hold more samples than 64 bits can count")
        elif tree.get("sha256") != index.digest():
            self.add("its content does not match its own sha256: it was changed or damaged")
        return index

    def _head(self, tree: dict[str, Any]) -> tuple[StoredSchema, Metadata] | None:
        version: Any = tree.get("version")
        if tree.get("format") != _FORMAT:
            self.add(f"its format is {show(tree.get('format'))}, not {_FORMAT!r}")
        if type(version) is not int or version not in _KEYS:
            self.add(f"its version is {show(version)}; this gdsload reads {', '.join(map(str, _KEYS))}")
        if self.problems:
            return None
        if unknown := sorted(tree.keys() - _KEYS[version]):
            self.add(f"it has the unknown keys {show(unknown)}")
        if type(tree.get("samples")) is not int:
            self.add(f"samples is {show(tree.get('samples'))}, no whole number")
        try:
            schema = Schema.from_json(tree.get("schema"))
        except SchemaError as error:
            self.add(f"schema: {error}")
            return None
        metadata = self._metadata(tree) if version >= 3 else {}
        # Metadata alone make an index one of version 3; its shards are of the version that their fields need.
        stored, wrong = read_packed(schema, tree, (1, 2, 3) if metadata else (version,))
        self.add(*wrong)
        return stored, metadata

    def _metadata(self, tree: dict[str, Any]) -> Metadata:
        """The metadata; none if there are no keys of them."""
        if not {"metadata", "metadata_sha256"} & tree.keys():
            return {}
        try:
            metadata = read_metadata(tree.get("metadata"))
        except ValueError as error:
            self.add(str(error))
            return {}
        if tree.get("metadata_sha256") != metadata_digest(metadata):
            self.add("its metadata do not match metadata_sha256: they were changed or damaged")
        return metadata

    def _shards(self, value: object) -> Iterator[IndexEntry]:
        if not isinstance(value, list):
            self.add("its shards are no list")
            return
        names: set[str] = set()
        for number, item in enumerate(value):
            if complaint := _entry_complaint(item, names):
                self.add(f"shards[{number}]: {complaint}")
                continue
            names.add(item["file"])
            yield IndexEntry(**item)


def _entry_complaint(item: object, names: set[str]) -> str | None:
    if not isinstance(item, dict) or item.keys() != {"file", "samples", "bytes", "sha256"}:
        return "an entry has exactly file, samples, bytes and sha256"
    name = item["file"]
    if not isinstance(name, str) or not _FILE.fullmatch(name) or name in (".", ".."):
        return f"{show(name)} is no plain file name in the dataset's folder"
    if name in names:
        return f"{show(name)} is listed twice"
    for key in ("samples", "bytes"):
        if type(item[key]) is not int or not 1 <= item[key] <= _MAX_COUNT:
            return f"{key} is {show(item[key])}, no whole number from 1 that fits 64 bits"
    if not isinstance(item["sha256"], str) or not _SHA256.fullmatch(item["sha256"]):
        return f"sha256 is {show(item['sha256'])}, no 64 hexadecimal digits"
    return None
