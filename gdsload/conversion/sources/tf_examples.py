"""Messages of `tf.train.Example`, read by protobuf without TensorFlow; what is in them is not trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import check_columns, check_fields
from gdsload.conversion.sources.encoded_values import decoded_fields
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageForm, put
from gdsload.errors import FormatError, OptionError

__all__ = ["KNOWN_TYPES", "Feature", "features_of", "sample_of_example"]

KNOWN_TYPES = ("bytes", "text", "npy", "image", "list")
"""Values of `types` for a feature, beside the names of element types."""

_PICTURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
# Lists, message and file as TensorFlow's example.proto and feature.proto have them: numbers of fields, and their types.
_LISTS = {"bytes_list": 1, "float_list": 2, "int64_list": 3}
_DTYPES: dict[str, np.dtype[Any]] = {"float_list": np.dtype(np.float32), "int64_list": np.dtype(np.int64)}


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of the examples, and the form that it is given.

    Attributes:
        source: the list that it has: ``"bytes_list"``, ``"float_list"``, ``"int64_list"``.
        single: whether it is one value, and not a list.
        type: of bytes, what they are: one of `KNOWN_TYPES`, or the name of an element type.
    """

    source: str
    single: bool
    type: str


def features_of(
    examples: Iterable[bytes], types: Mapping[str, str], fields: Sequence[str] | None, file: str
) -> dict[str, Feature]:
    """The features that some serialized examples have, as far as fields are wanted; the user may give their types.

    Raises:
        FormatError: if one cannot be read, or has what no field can be.
        OptionError: if a name is unknown, or a type does not suit.
    """
    seen: dict[str, list[tuple[str, list[Any]]]] = {}
    for content in examples:
        for name, feature in _parsed(content).items():
            if (kind := feature.WhichOneof("kind")) is not None:
                # Two values tell that it is a list.
                seen.setdefault(name, []).append((kind, list(getattr(feature, kind).value[:2])))
    check_fields([*types], sorted(seen), file)
    wanted = check_columns(fields, sorted(seen), file)
    return {name: _feature(name, seen[name], types.get(name)) for name in wanted}


def _feature(name: str, seen: list[tuple[str, list[Any]]], type_: str | None) -> Feature:
    kinds = sorted({kind for kind, _ in seen})
    if len(kinds) > 1:
        raise FormatError(f"feature {name!r} is a {kinds[0]} in one example and a {kinds[1]} in another")
    (kind,) = kinds
    if kind != "bytes_list":
        if type_ not in (None, "list"):
            raise OptionError(f"has {type_!r} for feature {name!r}, which is a {kind}", option="types")
        return Feature(kind, type_ is None and all(len(values) == 1 for _, values in seen), "")
    if any(len(values) > 1 for _, values in seen):
        raise FormatError(
            f"feature {name!r} has several strings in one example, which no field can have",
            remedy="Choose other features: `fields=[...]`.",
        )
    if type_ == "list":
        raise OptionError(f"has 'list' for feature {name!r}, which is a bytes_list", option="types")
    contents = [values[0] for _, values in seen if values]
    return Feature(kind, True, type_ or ("image" if contents and all(map(_is_picture, contents)) else "bytes"))


def _is_picture(content: bytes) -> bool:
    return content.startswith(_PICTURES) or (content[:4] == b"RIFF" and content[8:12] == b"WEBP")


def sample_of_example(
    content: bytes, features: Mapping[str, Feature], look: ImageForm, where: str, *, others: bool = False
) -> dict[str, Any]:
    """The sample that a serialized example is; it may have `others` than these features, which are left out.

    Raises:
        FormatError: if it is none, or a feature is not as it must be.
    """
    found = _parsed(content, where)
    for name in found if not others else ():
        if name not in features and found[name].WhichOneof("kind"):
            raise FormatError(
                f"it has a feature {name!r}, which the first records do not have",
                file=where,
                remedy="Choose those that all have: `fields=[...]`.",
            )
    sample: dict[str, Any] = {}
    for name, feature in features.items():
        put(sample, _fields(found, name, feature, look, where), where)
    return sample


def _fields(found: Any, name: str, feature: Feature, look: ImageForm, where: str) -> dict[str, Any]:
    kind = found[name].WhichOneof("kind") if name in found else None
    if kind not in (None, feature.source):
        raise FormatError(f"feature {name!r} is a {kind}, but was a {feature.source} before", file=where)
    values: Any = getattr(found[name], kind).value if kind is not None else ()
    if feature.single and len(values) != 1:
        remedy = f'Pass `types={{"{name}": "list"}}`.' if feature.source != "bytes_list" else None
        raise FormatError(f"feature {name!r} has {len(values)} values, not one", file=where, remedy=remedy)
    if feature.source != "bytes_list":
        array = np.array(values, _DTYPES[feature.source])
        return {name: array[0] if feature.single else array}
    if feature.type not in KNOWN_TYPES:
        return {name: _raw(values[0], np.dtype(feature.type).newbyteorder("<"), name, where)}
    return decoded_fields(name, values[0], feature.type, look, f"{where}: {name}")


def _raw(content: bytes, dtype: np.dtype[Any], name: str, where: str) -> Any:
    if len(content) % dtype.itemsize:
        raise FormatError(f"feature {name!r} has {len(content)} bytes, which are not {dtype.name}", file=where)
    return np.frombuffer(content, dtype).astype(dtype.newbyteorder("="))


def _parsed(content: bytes, where: str | None = None) -> Any:
    message = _message()()
    with reading("a record is no tf.train.Example", where):
        message.ParseFromString(content)
    if message.feature_lists:
        raise FormatError("a record is a tf.train.SequenceExample, which is not read", file=where)
    if not message.features.feature:
        raise FormatError("a record is no tf.train.Example: it has no features", file=where)
    return message.features.feature


@cache
def _message() -> Callable[[], Any]:
    """The class of the messages, from descriptions that are made here: no generated code depends on a version."""
    package = "gdsload.tf"
    pb2 = need("google.protobuf.descriptor_pb2")
    pool = need("google.protobuf.descriptor_pool").DescriptorPool()
    file = pb2.FileDescriptorProto(name="gdsload/tf_example.proto", package=package, syntax="proto3")
    field = pb2.FieldDescriptorProto
    types = {"bytes_list": field.TYPE_BYTES, "float_list": field.TYPE_FLOAT, "int64_list": field.TYPE_INT64}
    for name in _LISTS:
        file.message_type.add(name=name).field.add(name="value", number=1, type=types[name], label=3)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for name, number in _LISTS.items():
        of = f".{package}.{name}"
        feature.field.add(name=name, number=number, type=field.TYPE_MESSAGE, type_name=of, label=1, oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add = partial(entry.field.add, label=1)
    add(name="key", number=1, type=field.TYPE_STRING)
    add(name="value", number=2, type=field.TYPE_MESSAGE, type_name=f".{package}.Feature")
    of = f".{package}.Features.FeatureEntry"
    features.field.add(name="feature", number=1, type=field.TYPE_MESSAGE, type_name=of, label=3)
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, type=field.TYPE_MESSAGE, type_name=f".{package}.Features", label=1)
    example.field.add(name="feature_lists", number=2, type=field.TYPE_BYTES, label=1)  # of SequenceExample
    pool.Add(file)
    found: Callable[[], Any] = need("google.protobuf.message_factory").GetMessageClass(
        pool.FindMessageTypeByName(f"{package}.Example")
    )
    return found
