"""The storage of a schema's fields: each in its own column, or several together, as packed rows.

Everything that reads works on stored columns, of which a packed one is a plain field of bytes. Only codecs, which make
batches of columns, and the encoder, which makes columns of batches, know which fields are inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from gdsload.errors import OptionError, SchemaError
from gdsload.shards.format.schema import RESERVED_PREFIX, Field, Schema
from gdsload.shards.format.strict import show
from gdsload.system.names import check_list

PackRule = Literal["auto"] | Sequence[str]
"""The fields that are packed: ``"auto"``, those that gain by it; or those of these names."""
Packed = tuple[tuple[str, ...], ...]

ROWS_PREFIX = f"{RESERVED_PREFIX}rows:"
_MOST_BYTES, _LEAST_FIELDS = 16, 4
"""Fields of so many bytes, and from so many of them on, are packed by themselves. A read takes longer than a copy of
the bytes around it, which a loader of few fields has to copy, too; with few fields there is little gain
(docs/design/0012-packed-fields.md)."""


class StoredSchema:
    """The fields of a dataset and the columns in which they are stored.

    Args:
        schema: the fields.
        packed: the names of the fields of each packed column, in the order in which they are in a row; all fixed, and
            each of at least one byte.

    Attributes:
        columns: what each column holds, by the name of its tensor: packed columns first, then the other fields in the
            order of the schema. A packed column is a fixed field of bytes.
        places: for each packed column the byte of a row at which each of its fields begins.
    """

    __slots__ = ("columns", "packed", "places", "schema")

    def __init__(self, schema: Schema, packed: Packed = ()) -> None:
        self.schema, self.packed = schema, packed
        self.columns: dict[str, Field] = {}
        self.places: dict[str, dict[str, int]] = {}
        for number, names in enumerate(packed):
            column = f"{ROWS_PREFIX}{number}"
            self.places[column], row_bytes = _row(schema, names)
            self.columns[column] = Field("uint8", (row_bytes,))
        inside = {name for names in packed for name in names}
        self.columns.update((name, field) for name, field in schema.items() if name not in inside)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredSchema) and (self.schema, self.packed) == (other.schema, other.packed)

    def __hash__(self) -> int:
        return hash((self.schema, self.packed))

    def __repr__(self) -> str:
        packed = f", packed {' and '.join(map(str, map(list, self.packed)))}" if self.packed else ""
        return f"{self.schema!r}{packed}"

    @property
    def version(self) -> int:
        """The version of the format in which shards and indexes of it are written."""
        if any(field.kind == "image" for field in self.schema.values()):
            return 3
        return 2 if self.packed else 1

    @property
    def fixed_bytes(self) -> int:
        """Bytes that each sample takes in columns of one shape."""
        return sum(field.row_bytes for field in self.columns.values() if not field.ragged)

    def columns_of(self, fields: Iterable[str]) -> dict[str, list[str]]:
        """The columns that contain some fields, in the order of the columns, with those of the fields in each.

        Fields of a packed column come in the order of its rows.
        """
        wanted = set(fields)
        found = {name: [one for one in self.places.get(name, (name,)) if one in wanted] for name in self.columns}
        return {name: inside for name, inside in found.items() if inside}


def _row(schema: Mapping[str, Field], names: Iterable[str]) -> tuple[dict[str, int], int]:
    """The offset of each field in a row, and the bytes of a row: as a C compiler lays out a struct.

    Every field begins at a multiple of its element's size, and so does every row at one of the largest element's: typed
    views of rows are legal then.
    """
    begins, position, largest = {}, 0, 1
    for name in names:
        size = schema[name].dtype.itemsize
        begins[name] = -(-position // size) * size
        position, largest = begins[name] + schema[name].row_bytes, max(largest, size)
    return begins, -(-position // largest) * largest


def pack_rule(given: object) -> PackRule:
    """The rule that a user passed as `pack_fields`, checked as far as it can be without a schema.

    Raises:
        OptionError: if it is neither ``"auto"`` nor a list of names.
    """
    if given == "auto":
        return "auto"
    check_list("pack_fields", given)
    names = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(isinstance(name, str) for name in names):
        raise OptionError(
            f"is {given!r:.200}", option="pack_fields", remedy='Pass "auto", the names of fields, or () to pack none.'
        )
    return tuple(map(str, names))


def packed_by(schema: Schema, rule: PackRule) -> StoredSchema:
    """The stored form of a schema, packed by a rule.

    Args:
        schema: the fields.
        rule: ``"auto"``: those of at most 16 bytes are packed if there are at least 4 of them; or the names of those
            that are, in any order.

    Raises:
        SchemaError: if a field that is named does not exist, or cannot be packed.
    """
    if isinstance(rule, str):
        names = [name for name, field in schema.items() if not field.ragged and 0 < field.row_bytes <= _MOST_BYTES]
        names = names if len(names) >= _LEAST_FIELDS else []
    else:
        names = list(dict.fromkeys(rule))
        for name in names:
            if (complaint := _complaint(schema, name)) is not None:
                raise SchemaError(
                    f"it cannot be packed: {complaint}", field=str(name), remedy="Leave it out of `pack_fields`."
                )
    return StoredSchema(schema, (_arranged(schema, names),) if names else ())


def _arranged(schema: Schema, names: Sequence[str]) -> tuple[str, ...]:
    """Fields in the order of a row: by falling element size, so that nothing is lost to alignment.

    And those of one element type and shape together, whose views take one call of torch then.
    """
    order = {name: number for number, name in enumerate(schema)}

    def key(name: str) -> tuple[int, str, tuple[int, ...], int]:
        field = schema[name]
        return -field.dtype.itemsize, field.dtype.code, field.row_shape, order[name]

    return tuple(sorted(names, key=key))


def _complaint(schema: Schema, name: object) -> str | None:
    """The reason why a field cannot be packed; None if it can be."""
    if not isinstance(name, str) or name not in schema:
        return f"the schema has no field {show(name)}"
    if schema[name].ragged:
        return f"the field {show(name)} is not fixed"
    return None if schema[name].row_bytes else f"the field {show(name)} has no bytes"


def read_packed(schema: Schema, tree: Mapping[str, object], versions: Sequence[int]) -> tuple[StoredSchema, list[str]]:
    """The fields with their packed columns as shard metadata and index have those, trusting nothing.

    Args:
        schema: the fields.
        tree: the object that has them as `packed`.
        versions: of the format, those that the fields and columns may need; version 2 is that of packed columns alone.

    Returns:
        They, and all that is wrong with the columns, or with the version; if anything is, they must not be used.
    """
    some = tuple(versions) == (2,) or (max(versions) > 2 and "packed" in tree)
    packed, problems = _columns(schema, tree.get("packed")) if some else ((), [])
    stored = StoredSchema(schema, packed)
    if not problems and stored.version not in versions:
        problems = [f"its version is {max(versions)}, but fields like these are version {stored.version}"]
    return stored, problems


def _columns(schema: Schema, value: object) -> tuple[Packed, list[str]]:
    if not isinstance(value, list) or not value:
        return (), [f"packed is {show(value)}, no list of at least one column"]
    problems: list[str] = []
    seen: set[str] = set()
    for number, names in enumerate(value):
        if not isinstance(names, list) or not names:
            problems.append(f"packed[{number}] is {show(names)}, no list of at least one field")
            continue
        before = len(problems)
        for name in names:
            complaint = _complaint(schema, name)
            if complaint is None and name in seen:
                complaint = f"the field {show(name)} is packed twice"
            if complaint is not None:
                problems.append(f"packed[{number}]: {complaint}")
            else:
                seen.add(name)
        if len(problems) == before and _row(schema, names)[1] >= 2**63:
            problems.append(f"packed[{number}]: a row has more bytes than 64-bit offsets can address")
    return tuple(map(tuple, value)) if not problems else (), problems
