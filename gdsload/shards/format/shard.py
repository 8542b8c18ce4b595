"""The meaning of a safetensors file as a shard: its fields, its number of samples, its checksums.

The normative texts are docs/spec/shard-v1.md, shard-v2.md and shard-v3.md. Two kinds of files are read: shards that
gdsload wrote, which say so in their metadata, and any other safetensors file whose tensors agree in their first
dimension.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from gdsload.errors import FormatError, Problem, SchemaError
from gdsload.shards.format import strict
from gdsload.shards.format.checksum import ALGORITHM, BLOCK_BYTES, DIGEST_CHARS, block_count
from gdsload.shards.format.header import PREFIX_BYTES, Header, TensorEntry
from gdsload.shards.format.schema import RESERVED_PREFIX, Field, Schema
from gdsload.shards.format.stored import StoredSchema, read_packed
from gdsload.shards.format.strict import JsonError, show

VERSIONS = (1, 2, 3)
"""Those that are read; the second has packed columns, the third encoded images."""
ALIGNMENT = 4096
PADDING_PREFIX = f"{RESERVED_PREFIX}pad:"
OFFSETS_PREFIX = f"{RESERVED_PREFIX}offsets:"
META_VERSION = "gdsload.version"
META_SAMPLES = "gdsload.samples"
META_SCHEMA = "gdsload.schema"
META_CHECKSUMS = "gdsload.checksums"


@dataclass(frozen=True, slots=True)
class Column:
    """The place of one stored column in a shard.

    Attributes:
        begin: byte offset of the column's first row in the file.
        rows: number of rows; the number of samples for a fixed field.
        offsets_begin: byte offset of the int64 offsets (samples + 1 of them, in rows), for a ragged field.
    """

    begin: int
    rows: int
    offsets_begin: int | None = None


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard, read and checked.

    Attributes:
        stored: its fields, and how they are stored.
        samples: its number of samples.
        columns: where each stored column is located.
        digests: for each tensor the checksums of its blocks, one after the other, `DIGEST_CHARS` digits each; none for
            files that gdsload did not write.
        header: the header it was read from.
    """

    stored: StoredSchema
    samples: int
    columns: dict[str, Column]
    digests: dict[str, str]
    header: Header


def is_gdsload(header: Header) -> bool:
    """Return whether gdsload wrote the file that `header` belongs to."""
    return META_VERSION in header.metadata


def read_shard(header: Header, file: str) -> Shard:
    """Interpret a header as a shard.

    Raises:
        FormatError: with all that is wrong in `.problems`.
    """
    found = _Reading(header, file)
    shard = found.own() if is_gdsload(header) else found.plain()
    if shard is None or found.problems:
        # Fields that share offsets each report the same fault.
        unique = tuple(dict.fromkeys(found.problems))
        raise FormatError("the file cannot be read as a shard", problems=unique, file=file)
    return shard


class _Reading:
    """Reads a header, and notes all that is wrong with it."""

    def __init__(self, header: Header, file: str) -> None:
        self.header, self.file = header, file
        self.problems: list[Problem] = []

    def add(self, message: str, tensor: str | None = None) -> None:
        entry = self.header.tensors.get(tensor) if tensor is not None else None
        self.problems.append(Problem(message, self.file, entry.begin if entry else PREFIX_BYTES, tensor))

    def plain(self) -> Shard | None:
        """The shard in a file of another program's."""
        fields: dict[str, Field] = {}
        columns: dict[str, Column] = {}
        for name, entry in sorted(self.header.tensors.items()):
            if not entry.shape:
                self.add("a tensor without dimensions has no samples", name)
                continue
            try:
                Schema({name: (field := Field(entry.dtype, entry.shape[1:]))})
            except SchemaError as error:
                self.add(str(error), name)
                continue
            fields[name], columns[name] = field, Column(entry.begin, entry.shape[0])
        if not self.header.tensors:
            self.add("the file holds no tensors")
        if len({column.rows for column in columns.values()}) > 1:
            listed = ", ".join(f"{name!r}: {column.rows}" for name, column in columns.items())
            self.add(f"the tensors differ in their first dimension, the number of samples ({listed[:400]})")
        if self.problems:
            return None
        samples = next(iter(columns.values())).rows
        return Shard(StoredSchema(Schema(fields)), samples, columns, {}, self.header)

    def own(self) -> Shard | None:
        """The shard in a file that claims to be of gdsload's."""
        metadata = self.header.metadata
        known = {str(version): version for version in VERSIONS}
        version = known.get(metadata[META_VERSION])
        if version is None:
            listed = ", ".join(known)
            self.add(f"{META_VERSION} is {metadata[META_VERSION][:20]!r}; this gdsload reads versions {listed}")
            return None
        samples = self._count(metadata.get(META_SAMPLES, ""))
        stored, groups = self._stored(version)
        digests = self._digests()
        if self.header.data_start % ALIGNMENT:
            self.add(f"the data begin at byte {self.header.data_start}, no multiple of {ALIGNMENT}")
        if self.header.file_bytes % ALIGNMENT:
            self.add(f"the file has {self.header.file_bytes} bytes, no multiple of {ALIGNMENT}")
        if stored is not None:
            self._others(stored, groups)
        if samples is None or stored is None:
            return None
        columns = {}
        for name, field in stored.columns.items():
            if column := self._column(name, field, samples, groups.get(name)):
                columns[name] = column
        for name, owner in groups.items():
            if name in columns and owner in columns and columns[name].rows != columns[owner].rows:
                rows = columns[name].rows, columns[owner].rows
                self.add(f"it has {rows[0]} rows, but {show(owner)}, whose offsets it uses, has {rows[1]}", name)
        return Shard(stored, samples, columns, digests, self.header)

    def _count(self, text: str) -> int | None:
        if not (text.isascii() and text.isdigit() and len(text) <= 18) or text.startswith("0"):
            self.add(f"{META_SAMPLES} is {text[:20]!r}, no whole number from 1")
            return None
        return int(text)

    def _object(self, key: str, names: set[str], *, optional: Collection[str] = ()) -> dict[str, Any] | None:
        """The metadata `key`, if it is a JSON object of exactly `names`, and perhaps some that are `optional`."""
        try:
            tree = strict.loads(self.header.metadata.get(key, "").encode())
        except JsonError as error:
            self.add(f"{key} is {error}")
            return None
        if not isinstance(tree, dict) or tree.keys() - set(optional) != names:
            self.add(f"{key} is no JSON object of {', '.join(sorted(names))}")
            return None
        return tree

    def _stored(self, version: int) -> tuple[StoredSchema | None, dict[str, str]]:
        """The fields and how they are stored, and for each ragged field the field whose offsets it uses."""
        names = {"fields", "offsets"} | ({"packed"} if version == 2 else set())
        tree = self._object(META_SCHEMA, names, optional={"packed"} if version > 2 else set())
        if tree is None:
            return None, {}
        try:
            schema = Schema.from_json(tree["fields"])
        except SchemaError as error:
            self.add(f"{META_SCHEMA}: {error}")
            return None, {}
        stored, wrong = read_packed(schema, tree, (version,))
        for message in wrong:
            self.add(f"{META_SCHEMA}: {message}")
        groups = self._groups(schema, tree["offsets"])
        return (None, {}) if wrong or groups is None else (stored, groups)

    def _groups(self, schema: Schema, groups: Any) -> dict[str, str] | None:
        """For each ragged field the field whose offsets it uses; None if `groups` is no such mapping."""
        ragged = {name for name, field in schema.items() if field.ragged}
        if not isinstance(groups, dict) or groups.keys() != ragged:
            wanted = sorted(ragged)
            self.add(f"{META_SCHEMA} names offsets for {show(groups)}, but ragged are {show(wanted)}")
            return None
        for name, owner in groups.items():
            if not isinstance(owner, str) or groups.get(owner) != owner:
                self.add(f"{META_SCHEMA} gives it the offsets of {show(owner)}, which has none", name)
                return None
        return groups

    def _column(self, name: str, field: Field, samples: int, group: str | None) -> Column | None:
        entry = self._tensor(name)
        if entry is None:
            return None
        rows = entry.shape[0] if entry.shape else 0
        expected = (rows if field.ragged else samples, *field.row_shape)
        if entry.dtype != field.dtype or entry.shape != expected:
            wanted = f"{field.dtype.code} {list(expected)}"
            self.add(f"the tensor is {entry.dtype.code} {list(entry.shape)}, but the schema says {wanted}", name)
            return None
        if group is None:
            return Column(entry.begin, rows)
        offsets = self._tensor(OFFSETS_PREFIX + group)
        if offsets is None:
            return None
        if offsets.dtype.code != "I64" or offsets.shape != (samples + 1,):
            found = f"{offsets.dtype.code} {list(offsets.shape)}"
            self.add(f"offsets are I64 [{samples + 1}], not {found}", offsets.name)
            return None
        return Column(entry.begin, rows, offsets.begin)

    def _tensor(self, name: str) -> TensorEntry | None:
        entry = self.header.tensors.get(name)
        if entry is None:
            self.add(f"there is no tensor {show(name)}", name)
        elif entry.begin % ALIGNMENT:
            self.add(f"the tensor begins at byte {entry.begin}, no multiple of {ALIGNMENT}", name)
        return entry

    def _others(self, stored: StoredSchema, groups: dict[str, str]) -> None:
        """Note each tensor that is neither a column, nor offsets, nor padding."""
        known = set(stored.columns) | {OFFSETS_PREFIX + group for group in groups.values()}
        for name, entry in self.header.tensors.items():
            if name not in known and not _is_padding(entry):
                packed = " of its own, being packed" if name in stored.schema else ""
                self.add(f"the tensor is neither a field{packed}, nor offsets, nor padding", name)

    def _digests(self) -> dict[str, str]:
        tree = self._object(META_CHECKSUMS, {"algorithm", "block_bytes", "digests"})
        if tree is None:
            return {}
        block_bytes, digests = tree["block_bytes"], tree["digests"]
        if tree["algorithm"] != ALGORITHM or type(block_bytes) is not int or block_bytes != BLOCK_BYTES:
            self.add(f"{META_CHECKSUMS} is not of {ALGORITHM} over blocks of {BLOCK_BYTES} bytes")
        if not isinstance(digests, dict):
            self.add(f"{META_CHECKSUMS} has no object of digests")
            return {}
        tensors = {name: entry for name, entry in self.header.tensors.items() if not name.startswith(PADDING_PREFIX)}
        for name, entry in tensors.items():
            found = digests.get(name)
            expected = block_count(entry.end - entry.begin) * DIGEST_CHARS
            if not isinstance(found, str) or len(found) != expected or set(found) - set("0123456789abcdef"):
                self.add(f"{META_CHECKSUMS} has not the {expected} hexadecimal digits that the tensor needs", name)
        for name in digests:
            if name not in tensors:
                self.add(f"{META_CHECKSUMS} has digests of it, but it is no tensor that has any", name)
        return digests


def _is_padding(entry: TensorEntry) -> bool:
    # Shorter than a page: no checksum covers padding, so it must not carry much.
    short = entry.dtype.code == "U8" and len(entry.shape) == 1 and entry.shape[0] < ALIGNMENT
    return short and entry.name.startswith(PADDING_PREFIX)
