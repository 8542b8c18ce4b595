"""The first look at a source: its schema, and the sizes of its parts, by its first samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from gdsload.conversion.conversion_options import ONE_SCALE, Change, ConvertOptions
from gdsload.conversion.part import failed, place_of, results
from gdsload.conversion.provenance import notes_of
from gdsload.conversion.reasons import reason_of
from gdsload.conversion.sizes import bytes_of_parts, sized
from gdsload.conversion.source import Part, Source, path_of
from gdsload.conversion.sources.pictures import ImageSource
from gdsload.errors import FormatError, SchemaError
from gdsload.shards.encode import infer_schema
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.stored import packed_by

_SAMPLES = 64


def looked_over(
    source: Source, schema: Schema | None, options: ConvertOptions
) -> tuple[Source, Schema, list[Part], tuple[str, ...]]:
    """The source, with what the look has shown to it; its schema; parts, with about their bytes; notes for users."""
    try:
        parts = source.parts(bytes_of_parts(source, int(options.shard_bytes)))
    except FormatError as error:
        raise error.within(path_of(source) or source.kind) from error.__cause__
    schema = schema_of(source, parts, options) if schema is None else schema
    packed_by(schema, options.pack_fields)  # refuses, before anything is written, what no writer could
    return source, schema, sized(source, parts, schema, options), notes_of(source)


def schema_of(source: Source, parts: list[Part], options: ConvertOptions) -> Schema:
    """Work out the schema from the first samples that can be made.

    A field whose first dimension differs among them is ragged, and so is one that the options name so.

    Raises:
        ConversionError: if the very first sample cannot be made, and that is to stop the conversion.
        FormatError: if no sample can be made.
        SchemaError: if the samples do not go together.
    """
    found: Schema | None = None
    seen = 0
    troubles: list[str] = []
    for schema, samples, where in _first(source, parts, options, troubles):
        seen += samples
        if found is None or found.keys() == schema.keys():
            schemas = (found or schema, schema)
            found = Schema({name: _both(name, schemas, source, name in options.ragged, where) for name in schemas[0]})
        elif options.on_error == "stop":
            here, before = (", ".join(map(repr, fields)) for fields in (schema, found))
            raise SchemaError(
                f"{where} has the fields {here}, an earlier sample {before}",
                remedy="Choose the fields that all have: `fields=[...]`; or leave such samples out: `on_error='skip'`.",
            )
        # Else it is skipped later. It counts here, so that this ends even if no other sample is like the first.
        if seen >= _SAMPLES:
            break
    if found is None:
        why = f"the first, {troubles[0]}" if troubles else "it has none"
        raise FormatError("not one sample of the source can be made", file=path_of(source), cause=why)
    fields = {name: _ragged(name, field) if name in options.ragged else field for name, field in found.items()}
    unknown = [name for name in options.ragged if name not in fields]
    if unknown:
        raise SchemaError(f"there is no field {unknown[0]!r} to be ragged")
    for name in options.fixed:
        if fields[name].ragged:
            raise SchemaError(
                "it is to be fixed, but its samples have different lengths, or are texts",
                field=name,
                remedy="Leave it out of `fixed=`.",
            )
    return Schema(fields)


def _first(
    source: Source, parts: list[Part], options: ConvertOptions, troubles: list[str]
) -> Iterator[tuple[Schema, int, str]]:
    """The schemas of the first samples, with how many each is of, and where.

    Of those that cannot be made, the first is noted. A batch is looked at as a whole, for it says which of its fields
    are ragged.
    """
    change, good = Change(options), False
    for part in parts:
        for item in source.read(part):
            for key, count, found in results(item, change, partial(infer_schema, batch=True), dict):
                where = place_of(key, part)
                if not isinstance(found, Exception):
                    schema = found if isinstance(found, Schema) else _schema_alone(found, source, where)
                    yield schema, count, where
                    good = True
                elif options.on_error == "stop" and not good:  # else it stops when it comes there
                    raise failed(key, part, found) from found
                elif not troubles:
                    troubles.append(f"{where}: {reason_of(found)}")


def _schema_alone(sample: Mapping[str, Any], source: Source, where: str) -> Schema:
    """The schema of a sample, by itself; an error names its place, which values do not know."""
    try:
        return infer_schema(sample, batch=False)
    except SchemaError as error:
        message = f"{error.message} ({where})"
        raise SchemaError(message, file=path_of(source), field=error.field, remedy=error.remedy) from None


def _both(name: str, schemas: tuple[Schema, Schema], source: Source, ragged: bool, where: str) -> Field:
    one, other = (schema[name] for schema in schemas)
    if one == other:
        return one
    same = one.dtype == other.dtype and not (one.is_string or other.is_string) and len(one.shape) == len(other.shape)
    pixels = same and one.dtype.name == "uint8" and len(one.shape) == 3
    if same and (ragged or not pixels) and (known := _without_empty(one, other)) is not None:
        return _ragged(name, known)
    channels = pixels and {one.shape[0], other.shape[0]} <= _CHANNELS
    if same and one.shape and one.shape[1:] == other.shape[1:] and (ragged or not channels):
        return _ragged(name, one)
    types = {one.dtype.name, other.dtype.name}
    sounds = f"{name}.sampling_rate" in schemas[0] and len(types) > 1 and types != {"float32", "float64"}
    raise SchemaError(
        f"samples differ: {one} and {other} ({where})",
        field=name,
        remedy=ONE_SCALE if sounds else _way_out(name, one, other, source, channels),
    )


def _without_empty(one: Field, other: Field) -> Field | None:
    """The one of two fields whose shape is known, if the other is of empty lists of lists; else None."""
    for empty, known in ((one, other), (other, one)):
        if 0 in empty.shape[1:] and empty.shape[0] in (0, None) and 0 not in known.shape[1:]:
            return known
    return None


_CHANNELS = {None, 1, 2, 3, 4}


def _way_out(name: str, one: Field, other: Field, source: Source, channels: bool) -> str:
    if not channels:
        texts = one.is_string or other.is_string
        castable = one.dtype != other.dtype and one.shape[1:] == other.shape[1:] and not texts
        ways = f"Cast them to one type, `casts={{{name!r}: 'float64'}}`, say; or make" if castable else "Make"
        return f"{ways} them equal with `map=`."
    if one.shape[1:] == other.shape[1:]:
        mode = (
            f"`mode={{{name!r}: 'RGB'}}`" if isinstance(source, ImageSource) else "image.convert('RGB') of Pillow, say"
        )
        return (
            f"If these are pictures, say what channels they get: {mode}; if their first dimension varies from sample "
            f"to sample, `ragged=[{name!r}]`."
        )
    if not isinstance(source, ImageSource):
        return (
            "Make pictures equal in the dataset itself or with `map=`; or let it return their encoded bytes, and "
            f"pass `schema={{{name!r}: gdsload.Field('image')}}`, with the other fields beside it."
        )
    return source.ways_out


def _ragged(name: str, field: Field) -> Field:
    if field.ragged:
        return field
    if not field.shape:
        raise SchemaError("a single number cannot be ragged", field=name)
    return Field(field.dtype, (None, *field.shape[1:]))
