"""The index of a dataset: its schema, its shards and how many samples each holds.

`index.json` carries a SHA-256 of itself and one of each shard's header, and each header carries checksums of its
data; so one digest names the whole content of a dataset.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gdsload.errors import FormatError, Problem, SchemaError
from gdsload.shards.format import strict
from gdsload.shards.format.metadata import Metadata, metadata_digest, metadata_problems
from gdsload.shards.format.schema import Schema
from gdsload.shards.format.stored import Packed, StoredSchema, read_packed
from gdsload.shards.format.strict import show

__all__ = ["INDEX_NAME", "MAX_INDEX_BYTES", "Index", "IndexEntry", "parse_index"]

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
        schema: the fields.
        shards: the shards.
        packed: the fields of each packed column, as `StoredSchema` has them: the same in all shards.
        metadata: the metadata of the dataset.
    """

    schema: Schema
    shards: tuple[IndexEntry, ...]
    packed: Packed = ()
    metadata: Metadata = field(default_factory=dict)

    @property
    def stored(self) -> StoredSchema:
        """The fields, and how all shards store them."""
        return StoredSchema(self.schema, self.packed)

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
        packed = {"packed": list(map(list, self.packed))} if self.packed else {}
        return {
            "format": _FORMAT,
            "version": self.stored.version,
            "samples": self.samples,
            "schema": self.schema.to_json(),
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
    problems: list[Problem] = []
    tree = _load(raw, file, problems)
    if isinstance(tree, dict) and not problems:
        head = _head(tree, file, problems)
        shards = _shards(tree.get("shards"), file, problems)
        if head is not None and not problems:
            schema, packed, metadata = head
            index = Index(schema, tuple(shards), packed, metadata)
            if tree.get("samples") != index.samples:
                message = f"it claims {show(tree.get('samples'))} samples, but its shards hold {index.samples}"
                problems.append(Problem(message, file, 0))
            elif index.samples > _MAX_COUNT:
                problems.append(Problem("its shards hold more samples than 64 bits can count", file, 0))
            elif tree.get("sha256") != index.digest():
                problems.append(
                    Problem("its content does not match its own sha256: it was changed or damaged", file, 0)
                )
            else:
                return index
    raise FormatError(
        "no valid index of a dataset",
        problems=problems,
        file=file,
        remedy="Write the dataset again, or open its shard files one by one.",
    )


def _load(raw: bytes, file: str, problems: list[Problem]) -> object:
    if len(raw) > MAX_INDEX_BYTES:
        problems.append(Problem(f"it has {len(raw)} bytes; the most is {MAX_INDEX_BYTES}", file, 0))
        return None
    text = ""
    try:
        text = raw.decode("utf-8")
        tree = strict.loads(text)
    except UnicodeDecodeError as error:
        problems.append(Problem("it is no valid UTF-8", file, error.start))
    except json.JSONDecodeError as error:
        problems.append(Problem(f"it is no valid JSON: {error.msg}", file, len(text[: error.pos].encode())))
    except (ValueError, RecursionError) as error:
        problems.append(Problem(f"it is no valid JSON: {error}", file, 0))
    else:
        if not isinstance(tree, dict):
            problems.append(Problem("it is no JSON object", file, 0))
        return tree
    return None


def _head(tree: dict[str, Any], file: str, problems: list[Problem]) -> tuple[Schema, Packed, Metadata] | None:
    if tree.get("format") != _FORMAT:
        problems.append(Problem(f"its format is {show(tree.get('format'))}, not {_FORMAT!r}", file, 0))
    version = tree.get("version")
    if type(version) is not int or version not in _KEYS:
        message = f"its version is {show(version)}; this gdsload reads {', '.join(map(str, _KEYS))}"
        problems.append(Problem(message, file, 0))
    if problems or type(version) is not int:
        return None
    if unknown := sorted(tree.keys() - _KEYS[version]):
        problems.append(Problem(f"it has the unknown keys {show(unknown)}", file, 0))
    if type(tree.get("samples")) is not int:
        problems.append(Problem(f"samples is {show(tree.get('samples'))}, no whole number", file, 0))
    try:
        schema = Schema.from_json(tree.get("schema"))
    except SchemaError as error:
        problems.append(Problem(f"schema: {error}", file, 0))
        return None
    metadata, wrong = _metadata(tree)
    # Metadata alone make an index one of version 3; its shards are of the version that their fields need.
    versions = (1, 2, 3) if metadata else (version,)
    packed, others = read_packed(schema, tree, versions)
    problems += [Problem(message, file, 0) for message in (*wrong, *others)]
    return schema, packed, metadata


def _metadata(tree: dict[str, Any]) -> tuple[Metadata, list[str]]:
    """The metadata, and all that is wrong with them; none if there are no keys of them."""
    keys = {"metadata", "metadata_sha256"} & tree.keys()
    if not keys or tree["version"] < 3:  # else they are unknown keys
        return {}, []
    if wrong := metadata_problems(tree.get("metadata")):
        return {}, wrong
    metadata: dict[str, Any] = tree["metadata"]
    if tree.get("metadata_sha256") != metadata_digest(metadata):
        wrong = ["its metadata do not match metadata_sha256: they were changed or damaged"]
    return metadata, wrong


def _shards(value: object, file: str, problems: list[Problem]) -> Sequence[IndexEntry]:
    if not isinstance(value, list):
        problems.append(Problem("its shards are no list", file, 0))
        return []
    found: list[IndexEntry] = []
    names: set[str] = set()
    for number, item in enumerate(value):
        complaint = _entry_complaint(item, names)
        if complaint:
            problems.append(Problem(f"shards[{number}]: {complaint}", file, 0))
            continue
        names.add(item["file"])
        found.append(IndexEntry(item["file"], item["samples"], item["bytes"], item["sha256"]))
    return found


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
