"""TFRecord files of `tf.train.Example`, read without TensorFlow; the checksums of all records are compared."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import IO, Any, Unpack

from gdsload.conversion.input_files import open_file, stamps
from gdsload.conversion.reasons import reading
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageSource
from gdsload.conversion.sources.streams import DAMAGED, exactly, unpacked
from gdsload.conversion.sources.tf_examples import KNOWN_TYPES, Feature, features_of, sample_of_example
from gdsload.errors import FormatError, OptionError
from gdsload.shards.format.dtypes import DTYPES

__all__ = ["TfRecordSource"]

_NAMES = re.compile(r"(\.(tfrecords?|tfrec)([-.].*)?|-\d{5,}-of-\d{5,})$", re.IGNORECASE)
_LOOKED_AT = 64
_MAX_RECORD_BYTES = 2**31
_MASK = 0xA282EAD8


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
        **options: `size`, `resize`, `mode` and `keep_encoded`, as all sources of images have them: see `ImageForm`.
            `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.
    """

    kind = "TFRecord files"
    threads = False
    _known: dict[str, Feature] | None = None

    def __init__(
        self,
        path: str,
        *,
        types: Mapping[str, str] | None = None,
        **options: Unpack[ImageFileOptions],
    ) -> None:
        super().__init__(path, **options)
        self.types = _types(types)

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        return {
            "kind": self.kind,
            "files": stamps(self._files()),
            "types": self.types,
            **self.form.to_json(),
        }

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: files."""
        self._features()
        return [Part(os.path.basename(file), (file,), nbytes=os.path.getsize(file)) for file in self._files()]

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        file = str(part.where[0])
        for number, content in enumerate(_records(file)):
            yield Item(f"record {number}", partial(self._sample, content, f"{file}, record {number}"))

    def _sample(self, content: bytes, where: str) -> dict[str, Any]:
        return sample_of_example(content, self._features(), self.form, where, others=self.fields is not None)

    def first_items(self) -> Iterator[Item]:
        """The first records, if they have images: to find the parts takes longer."""
        if any(feature.type == "image" for feature in self._features().values()):
            for file in self._files():
                yield from self.read(Part("the first records", (file,)))

    def _features(self) -> dict[str, Feature]:
        """The features, from the first records."""
        if self._known is None:
            files = self._files()
            first = list(islice((record for file in files for record in _records(file)), _LOOKED_AT))
            if not first:
                raise FormatError("there is not one record", file=self.path)
            try:
                self._known = features_of(first, self.types, self.fields, self.path)
            except FormatError as error:
                raise error.within(self.path) from None
        return self._known

    def _files(self) -> list[str]:
        if not os.path.isdir(self.path):
            return self.files.find(("",))
        found = [file for file in self.files.walk(self.path, ("",)) if _NAMES.search(os.path.basename(file))]
        if not found:
            raise FormatError("there is no file with .tfrecord or .tfrecords", file=self.path)
        return self.files.chosen(found, self.path)


def _types(given: Mapping[str, str] | None) -> dict[str, str]:
    known = (*KNOWN_TYPES, *(dtype.name for dtype in DTYPES.values() if not dtype.name.startswith(("float8", "bf"))))
    for name, value in (given or {}).items():
        if value not in known:
            raise OptionError(
                f"has {value!r:.200} for {name!r}", option="types", remedy=f"Supported are {', '.join(known)}."
            )
    return dict(given or {})


def _records(file: str) -> Iterator[bytes]:
    """The records, their checksums compared."""
    checksum, place = need("google_crc32c", file=file).value, 0
    with _opened(file) as stream:
        while header := stream.read(12):
            length = _length(header, place, checksum)
            cut = f"the record at byte {place} is cut short"
            content = exactly(stream, length, cut)
            if _masked(checksum(content)) != int.from_bytes(exactly(stream, 4, cut), "little"):
                raise ValueError(f"the record at byte {place} does not match its checksum")
            place += length + 16
            yield content


def _length(header: bytes, place: int, checksum: Any) -> int:
    if len(header) != 12:
        raise ValueError(f"the record at byte {place} is cut short")
    if _masked(checksum(header[:8])) != int.from_bytes(header[8:], "little"):
        raise ValueError(f"the length of the record at byte {place} does not match its checksum")
    length = int.from_bytes(header[:8], "little")
    if length > _MAX_RECORD_BYTES:
        raise ValueError(f"the record at byte {place} has {length} bytes; the most is {_MAX_RECORD_BYTES}")
    return length


def _masked(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + _MASK) & 0xFFFFFFFF


def _is_packed(file: str) -> bool:
    """Return whether gzip has packed a file; a record's length may equal gzip's mark, but a checksum follows it."""
    with open_file(file) as opened:
        header = opened.read(12)
    checksum = need("google_crc32c", file=file).value
    is_record = len(header) == 12 and _masked(checksum(header[:8])) == int.from_bytes(header[8:], "little")
    return header[:2] == b"\x1f\x8b" and not is_record


@contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    """The records' bytes, unpacked; whatever is wrong with them is a FormatError."""
    failed, remedy = "the TFRecord file cannot be read", "Copy it again, whole."
    with reading(failed, file, *DAMAGED, ValueError, remedy=remedy), open_file(file) as raw:
        yield unpacked(raw, packed=_is_packed(file))
