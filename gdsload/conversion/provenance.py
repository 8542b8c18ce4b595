"""What the metadata of a converted dataset say: the names of classes, and where it comes from.

A source may have a method `metadata`, whose answer becomes part of them; or `metadata_parts`, the path and metadata of
each dataset that it is made of, if it is made of some. Nothing in them depends on when, or by how many
workers, a dataset was made: the same conversion writes the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gdsload.conversion.conversion_options import ConvertOptions
from gdsload.conversion.source import Source
from gdsload.errors import OptionError
from gdsload.shards.format.metadata import checked_metadata
from gdsload.shards.format.schema import Schema
from gdsload.system.paths import absolute
from gdsload.system.version import __version__

__all__ = ["combined_metadata", "metadata_of", "notes_of"]

CLASSES = "classes"
_MERGED = "merged"
_PROVENANCE = ("source", "options", "gdsload")


def metadata_of(source: Source, schema: Schema, options: ConvertOptions, given: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a dataset that is made of a source.

    Args:
        source: the source.
        schema: the fields of the result: classes of others are left out.
        options: how it is converted.
        given: the keywords of the conversion; of these `metadata` replaces what it has keys of.

    Raises:
        OptionError: if datasets that are put together disagree, or JSON cannot hold what was given.
    """
    wanted = checked_metadata(given.get("metadata"))
    found: dict[str, Any] = {}
    parts = getattr(source, "metadata_parts", None)
    listed = [] if parts is None else parts()
    if any(metadata for _, metadata in listed):
        found = combined_metadata(listed, () if CLASSES in wanted else list(schema))
    elif not getattr(source, "rearranges", False):
        own = getattr(source, "metadata", None)
        found = ({} if own is None else dict(own())) | _provenance(source, options, given)
    found |= wanted
    if isinstance(classes := found.get(CLASSES), dict):
        found[CLASSES] = {name: names for name, names in classes.items() if name in schema}
        if not found[CLASSES]:
            del found[CLASSES]
    return checked_metadata(found)


def notes_of(source: Source) -> tuple[str, ...]:
    """What users should know of a source, and no error says: what is left out of it, say."""
    notes = getattr(source, "notes", None)
    return () if notes is None else tuple(notes())


def _provenance(source: Source, options: ConvertOptions, given: Mapping[str, Any]) -> dict[str, Any]:
    where: dict[str, Any] = {"kind": source.kind}
    path = getattr(source, "path", None)
    if isinstance(path, str):
        where["path"] = absolute(path)
    elif isinstance(name := getattr(source, "name", None), str):
        where["name"] = name
    if inner := given.get("source_options"):
        where["options"] = _as_json(inner)
    usual = ConvertOptions().to_json()
    # What bad samples do changes nothing of those that are good.
    chosen = {name: value for name, value in options.to_json().items() if value != usual[name] and name != "on_error"}
    if pack := given.get("pack"):
        chosen["pack"] = dict(pack)
    return {"source": where, **({"options": _as_json(chosen)} if chosen else {}), "gdsload": __version__}


def _as_json(value: object) -> Any:
    """A value as JSON has it; what JSON has not, as its text."""
    text = json.dumps(value, default=str)
    return json.loads(text.encode("utf-8", "replace"))


def combined_metadata(datasets: Sequence[tuple[str, Mapping[str, Any]]], fields: Sequence[str]) -> dict[str, Any]:
    """The metadata of several datasets together.

    If all say the same, so do they together. Else what they agree in is kept, and classes that some of them name;
    what they come from stands under ``"merged"``, once for each different one.

    Args:
        datasets: path and metadata of each.
        fields: those whose classes matter.

    Raises:
        OptionError: if they name the classes of a field differently: one number would mean two things then.
    """
    if all(metadata == datasets[0][1] for _, metadata in datasets):
        return dict(datasets[0][1])
    names: dict[str, tuple[str, Any]] = {}
    for path, metadata in datasets:
        own: Any = metadata.get(CLASSES)
        for field in fields if isinstance(own, Mapping) else ():
            if (found := own.get(field)) is None:
                continue
            before, known = names.setdefault(field, (path, found))
            if known != found:
                raise _disagreement(field, before, path, known, found)
    apart = {*_PROVENANCE, CLASSES, _MERGED}
    same = {
        key: value
        for key, value in datasets[0][1].items()
        if key not in apart and all(key in other and other[key] == value for _, other in datasets)
    }
    origins: list[Any] = []
    for _, metadata in datasets:
        origin = {key: metadata[key] for key in (*_PROVENANCE, _MERGED) if key in metadata}
        if origin and origin not in origins:
            origins.append(origin)
    classes = {field: known for field, (_, known) in names.items()}
    return {
        **({CLASSES: classes} if classes else {}),
        **same,
        **({_MERGED: origins} if origins else {}),
        "gdsload": __version__,
    }


def _disagreement(field: str, before: str, path: str, known: Any, found: Any) -> OptionError:
    where = ""
    if isinstance(known, list) and isinstance(found, list):
        where = f" ({len(known)} and {len(found)} of them)"
        for number, (one, other) in enumerate(zip(known, found, strict=False)):
            if one != other:
                where = f": {number} is {one!r:.80} in the one and {other!r:.80} in the other"
                break
    return OptionError(
        f"{before} and {path} name the classes of their labels differently{where}: one number would mean two things",
        field=field,
        remedy="Renumber the labels of one (gdsload.reshard with map= and metadata=); or, if they mean the same, "
        f'say the names: metadata={{"classes": {{{field!r}: [...]}}}}.',
    )
