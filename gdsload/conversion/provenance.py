"""Metadata of a converted dataset: the names of classes, and where it comes from.

A source may have a method `metadata`, whose answer becomes part of them; or `metadata_parts`, the path and metadata of
each dataset that it is made of, if it is made of some. Nothing in them depends on when, or by how many
workers, a dataset was made: the same conversion writes the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gdsload.conversion.conversion_options import ConvertOptions
from gdsload.conversion.input_files import SourceFiles
from gdsload.conversion.source import Source, path_of
from gdsload.conversion.sources.pictures import ImageSource
from gdsload.errors import OptionError
from gdsload.shards.format.metadata import checked_metadata
from gdsload.shards.format.schema import Schema
from gdsload.system.paths import absolute
from gdsload.system.version import __version__

CLASSES, UNITS, KEY = "classes", "units", "key"
_OF_FIELDS = (CLASSES, UNITS)
_MERGED = "merged"
_PROVENANCE = ("source", "options", "gdsload")


def metadata_of(source: Source, schema: Schema, options: ConvertOptions, given: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a dataset of some fields that is made of a source; what the source says of others is left out.

    Keys in the keyword `metadata` of the conversion replace what the source says.

    Raises:
        OptionError: if datasets that are put together disagree, or JSON cannot hold it: also a class whose folder has
            a name that is not UTF-8.
    """
    wanted = checked_metadata(given.get("metadata"))
    found = told_by(source, list(schema), [about for about in _OF_FIELDS if about not in wanted])
    if not (_parts_of(source) or getattr(source, "rearranges", False)):
        found |= _provenance(source, options, given)
    for about in _OF_FIELDS:
        if isinstance(of := found.get(about), dict):
            found[about] = {name: value for name, value in of.items() if name in schema}
            if not found[about]:
                del found[about]
    if isinstance(key := found.get(KEY), str) and key not in schema:
        del found[KEY]
    return checked_metadata(found | wanted)


def told_by(source: Source, fields: Sequence[str], matters: Collection[str] = _OF_FIELDS) -> dict[str, Any]:
    """The metadata of a source and of these fields of it.

    Raises:
        OptionError: if datasets that are put together disagree in what matters.
    """
    if listed := _parts_of(source):
        return combined_metadata(listed, fields, matters)
    own = getattr(source, "metadata", None)
    return {} if own is None else dict(own())


def _parts_of(source: Source) -> list[tuple[str, dict[str, Any]]]:
    """Path and metadata of each dataset that a source is made of; none if not one of them has any."""
    parts = getattr(source, "metadata_parts", None)
    listed = [] if parts is None else parts()
    return listed if any(metadata for _, metadata in listed) else []


def notes_of(source: Source) -> tuple[str, ...]:
    """Notes for users on a source, which no error gives, such as what is left out."""
    notes, files = getattr(source, "notes", None), getattr(source, "files", None)
    found = () if notes is None else tuple(notes())
    if isinstance(source, ImageSource):
        found += tuple(source.picture_notes)
    return (*found, *files.notes()) if isinstance(files, SourceFiles) else found


def _provenance(source: Source, options: ConvertOptions, given: Mapping[str, Any]) -> dict[str, Any]:
    where: dict[str, Any] = {"kind": source.kind}
    if (path := path_of(source)) is not None:
        # Names of files are any bytes, and JSON holds texts alone.
        where["path"] = os.fsencode(absolute(path)).decode("utf-8", "replace")
    elif isinstance(name := getattr(source, "name", None), str):
        where["name"] = name
    if inner := given.get("source_options"):
        where["options"] = _as_json(inner)
    usual = asdict(ConvertOptions())
    # The treatment of bad samples does not change good ones.
    chosen = {name: value for name, value in asdict(options).items() if value != usual[name] and name != "on_error"}
    if pack := given.get("pack"):
        chosen["pack"] = dict(pack)
    return {"source": where, **({"options": _as_json(chosen)} if chosen else {}), "gdsload": __version__}


def _as_json(value: object) -> Any:
    """A value as JSON has it; what JSON has not, as its text."""
    text = json.dumps(value, default=str)
    return json.loads(text.encode("utf-8", "replace"))


def combined_metadata(
    datasets: Sequence[tuple[str, Mapping[str, Any]]], fields: Sequence[str], matters: Collection[str]
) -> dict[str, Any]:
    """The metadata of several datasets together.

    If all say the same, so do they together. Else what they agree in is kept, and classes and units that some of them
    name; what they come from is under ``"merged"``, once for each different one. What `matters`, ``"classes"`` or
    ``"units"``, must be the same for the fields of the result.

    Raises:
        OptionError: if they name the classes or unit of a field differently: one number would mean two things then.
    """
    if all(metadata == datasets[0][1] for _, metadata in datasets):
        return dict(datasets[0][1])
    agreed = {about: _agreed(datasets, about, fields) for about in matters}
    apart = {*_PROVENANCE, _MERGED}
    same = {
        key: value
        for key, value in datasets[0][1].items()
        # A user's classes or units that are no mapping of fields are keys like any other.
        if not (key in apart or (key in _OF_FIELDS and isinstance(value, Mapping)))
        and all(key in other and other[key] == value for _, other in datasets)
    }
    origins: list[Any] = []
    for _, metadata in datasets:
        origin = {key: metadata[key] for key in (*_PROVENANCE, _MERGED) if key in metadata}
        if origin and origin not in origins:
            origins.append(origin)
    return {
        **{about: of for about, of in agreed.items() if of},
        **same,
        **({_MERGED: origins} if origins else {}),
        "gdsload": __version__,
    }


def _agreed(datasets: Sequence[tuple[str, Mapping[str, Any]]], about: str, fields: Sequence[str]) -> dict[str, Any]:
    """The values of some datasets' metadata about fields, by field; an error if the datasets disagree."""
    names: dict[str, tuple[str, Any]] = {}
    for path, metadata in datasets:
        own: Any = metadata.get(about)
        for field in fields if isinstance(own, Mapping) else ():
            if (found := own.get(field)) is None:
                continue
            before, known = names.setdefault(field, (path, found))
            if known != found:
                raise OptionError(
                    f"{before} and {path} have different {about} ({known!s:.80}; {found!s:.80}): one number would mean "
                    "two things",
                    field=field,
                    remedy="Convert the values of one (gdsload.reshard with `map=` and `metadata=`); or, if they mean "
                    f'the same, say so: `metadata={{"{about}": {{{field!r}: ...}}}}`.',
                )
    return {field: known for field, (_, known) in names.items()}
