"""The metadata of a dataset: any JSON object, of bounded size. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from gdsload.errors import OptionError
from gdsload.shards.format.strict import is_text, show

Metadata = Mapping[str, Any]

MAX_METADATA_BYTES = 16 * 2**20
_MAX_DEPTH = 32
_LEAST, _MOST = -(2**63), 2**64 - 1


def metadata_digest(metadata: Metadata) -> str:
    """SHA-256 of metadata, written compactly."""
    return hashlib.sha256(_dump(metadata)).hexdigest()


def _dump(metadata: object) -> bytes:
    return json.dumps(metadata, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def read_metadata(value: object) -> dict[str, Any]:
    """The metadata in an index, trusting nothing.

    Raises:
        ValueError: with the first thing that is wrong.
    """
    if not isinstance(value, dict) or not value:
        raise ValueError(f"metadata is {show(value)}, no object of at least one key")
    found: dict[str, Any] = _plain(value, 1)
    if (nbytes := len(_dump(found))) > MAX_METADATA_BYTES:
        raise ValueError(f"metadata has {nbytes} bytes; the most is {MAX_METADATA_BYTES}")
    return found


def _plain(value: object, depth: int) -> Any:
    """A value as it is once JSON has written and read it: mappings are objects, and tuples are lists."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"metadata is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise ValueError(f"metadata has the key {show(name)}")
        return {_plain(name, depth): _plain(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth + 1) for inner in value]
    if value is None or isinstance(value, bool) or is_text(value):
        return value
    if isinstance(value, str):
        raise ValueError(f"metadata has a text that is no valid Unicode: {show(value)}")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"metadata has the number {value}")
        return float(value)
    if type(value) is not int:
        raise ValueError(f"metadata has a value of type {type(value).__name__}, which is none of JSON's")
    if not _LEAST <= value <= _MOST:
        raise ValueError("metadata has a whole number that does not fit 64 bits")
    return value


def checked_metadata(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The metadata that a user passed, as they are once written and read: with lists for tuples.

    Raises:
        OptionError: if it is no JSON object, or too large.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise OptionError(f"is {given!r:.200}", option="metadata", remedy="Pass a mapping of what JSON can hold.")
    try:
        return read_metadata(dict(given)) if given else {}
    except ValueError as error:
        remedy = f"Metadata are what JSON can hold, at most {MAX_METADATA_BYTES // 2**20} MiB of it."
        raise OptionError(str(error), remedy=remedy) from None


def class_names(metadata: Metadata) -> dict[str, list[str]]:
    """The names of the classes of each field of labels, in order of their numbers, as far as a dataset has any."""
    found = metadata.get("classes")
    pairs = found.items() if isinstance(found, Mapping) else ()
    return {field: [str(name) for name in names] for field, names in pairs if isinstance(names, list) and names}
