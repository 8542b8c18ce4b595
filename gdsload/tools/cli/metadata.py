"""A dataset's metadata as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["caption", "metadata_lines"]

_SHOWN, _LONGEST = 10, 200


def metadata_lines(metadata: Mapping[str, Any]) -> Iterator[str]:
    """The metadata of a dataset, a line for each entry. They may be anything that JSON can hold."""
    for key, value in metadata.items():
        if key == "classes" and isinstance(value, Mapping):
            for field, names in value.items():
                yield f"classes of {field}: {_listed(names)}"
        elif key == "source" and isinstance(value, Mapping):
            options = value.get("options")
            with_them = f", with {_short(options)}" if options else ""
            place = value.get("path") or value.get("name")
            yield f"from: {value.get('kind')}{f' {place}' if place else ''}{with_them}"
        elif key == "gdsload":
            yield f"written by gdsload {value}"
        else:
            yield f"{key}: {_short(value)}"


def caption(metadata: Mapping[str, Any], sample: Mapping[str, Any], number: int) -> str:
    """The caption of a sample's picture: its number, and its class if the dataset names classes."""
    classes = metadata.get("classes")
    for field, names in classes.items() if isinstance(classes, Mapping) else ():
        label = getattr(sample.get(field), "ndim", None) == 0 and int(sample[field])
        if isinstance(names, list) and label is not False and 0 <= label < len(names):
            return f"{number} {names[label]}"
    return str(number)


def _listed(names: Any) -> str:
    if not isinstance(names, list):
        return _short(names)
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(map(str, names[:_SHOWN]))}{more}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
