"""Random damage to inputs: of bytes, of numbers of eight bytes, and of values in JSON, also in JSON inside of texts."""

from __future__ import annotations

import json
from random import Random
from typing import Any

TOKENS = [
    b"0", b"1", b"-", b".", b"e9", b"[", b"]", b"{", b"}", b'"', b"\\", b",", b":", b" ", b"null", b"true", b"NaN",
    b"\\u0000", b"\\ud800", b"99999999999999999999", b"\xc3\xa9", b"\0", b"\xff\xd8\xff", b"\xff" * 4, b"[" * 2000,
]  # fmt: skip
NUMBERS = [0, 1, 2, 3, 7, 8, 9, 63, 255, 4095, 4096, 2**31, 2**32 - 1, 2**40, 2**60, 2**63 - 1, 2**63, 2**64 - 1]
VALUES: list[Any] = [
    *NUMBERS, -1, -(2**63), 10**30, None, True, False, 1.5, -0.0, 1e400, "", "1", "x", "\ud800", "\0", "n" * 3000, [],
    [0], [None], [0, 0], [[]], {}, [2**60, 0], {"dtype": "U8", "shape": [2**60, 0], "data_offsets": [0, 0]}, "bool",
    "float64", "str", "bytes", "image", "BF16", ["jpeg"], {"dtype": "int32", "shape": [None, 0]},
]  # fmt: skip
NESTED = ("gdsload.schema", "gdsload.checksums")


def mutated(data: bytes, chosen: Random) -> bytes:
    """An input with one to three faults; `chosen` draws them."""
    for _ in range(chosen.choice((1, 1, 1, 2, 3))):
        data = chosen.choice((_edited, _renumbered, _revalued, _revalued))(data, chosen)
    return data


def _edited(data: bytes, chosen: Random) -> bytes:
    at = chosen.randint(0, len(data))
    put = chosen.choice((chosen.choice(TOKENS), chosen.randbytes(1), data[at:][: chosen.randint(1, 64)], b""))
    return data[:at] + put + data[at + chosen.randint(0, 4) :]


def _renumbered(data: bytes, chosen: Random) -> bytes:
    at = chosen.randrange(0, len(data) + 1, 8)
    near = int.from_bytes(data[at : at + 8], "little") + chosen.randint(-2, 2)
    number = chosen.choice((near % 2**64, chosen.choice(NUMBERS)))
    return data[:at] + number.to_bytes(8, "little") + data[at + 8 :]


def _revalued(data: bytes, chosen: Random) -> bytes:
    """With a value of the JSON before the first NUL put in another's place, or removed, or twice there."""
    begin = min((at for at in (data.find(b"{"), data.find(b"[")) if at >= 0), default=len(data))
    text, nul, rest = data[begin:].partition(b"\0")
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return _edited(data, chosen)
    return data[:begin] + json.dumps(_changed(tree, chosen)).encode() + nul + rest


def _changed(tree: Any, chosen: Random, key: str = "") -> Any:
    if key in NESTED and isinstance(tree, str):
        try:
            return json.dumps(_changed(json.loads(tree), chosen))
        except (ValueError, RecursionError):
            return chosen.choice(VALUES)
    if not isinstance(tree, dict | list) or not tree or chosen.random() < 0.1:
        return tree + chosen.randint(-2, 2) if type(tree) is int and chosen.random() < 0.5 else chosen.choice(VALUES)
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    one, other, way = chosen.choice(keys), chosen.choice(keys), chosen.random()
    found = tree.copy()
    if way < 0.1:
        del found[one]
    elif way < 0.2:
        found[one] = tree[other]
    elif way < 0.3 and isinstance(found, list):
        found.insert(other, tree[one])
    elif way < 0.3:
        found[other + "'"] = found.pop(one)
    else:
        found[one] = _changed(tree[one], chosen, str(one))
    return found
