"""Write the golden datasets: small ones of every element type and kind of field, whose bytes never change.

    python tools/make_golden.py [FOLDER]

They hold every later version of gdsload to what versions 1 to 3 of the format mean (docs/spec/shard-v1.md, M40;
shard-v2.md, M52; shard-v3.md, M62): they must open with the samples that `samples` computes here, and today's writer
must write the same bytes.

When may they be written again? Those of a version, in ``tests/data/shards/v1`` to ``v3``, only as long as no release
of gdsload has written that version; after that never, whatever a test says: then the code is wrong. So nothing that is
there is replaced: to write it again, somebody must first remove it by hand.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from gdsload.shards.format.dtypes import DTYPES
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.stored import PackRule
from gdsload.shards.values import torch_dtype
from gdsload.shards.writer import ShardWriter

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "shards"

# Each tensor has its own page: the element types share one shard, so that the files stay small.
_SHAPES: tuple[tuple[int, ...], ...] = ((), (3,), (2, 2), (0,), (1, 2, 3), (2, 0))
_DTYPES = {
    f"{dtype.name} {number}": Field(dtype, _SHAPES[number % len(_SHAPES)])
    for number, dtype in enumerate(DTYPES.values())
}
SCHEMAS = {
    "dtypes": Schema(_DTYPES),
    "ragged": Schema(
        {
            "label": Field("int64"),
            "points": Field("float32", (None, 3)),
            "colours": Field("uint8", (None, 4)),
            "naïve": Field("str"),
            "raw": Field("bytes"),
        }
    ),
    "empty": Schema({"x": Field("bfloat16", (None, 2)), "text": Field("str")}),
    "packed": Schema({"text": Field("str"), **_DTYPES}),
    "images": Schema(
        {
            "image": Field("image"),
            "image.width": Field("int32"),
            "image.height": Field("int32"),
            "image.orientation": Field("uint8"),
            "label": Field("int64"),
            "mask": Field("image", codecs=["png"]),
        }
    ),
    "images-apart": Schema({"jpg": Field("image", codecs=["jpeg"]), "label": Field("int64")}),
}
VERSIONS = {"packed": 2, "images": 3, "images-apart": 3}
"""Of the format, for those that are not of version 1."""
METADATA: dict[str, dict[str, Any]] = {
    "images-apart": {
        "classes": {"label": ["cat", "naïve", "日本語"]},
        "n": [0, -1, 18446744073709551615, 0.1, 1e-300, None, True],
    }
}
PACKED = {"packed", "images"}
"""Those whose small fields are packed."""
COUNTS = {"dtypes": 3, "ragged": 7, "empty": 0, "packed": 5, "images": 6, "images-apart": 3}
SHARD_BYTES = {"dtypes": 2**20, "ragged": 320, "empty": 2**20, "packed": 500, "images": 300, "images-apart": 2**20}
_SIGNATURES = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n", "webp": b"RIFF\0\0\0\0WEBP"}
_TEXTS = ("", "hello", "naïve café", "日本語", "👩‍👩‍👧", "a\0b", "line\nline")


def samples(name: str) -> Iterator[dict[str, Any]]:
    """The samples of a golden dataset: any bits, from SHAKE-128, so that they are the same on every machine."""
    for number in range(COUNTS[name]):
        yield {field_name: _value(field_name, field, number) for field_name, field in SCHEMAS[name].items()}


def _value(name: str, field: Field, number: int) -> object:
    if field.kind == "str":
        return _TEXTS[number % len(_TEXTS)]
    if field.kind == "bytes":
        return _bits(name, number, number * 5 % 8)
    if field.kind == "image":  # a signature, and any bits after it
        return _SIGNATURES[field.codecs[number % len(field.codecs)]] + _bits(name, number, number * 7 % 40)
    shape = (number * 3 % 5, *field.row_shape) if field.ragged else field.row_shape
    count = torch.Size(shape).numel() * field.dtype.itemsize
    raw = torch.tensor(list(_bits(name, number, count)), dtype=torch.uint8)
    if field.dtype.name == "bool":
        raw &= 1
    return raw.view(torch_dtype(field.dtype)).reshape(shape)


def _bits(name: str, number: int, count: int) -> bytes:
    return hashlib.shake_128(f"{name}/{number}".encode()).digest(count)


def place(folder: Path, name: str) -> Path:
    """Where a golden dataset is in the folder of them all."""
    return folder / f"v{VERSIONS.get(name, 1)}" / name


def write(folder: Path) -> None:
    """Write the golden datasets into a folder, those of each version of the format into a separate one.

    Raises:
        DatasetExistsError: if one is there already.
    """
    for name, schema in SCHEMAS.items():
        rule: PackRule = "auto" if name in PACKED else ()
        where = place(folder, name)
        with ShardWriter(
            where, schema, shard_bytes=SHARD_BYTES[name], pack_fields=rule, metadata=METADATA.get(name)
        ) as writer:
            for sample in samples(name):
                writer.write(sample)


def main(arguments: list[str]) -> int:
    """Write them where the arguments say, by default where the tests look for them."""
    folder = Path(arguments[0]) if arguments else FOLDER
    write(folder)
    print(f"wrote {', '.join(SCHEMAS)} to {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
