"""The metadata of a dataset: any JSON object, of bounded size. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from gdsload.errors import OptionError
from gdsload.shards.format.strict import is_text, show

__all__ = ["MAX_METADATA_BYTES", "Metadata", "checked_metadata", "metadata_digest", "metadata_problems"]

Metadata = Mapping[str, Any]

MAX_METADATA_BYTES = 16 * 2**20
_MAX_DEPTH = 32
_LEAST, _MOST = -(2**63), 2**64 - 1


def metadata_digest(metadata: Metadata) -> str:
    """SHA-256 of metadata, written compactly."""
    return hashlib.sha256(_dump(metadata)).hexdigest()


def _dump(metadata: object) -> bytes:
    return json.dumps(metadata, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def metadata_problems(value: object) -> list[str]:
    """All that is wrong with what an index has as metadata, trusting nothing."""
    if not isinstance(value, dict) or not value:
        return [f"metadata is {show(value)}, no object of at least one key"]
    found = list(dict.fromkeys(_complaints(value, 1)))[:16]
    if not found and (nbytes := len(_dump(value))) > MAX_METADATA_BYTES:
        found = [f"metadata has {nbytes} bytes; the most is {MAX_METADATA_BYTES}"]
    return found


def _complaints(value: object, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        yield f"metadata is nested more than {_MAX_DEPTH} levels deep"
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _complaints(name, depth) if isinstance(name, str) else (f"metadata has the key {show(name)}",)
            yield from _complaints(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _complaints(inner, depth + 1)
    elif isinstance(value, str):
        if not is_text(value):
            yield f"metadata has a text that is no valid Unicode: {show(value)}"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield f"metadata has the number {value}"
    elif value is not None and not isinstance(value, bool):
        if type(value) is not int:
            yield f"metadata has a value of type {type(value).__name__}, which is none of JSON's"
        elif not _LEAST <= value <= _MOST:
            yield "metadata has a whole number that does not fit 64 bits"


def checked_metadata(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The metadata that a user passed, as they are once written and read: with lists for tuples.

    Raises:
        OptionError: if it is no JSON object, or too large.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise OptionError(f"is {given!r:.200}", option="metadata", remedy="Pass a mapping of what JSON can hold.")
    plain = _plain(given, 0)
    if plain and (problems := metadata_problems(plain)):
        raise OptionError(
            problems[0], remedy=f"Metadata are what JSON can hold, at most {MAX_METADATA_BYTES // 2**20} MiB of it."
        )
    found: dict[str, Any] = json.loads(_dump(plain))
    return found


def _plain(value: object, depth: int) -> Any:
    """Mappings and tuples as JSON has them; what is too deep stays as it is, to be refused."""
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, Mapping):
        return {name: _plain(inner, depth + 1) for name, inner in value.items()}
    return [_plain(inner, depth + 1) for inner in value] if isinstance(value, list | tuple) else value
