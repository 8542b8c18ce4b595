"""TFRecord files of `tf.train.Example`, read without TensorFlow; the checksums of all records are compared."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, islice
from typing import Any, Unpack

import numpy as np

from gdsload.conversion.input_files import open_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import check_columns, check_fields
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.binary_samples import decoded_fields
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageForm, ImageSource, put
from gdsload.conversion.sources.streams import DAMAGED, exactly, unpacked
from gdsload.errors import FormatError, OptionError
from gdsload.shards.format.dtypes import DTYPES

_NAMES = re.compile(r"(\.(tfrecords?|tfrec)([-.].*)?|-\d{5,}-of-\d{5,})$", re.IGNORECASE)
_LOOKED_AT = 64
_MASK = 0xA282EAD8
KNOWN_TYPES = ("bytes", "text", "npy", "image", "list")
"""Values of `types` for a feature, beside the names of element types."""

_PICTURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
_EXAMPLE = """
name: "gdsload/tf_example.proto" package: "gdsload.tf" syntax: "proto3"
message_type { name: "Bytes" field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "Floats" field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Ints" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".gdsload.tf.Bytes" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".gdsload.tf.Floats" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".gdsload.tf.Ints" oneof_index: 0 }
}
message_type {
  name: "Features"
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".gdsload.tf.Feature" label: LABEL_OPTIONAL }
  }
  field {
    name: "feature" number: 1 type: TYPE_MESSAGE type_name: ".gdsload.tf.Features.FeatureEntry" label: LABEL_REPEATED
  }
}
message_type {
  name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".gdsload.tf.Features" }
  field { name: "feature_lists" number: 2 type: TYPE_BYTES }
}
"""
"""TensorFlow's example.proto and feature.proto; only a SequenceExample has `feature_lists`."""

_DTYPES: dict[str, np.dtype[Any]] = {"float_list": np.dtype(np.float32), "int64_list": np.dtype(np.int64)}


class TfRecordSource(FieldChoice, ImageSource):
    """The records of TFRecord files, each a `tf.train.Example`. A SequenceExample is refused.

    The first examples tell what each feature is: of int64 (int64) and float (float32) lists a single number, if all of
    those have one value, else an array, ragged where its length differs; of bytes, which must be single, an image,
    uint8 ``[channels, height, width]``, turned as its EXIF data say, if all of those begin as JPEG, PNG or WebP do,
    else bytes. An example without a list's feature has an empty list. Both checksums of each record are compared.

    Args:
        path: a file (`.tfrecord`, `.tfrecords`, `.tfrec`, `NAME-00000-of-00010`, also packed by gzip), or a folder. A
            file is read by one worker.
        types: what features are, by name: ``"bytes"``, ``"text"`` (UTF-8), ``"npy"``, ``"image"``; an element type
            (``"uint8"``) for bytes that are an array of such; ``"list"`` for numbers that are lists although the first
            ones have one value each.
    """

    kind = "TFRecord files"
    threads = False
    decisive = ("types",)
    _known: dict[str, Feature] | None = None

    def __init__(
        self, path: str, *, types: Mapping[str, str] | None = None, **options: Unpack[ImageFileOptions]
    ) -> None:
        super().__init__(path, **options)
        self.types = dict(types or {})
        names = (dtype.name for dtype in DTYPES.values() if not dtype.name.startswith(("float8", "bf")))
        known = (*KNOWN_TYPES, *names)
        for name, value in self.types.items():
            if value not in known:
                remedy = f"Supported are {', '.join(known)}."
                raise OptionError(f"has {value!r:.200} for {name!r}", option="types", remedy=remedy)

    def parts(self, target_bytes: int) -> list[Part]:
        self._features()
        return [Part(os.path.basename(file), (file,), nbytes=os.path.getsize(file)) for file in self.all_files()]

    def read(self, part: Part) -> Iterator[Item]:
        file = str(part.where[0])
        for number, content in enumerate(_records(file)):
            yield Item(f"record {number}", partial(self._sample, content, f"{file}, record {number}"))

    def _sample(self, content: bytes, where: str) -> dict[str, Any]:
        found, features = _parsed(content, where), self._features()
        for name in found if self.fields is None else ():
            if name not in features and found[name].WhichOneof("kind"):
                raise FormatError(
                    f"it has a feature {name!r}, which the first records do not have",
                    file=where,
                    remedy="Choose those that all have: `fields=[...]`.",
                )
        sample: dict[str, Any] = {}
        for name, feature in features.items():
            put(sample, _fields(found, name, feature, self.form, where), where)
        return sample

    def first_items(self) -> Iterator[Item]:
        """The first records, if they have images: to find the parts takes longer."""
        if any(feature.type == "image" for feature in self._features().values()):
            for file in self.all_files():
                yield from self.read(Part("the first records", (file,)))

    def _features(self) -> dict[str, Feature]:
        if self._known is None:
            files = self.all_files()
            first = list(islice((record for file in files for record in _records(file)), _LOOKED_AT))
            if not first:
                raise FormatError("there is not one record", file=self.path)
            seen: dict[str, list[tuple[str, list[Any]]]] = {}
            for name, feature in chain.from_iterable(_parsed(content, self.path).items() for content in first):
                if (kind := feature.WhichOneof("kind")) is not None:
                    # Two values tell that it is a list.
                    seen.setdefault(name, []).append((kind, list(getattr(feature, kind).value[:2])))
            check_fields([*self.types], sorted(seen), self.path)
            wanted = check_columns(self.fields, sorted(seen), self.path)
            self._known = {name: _feature(name, seen[name], self.types.get(name), self.path) for name in wanted}
        return self._known

    def all_files(self) -> list[str]:
        """The files: some have no ending."""
        if not os.path.isdir(self.path):
            return self.files.find(("",))
        found = [file for file in self.files.walk(self.path, ("",)) if _NAMES.search(os.path.basename(file))]
        if not found:
            raise FormatError("there is no file with .tfrecord or .tfrecords", file=self.path)
        return self.files.chosen(found, self.path)


def _records(file: str) -> Iterator[bytes]:
    """The records, their checksums compared; whatever is wrong with the file is a FormatError."""
    checksum, place = need("google_crc32c", file=file).value, 0
    failed, remedy = "the TFRecord file cannot be read", "Copy it again, whole."
    with reading(failed, file, *DAMAGED, ValueError, remedy=remedy), open_file(file) as raw:
        stream = unpacked(raw, packed=_is_packed(file))
        while header := stream.read(12):
            record = f"the record at byte {place}"
            if len(header) != 12:
                raise ValueError(f"{record} is cut short")
            if _masked(checksum(header[:8])) != int.from_bytes(header[8:], "little"):
                raise ValueError(f"the length of {record} does not match its checksum")
            length = int.from_bytes(header[:8], "little")
            content = exactly(stream, length, f"{record} is cut short")
            if _masked(checksum(content)) != int.from_bytes(exactly(stream, 4, f"{record} is cut short"), "little"):
                raise ValueError(f"{record} does not match its checksum")
            place += length + 16
            yield content


def _masked(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + _MASK) & 0xFFFFFFFF


def _is_packed(file: str) -> bool:
    """Return whether gzip has packed a file; a record's length may equal gzip's mark, but a checksum follows it."""
    with open_file(file) as opened:
        header = opened.read(12)
    checksum = need("google_crc32c", file=file).value
    is_record = len(header) == 12 and _masked(checksum(header[:8])) == int.from_bytes(header[8:], "little")
    return header[:2] == b"\x1f\x8b" and not is_record


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


def _feature(name: str, seen: list[tuple[str, list[Any]]], type_: str | None, file: str) -> Feature:
    kinds = sorted({kind for kind, _ in seen})
    if len(kinds) > 1:
        raise FormatError(f"feature {name!r} is a {kinds[0]} in one example and a {kinds[1]} in another", file=file)
    (kind,) = kinds
    if kind != "bytes_list":
        if type_ not in (None, "list"):
            raise OptionError(f"has {type_!r} for feature {name!r}, which is a {kind}", option="types")
        return Feature(kind, type_ is None and all(len(values) == 1 for _, values in seen), "")
    if any(len(values) > 1 for _, values in seen):
        raise FormatError(
            f"feature {name!r} has several strings in one example, which no field can have",
            file=file,
            remedy="Choose other features: `fields=[...]`.",
        )
    if type_ == "list":
        raise OptionError(f"has 'list' for feature {name!r}, which is a bytes_list", option="types")
    contents = [values[0] for _, values in seen if values]
    return Feature(kind, True, type_ or ("image" if contents and all(map(_is_picture, contents)) else "bytes"))


def _is_picture(content: bytes) -> bool:
    return content.startswith(_PICTURES) or (content[:4] == b"RIFF" and content[8:12] == b"WEBP")


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
        dtype = np.dtype(feature.type)
        with reading(f"feature {name!r} is not of {feature.type}", where, ValueError):
            return {name: np.frombuffer(values[0], dtype.newbyteorder("<")).astype(dtype)}
    return decoded_fields(name, values[0], feature.type, look, f"{where}: {name}")


def _parsed(content: bytes, where: str) -> Any:
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
    """The class of the messages, from a description that is read here: no generated code depends on a version."""
    file = need("google.protobuf.descriptor_pb2").FileDescriptorProto()
    need("google.protobuf.text_format").Parse(_EXAMPLE, file)
    pool = need("google.protobuf.descriptor_pool").DescriptorPool()
    pool.Add(file)
    example = pool.FindMessageTypeByName("gdsload.tf.Example")
    found: Callable[[], Any] = need("google.protobuf.message_factory").GetMessageClass(example)
    return found
