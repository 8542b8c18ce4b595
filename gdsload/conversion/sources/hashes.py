"""Hashes by the names that datasets have for them."""

from __future__ import annotations

import hashlib
from typing import Protocol

import xxhash

__all__ = ["Hasher", "new_hash"]

_XXHASH = ("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128")


class Hasher(Protocol):
    """An object that makes a hash of bytes that come one after the other."""

    def update(self, data: bytes, /) -> None:
        """Take these bytes, too."""

    def hexdigest(self) -> str:
        """The hash of all of them, in hexadecimal."""


def new_hash(name: str) -> Hasher | None:
    """The algorithm of a name, as `hashlib` or `xxhash` has it; None if it is not known here, or has no one length."""
    if name in _XXHASH:
        found: Hasher = getattr(xxhash, "xxh3_128" if name == "xxh128" else name)()
        return found
    if name not in hashlib.algorithms_available or name.startswith("shake"):
        return None
    return hashlib.new(name, usedforsecurity=False)
