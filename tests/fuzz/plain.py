"""Shards read and made by their specification alone, with json and Python's integers: nothing of gdsload's is used."""

from __future__ import annotations

import json
import math
from typing import Any

PAGE = 4096
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "U16": "uint16",
    "I16": "int16", "F16": "float16", "BF16": "bfloat16", "U32": "uint32", "I32": "int32", "F32": "float32",
    "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64",
}  # fmt: skip
CODES = {name: code for code, name in DTYPES.items()}
ITEM_BYTES = dict(zip(DTYPES, (1,) * 8 + (2,) * 4 + (4,) * 3 + (8,) * 4, strict=True))
STRINGS = ("str", "bytes", "image")


def item_bytes(field: dict[str, Any]) -> int:
    return 1 if field["dtype"] in STRINGS else ITEM_BYTES[CODES[field["dtype"]]]


def is_ragged(field: dict[str, Any]) -> bool:
    return field["dtype"] in STRINGS or field["shape"][:1] == [None]


def row_bytes(field: dict[str, Any]) -> int:
    return item_bytes(field) * math.prod(size for size in field.get("shape", ()) if size is not None)


def row_of(fields: dict[str, Any], names: list[str]) -> tuple[dict[str, int], int]:
    """Where each packed field begins in a row, and the bytes of the row."""
    begins, end, largest = {}, 0, 1
    for name in names:
        size = item_bytes(fields[name])
        begins[name] = math.ceil(end / size) * size
        end, largest = begins[name] + row_bytes(fields[name]), max(largest, size)
    return begins, math.ceil(end / largest) * largest


class PlainShard:
    """A shard that gdsload has accepted, in memory: KeyError and the like are faults of gdsload's then.

    Attributes:
        fields: the fields, as JSON.
        samples: their number.
    """

    def __init__(self, raw: bytes) -> None:
        start = 8 + int.from_bytes(raw[:8], "little")
        tree = json.loads(raw[8:start])
        said = tree.pop("__metadata__", {})
        self._bytes = {name: raw[start:][slice(*entry["data_offsets"])] for name, entry in tree.items()}
        self._offsets: dict[str, list[int]] = {}
        self._packed: dict[str, tuple[str, int, int]] = {}
        if "gdsload.version" not in said:
            self.fields = {
                name: {"dtype": DTYPES[tree[name]["dtype"]], "shape": tree[name]["shape"][1:]} for name in sorted(tree)
            }
            self.samples = next(iter(tree.values()))["shape"][0]
            return
        schema, self.samples = json.loads(said["gdsload.schema"]), int(said["gdsload.samples"])
        self.fields = schema["fields"]
        for name, owner in schema["offsets"].items():
            found = self._bytes[f"gdsload:offsets:{owner}"]
            numbers = (int.from_bytes(found[at : at + 8], "little", signed=True) for at in range(0, len(found), 8))
            self._offsets[name] = list(numbers)
        for number, names in enumerate(schema.get("packed", ())):
            begins, size = row_of(self.fields, names)
            self._packed |= {name: (f"gdsload:rows:{number}", begin, size) for name, begin in begins.items()}

    @property
    def sound(self) -> bool:
        """False if samples must be refused: their offsets cannot be, or a text is no UTF-8."""
        for name, offsets in self._offsets.items():
            rows = len(self._bytes[name]) // max(row_bytes(self.fields[name]), 1)
            known = row_bytes(self.fields[name]) > 0  # of rows without bytes, only the header has the number
            if offsets[0] != 0 or offsets != sorted(offsets) or (known and offsets[-1] != rows):
                return False
            if self.fields[name]["dtype"] == "str":
                try:
                    for number in range(self.samples):
                        self.value(number, name)[1].decode()
                except UnicodeDecodeError:
                    return False
        return True

    def value(self, number: int, name: str) -> tuple[list[int], bytes]:
        """The shape and bytes of a field of a sample."""
        field, size, begin = self.fields[name], row_bytes(self.fields[name]), 0
        if is_ragged(field):
            low, high = self._offsets[name][number : number + 2]
            return [high - low, *field.get("shape", [None])[1:]], self._bytes[name][low * size : high * size]
        column, begin, row = self._packed.get(name, (name, 0, size))
        begin += number * row
        return field["shape"], self._bytes[column][begin : begin + size]


def forge(fields: dict[str, Any], samples: int, contents: dict[str, bytes], packed: Any = None) -> bytes:
    """A shard that says what it is asked to, whether that makes sense or not; its checksums are all zeros.

    Args:
        fields: as JSON has them.
        samples: their number.
        contents: bytes of tensors, by name; other tensors get zeros. Offsets of `name` are those of
            ``gdsload:offsets:name``, and give it its number of rows.
        packed: names of the fields of each packed column; they must be fixed fields.
    """
    inside = {name for names in packed or () for name in names}
    tensors: dict[str, tuple[str, list[int], int]] = {}
    for name, field in fields.items():
        size = row_bytes(field)
        if is_ragged(field):
            rows = len(contents.get(name, b"")) // max(size, 1)
            tensors[f"gdsload:offsets:{name}"] = "I64", [samples + 1], 8 * (samples + 1)
            code = "U8" if field["dtype"] in STRINGS else CODES[field["dtype"]]
            tensors[name] = code, [rows, *field.get("shape", [None])[1:]], rows * size
        elif name not in inside:
            tensors[name] = CODES[field["dtype"]], [samples, *field["shape"]], samples * size
    for number, names in enumerate(packed or ()):
        size = row_of(fields, names)[1]
        tensors[f"gdsload:rows:{number}"] = "U8", [samples, size], samples * size
    tree: dict[str, Any] = {}
    data = bytearray()
    for number, (name, (code, shape, size)) in enumerate(tensors.items()):
        begin, padding = len(data), -size % PAGE
        data += contents.get(name, b"")[:size].ljust(size + padding, b"\0")
        tree[name] = {"dtype": code, "shape": shape, "data_offsets": [begin, begin + size]}
        if padding:
            at = [begin + size, begin + size + padding]
            tree[f"gdsload:pad:{number}"] = {"dtype": "U8", "shape": [padding], "data_offsets": at}
    digests = {name: "0" * 16 * math.ceil(size / 2**18) for name, (_, _, size) in tensors.items()}
    schema = {"fields": fields, "offsets": {name: name for name in fields if f"gdsload:offsets:{name}" in tensors}}
    images = any(field["dtype"] == "image" for field in fields.values())
    checksums = {"algorithm": "xxh3_64", "block_bytes": 2**18, "digests": digests}
    tree["__metadata__"] = {
        "gdsload.version": "3" if images else "1" if packed is None else "2",
        "gdsload.samples": str(samples),
        "gdsload.schema": json.dumps(schema if packed is None else {**schema, "packed": packed}),
        "gdsload.checksums": json.dumps(checksums),
    }
    return with_length(json.dumps(tree).encode()) + bytes(data)


def with_length(text: bytes) -> bytes:
    """A header's text with its length before it, and blanks up to a page."""
    length = math.ceil((8 + len(text)) / PAGE) * PAGE - 8
    return length.to_bytes(8, "little") + text.ljust(length)
