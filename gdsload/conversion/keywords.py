"""The keywords of conversions: their types and checks, and which are the source's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypedDict, cast, get_type_hints

from gdsload.conversion.clusters import Cluster
from gdsload.conversion.conversion_options import ConvertOptions, OnError
from gdsload.conversion.option_types import check_types, source_parameters
from gdsload.conversion.recognise import source_class
from gdsload.conversion.sources.arrow_types import ColumnOptions
from gdsload.conversion.sources.pictures import ImageFileOptions
from gdsload.errors import OptionError
from gdsload.shards.format.metadata import checked_metadata
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.stored import PackRule
from gdsload.system.names import check_names

Progress = Callable[[int, int, float, int], None]
"""Called with the samples and bytes written so far, parts finished, and parts in all: before the first part, and a few
times a second. A part under way is a fraction of one, if it is known how many samples it has. A shuffle writes all
twice."""


class RearrangeKeywords(TypedDict, total=False):
    """The keywords of `merge`, `split` and `reshard`."""

    schema: Schema | Mapping[str, Field | str] | None
    fields: Sequence[str] | None
    casts: Mapping[str, str] | None
    ragged: Sequence[str]
    fixed: Sequence[str]
    map: str | None
    shard_bytes: int | str
    shuffle_seed: int | None
    on_error: OnError
    max_skipped: float | str
    workers: int | None
    executor: Executor | Cluster | None
    overwrite: bool
    spread_over: Sequence[str | os.PathLike[str]] | None
    restart: bool
    progress: Progress | None
    pack: Mapping[str, Any] | None
    pack_fields: PackRule | None
    metadata: Mapping[str, Any] | None


class ConvertKeywords(RearrangeKeywords, total=False):
    """The keywords of `convert` that are not a kind's own."""

    kind: str | None
    source_options: Mapping[str, Any] | None


class SourceKeywords(ImageFileOptions, ColumnOptions, total=False):
    """The options of all kinds of sources, for type checkers; each kind documents its own."""

    boxes: str
    decode: str
    delimiter: str | None
    dense: bool
    dtype: str | None
    each: str | None
    encoding: str
    end: int | None
    group: str
    images: str | None
    last: Sequence[str]
    matrix: str
    names: Sequence[str] | None
    prefix: str
    types: Mapping[str, str] | None
    unpack: bool
    upright: bool | None
    with_key: bool


class AllKeywords(ConvertKeywords, SourceKeywords, total=False):
    """The keywords of `convert`, and those of the kinds of sources, which it takes as well."""


_REARRANGING = RearrangeKeywords.__annotations__.keys()
_CONVERTING = ConvertKeywords.__annotations__.keys()
_BY_TYPE = {
    "schema", "fields", "casts", "ragged", "fixed", "on_error", "executor", "overwrite", "restart", "progress", "pack",
    "kind", "source_options",
}  # fmt: skip


def check_rearranging(what: str, options: Mapping[str, Any], *own: str) -> None:
    """Refuse by an `OptionError` keywords that `merge`, `split` or `reshard` do not have."""
    check_names(what, options, {*_REARRANGING, *own})
    _check_types(options)


def divided(source: object, given: Mapping[str, Any]) -> ConvertKeywords:
    """The keywords of a conversion, those that are its source's under `source_options`, where they may be given, too.

    Raises:
        OptionError: if neither `convert` nor the source has one of them, or one is given twice.
    """
    options = cast("ConvertKeywords", {name: value for name, value in given.items() if name in _CONVERTING})
    others = {name: value for name, value in given.items() if name not in _CONVERTING}
    _check_types(options)
    inner = nested(options.get("source_options") or {})
    kind, made = source_class(source, options.get("kind"))
    if made is None and (inner or options.get("kind") is not None):
        raise OptionError(
            "`kind` and `source_options` are for a path, but the source is made already",
            remedy=f"Leave them out: the {type(source).__name__} has its options from where it was made.",
        )
    names = [] if made is None else list(source_parameters(made))
    check_names(f"convert of kind {kind!r}" if kind else "convert", others, {*_CONVERTING, *names})
    check_names(f"kind {kind!r}", inner, names)
    if twice := sorted(others.keys() & inner.keys()):
        raise OptionError(f"{twice[0]} is given twice", remedy="Pass it as a keyword or in `source_options`, not both.")
    return {**options, "source_options": {**inner, **others}} if others or inner else options


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options whose names have a dot as mappings: ``mode.png`` is the ``png`` of `mode`, whose own value is for ``""``.

    So the command line says what in Python is ``mode={"png": "keep", "": "RGB"}``.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        option, dot, key = name.partition(".")
        if dot or option in found:
            before = found.get(option, {})
            found[option] = {**(before if isinstance(before, Mapping) else {"": before}), key: value}
        else:
            found[option] = value
    return found


def choose(options: Mapping[str, Any]) -> ConvertOptions:
    """Those of the keywords that decide the result; an `OptionError` if one cannot be used."""
    given = {name: options[name] for name in ConvertOptions.__dataclass_fields__ if options.get(name) is not None}
    if both := sorted(set(given.get("ragged", ())) & set(given.get("fixed", ()))):
        raise OptionError(f"field {both[0]!r} is to be ragged and fixed")
    for name in given.keys() & {"fields", "ragged", "fixed"}:
        given[name] = tuple(given[name])
    if "casts" in given:
        given["casts"] = tuple(given["casts"].items())
    return ConvertOptions(**given)


def _check_types(options: Mapping[str, Any]) -> None:
    """Refuse by an `OptionError` values that would be misunderstood, or found out late; others have own checks."""
    checked = {name: annotation for name, annotation in get_type_hints(ConvertKeywords).items() if name in _BY_TYPE}
    check_types(checked, {name: value for name, value in options.items() if value is not None})
    checked_metadata(options.get("metadata"))
