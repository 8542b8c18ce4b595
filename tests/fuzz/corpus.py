"""The inputs that fuzzing begins with: good ones, and what has broken gdsload before, cut to a few kilobytes."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.fuzz.plain import PAGE, forge
from tests.fuzz.targets import FIELDS, PACKED, loaders, write_two

DEEP = b"[" * 20_000


def corpus(target: str, folder: Path) -> list[bytes]:
    """The inputs of a target; `folder` is for files."""
    return {"header": headers, "index": indexes, "offsets": offsets, "packed": packed, "images": images,
            "state": states}[target](folder)  # fmt: skip


def plain_header(**shapes: list[int]) -> bytes:
    tree = {name: {"dtype": "U8", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    return json.dumps({"__metadata__": {"format": "pt"}, **tree}).encode()


def headers(folder: Path) -> list[bytes]:
    """Of three versions and of another program's; lists of nothing, rows of no bytes, deep and long ones."""
    own = [forge(FIELDS, 4, {"x": bytes(range(24))}), forge(PACKED["fields"], 4, {}, [["a", "b"], ["c", "e", "d"]]),
           forge({"i": {"dtype": "image", "codecs": ["png"]}, "x": {"dtype": "int64", "shape": []}}, 2, {})]  # fmt: skip
    texts = [raw[8:PAGE].rstrip() + b"\0" for raw in own]
    shared = {"é": {"dtype": "int32", "shape": [None, 2]}, "m": {"dtype": "bool", "shape": [None]}}
    texts.append(forge(shared, 5, {})[8:PAGE].rstrip() + b"\0")
    entry = {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}
    texts.append(json.dumps({"a": entry, "b": {"dtype": "BF16", "shape": [2], "data_offsets": [8, 12]}}).encode())
    broken = [b'{"a":[' + b"[]," * 3000 + b"[]]}", b'{"a":' + DEEP, plain_header(**{"n" * 5000: [2, 0]})]
    sizes = [plain_header(x=[size, 0]) for size in (2, 2**40, 2**60, 10**18, 2**63 - 1)]
    return [*texts, *broken, *sizes, plain_header(x=[3, 0], y=[3, 2**50, 0]), struct.pack("<Q", 2**63) + b"{}"]


def indexes(folder: Path) -> list[bytes]:
    """A good one, one with metadata, one of no shards; one of lists of nothing, and a deep one."""
    write_two(folder / "seed")
    text = (folder / "seed" / "index.json").read_bytes()
    tree: dict[str, Any] = json.loads(text)
    metadata = {**tree, "version": 3, "metadata": {"classes": {"x": ["a", "b"]}, "depth": [[[1.5]]]}}
    less = [{**tree, "shards": tree["shards"][:number], "samples": 4 * number} for number in (0, 1)]
    lists = b'{"format":[' + b"[]," * 3000 + b"[]]}"
    return [text, *(json.dumps(one).encode() for one in (metadata, *less)), lists, DEEP, b'{"metadata":' + DEEP]


def offsets(folder: Path) -> list[bytes]:
    """Good ones, all of no rows, and those that fall, run over, or are negative."""

    def of(*numbers: int, text: bytes = b"Gr\xc3\xbc\xc3\x9fe") -> bytes:
        return b"\1" + struct.pack("<15q", *numbers) + bytes(112) + text

    good = [0, 2, 2, 7, 10], [0, 0, 3, 4, 9], [0, 2, 4, 6, 7]
    found = [of(*good[0], *good[1], *good[2]), of(*[0] * 15, text=b""), of(*good[0], *good[1], 0, 3, 4, 6, 7)]
    wrong = [0, 7, 2, 7, 10], [0, 2, 2, 7, 11], [-1, 2, 2, 7, 10], [0, 2**62, 2**62, 2**62, 10], [0] * 5
    found += [of(*one, *good[1], *good[2]) for one in wrong]
    return [*found, b"\0" + bytes(range(60)), b"\0" + bytes(13), b"\2" + b"\0\3\0\1" * 3 + b"\xff" * 99]


def packed(folder: Path) -> list[bytes]:
    """Columns of fields of several sizes, in several orders; one of no bytes, one twice, a ragged one."""
    fields = {**PACKED["fields"], "f": {"dtype": "float64", "shape": []}, "g": {"dtype": "uint16", "shape": [2, 0]}}
    ways = [[["f", "a", "b", "e"]], [["e", "f", "a"], ["d", "c"]], [["e"]], [["a", "g"]], [["a", "a"]], [["z"]], []]
    texts = [json.dumps({"fields": fields, "packed": way, "samples": 3}).encode() for way in ways]
    return [text + b"\0" + bytes(range(200)) for text in texts]


def images(folder: Path) -> list[bytes]:
    """Small images of all codecs and many kinds, and bombs: sizes that only a header promises, text that unpacks."""
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 4), np.uint8)
    found = []
    exif = Image.Exif()
    exif[0x0112] = 6
    for mode, codec in [("RGB", "JPEG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"), ("RGBA", "PNG"), ("P", "PNG"),
                        ("1", "PNG"), ("LA", "PNG"), ("I;16", "PNG"), ("RGB", "WEBP"), ("RGBA", "WEBP")]:  # fmt: skip
        image = Image.fromarray(pixels)
        image = (
            image.convert("I;16") if mode == "I;16" else image.convert("RGB" if mode == "CMYK" else mode).convert(mode)
        )
        for options in ({}, {"exif": exif}, {"progressive": True} if codec == "JPEG" else {"lossless": True}):
            image.save(out := io.BytesIO(), codec, **options)
            found.append(out.getvalue())

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    for size in ((2**31 - 1, 1), (65500, 65500), (1000, 1000), (0, 5)):
        head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0))
        text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(2**22), 9))
        found.append(head + text + chunk(b"IDAT", zlib.compress(bytes(3000))) + chunk(b"IEND", b""))
    jpeg = found[0]
    at = jpeg.index(b"\xff\xc0") + 5
    return [*found, jpeg[:at] + b"\xff\xdc\xff\xdc" + jpeg[at + 4 :], jpeg[:100], jpeg[:3], found[9][:40], b"GIF89a"]


def states(folder: Path) -> list[bytes]:
    """States of each loader at several steps, without the seed or others of their values, and deep ones."""
    write_two(folder / "seed")
    found = [b"0" + DEEP, b'0{"version":1,"epoch":' + DEEP, b"0{}", b"1[]", b"2null"]
    for number, (loader, _) in enumerate(loaders(folder / "seed")):
        batches = iter(loader)
        for _ in range(2):
            next(batches)
            found.append(b"%d" % number + json.dumps(state := loader.state_dict()).encode())
            loader.load_state_dict(state)
            batches = iter(loader)
        del state["seed"]
        found.append(b"%d" % number + json.dumps(state).encode())
    return found
