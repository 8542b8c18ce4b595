"""Tar files as WebDataset has them: a sample is a run of members with one name, a field is a member's extension."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import IO, Any, Unpack, cast

from gdsload.conversion.input_files import SourceFiles, open_file, stamps
from gdsload.conversion.reasons import in_words
from gdsload.conversion.row_source import sample_fields
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.npy import decode_npy
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageForm, ImageSource, put
from gdsload.conversion.sources.sounds import SOUNDS, sound_fields
from gdsload.errors import FormatError, OptionError

__all__ = ["TarSource"]

_SUFFIXES = (".tar", ".tar.gz", ".tgz")
_IMAGES = frozenset({"jpg", "jpeg", "png", "webp", "ppm"})
_NUMBERS = frozenset({"cls", "id", "index"})
_TEXTS = frozenset({"txt", "json"})

# Long names and the like are read whole before anyone sees how long they are.
_EXTENDED = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_MAX_EXTENDED_BYTES = 2**20
_MOST_EMPTY_READS = 8
_PIECE_BYTES = 2**22
_MAX_MEMBERS = 1024
_TAIL_BYTES = 2**20
_LOOKED_AT = 16
_BYTES_BESIDE = tarfile.BLOCKSIZE * 3 // 2
"""Of a member: its header, and what fills its last block, in the mean."""


class TarSource(FieldChoice, ImageSource):
    """WebDataset tar files.

    Members that follow each other and have one name up to the first dot of their base name are one sample. What comes
    after that dot, in lower case and with `_` for further dots, is the field's name, and says how it is decoded:
    ``npy`` as an array, ``cls``, ``id`` and ``index`` as a whole number, ``txt`` and ``json`` as text, ``jpg``,
    ``jpeg``, ``png``, ``webp`` and ``ppm`` as an image, uint8 ``[channels, height, width]`` and not turned, ``wav``,
    ``flac``, ``mp3``, ``ogg``, ``opus`` and ``aiff`` as the samples of a sound, with ``NAME.sampling_rate`` beside
    them, and anything else as bytes. Of ``left.seg.png`` the last part counts. Nothing is unpickled, nothing is put on
    disk, and members without an extension, or that are no regular files, are passed over.

    Args:
        path: a tar file (`.tar`, `.tar.gz`, `.tgz`), or a folder of them.
        with_key: add a text field ``key``, the name that the members share.
        max_member_bytes: the most bytes that a member may have, and all members of one sample together.
        **options: `size`, `resize`, `mode` and `keep_encoded`, as all sources of images have them: see `ImageForm`.
            `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.

    Raises:
        OptionError: if an option has no such value.
    """

    kind = "WebDataset tar files"
    threads = False

    def __init__(
        self,
        path: str,
        *,
        with_key: bool = True,
        max_member_bytes: int = 2**30,
        **options: Unpack[ImageFileOptions],
    ) -> None:
        if max_member_bytes < 1:
            raise OptionError(f"max_member_bytes is {max_member_bytes}, no number of bytes from 1")
        self.path = path
        self.files = SourceFiles.of(path, options)
        self.with_key = with_key
        self.look = ImageForm.of(options)
        self.max_member_bytes = max_member_bytes

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        return {
            "kind": self.kind,
            "files": stamps(self.files.find(_SUFFIXES)),
            "with_key": self.with_key,
            "max_member_bytes": self.max_member_bytes,
            **self.form.to_json(),
        }

    def metadata(self) -> dict[str, Any]:
        """What the dataset's metadata have of the source: the field that names samples."""
        return {"key": "key"} if self.with_key else {}

    def bytes_in_files(self) -> float | None:
        """See `ImageSource.bytes_in_files`. In packed files headers are next to nothing, and images what they were."""
        packed, sizes = not self.files.find(_SUFFIXES)[0].lower().endswith(".tar"), []
        for item in islice(self.first_items(), _LOOKED_AT):
            sample = cast("partial[Any]", item.make).args[0]
            sizes.append(sample.nbytes + (0 if packed else _BYTES_BESIDE * len(sample.members)))
        return sum(sizes) / len(sizes) if sizes else None

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: one for each file, for they can only be read from their beginning."""
        return [
            Part(os.path.basename(file), (file,), nbytes=os.path.getsize(file)) for file in self.files.find(_SUFFIXES)
        ]

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        file = str(part.where[0])
        sample = _Sample("")
        with _opened(file) as (tar, nbytes):
            for key, name, member in _members(tar, nbytes):
                if key != sample.key:
                    if sample.members:
                        yield self._item(sample, file)
                    sample = _Sample(key)
                self._take(tar, member, name, sample)
        if sample.members:
            yield self._item(sample, file)

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, sample: _Sample) -> None:
        unwanted = self.fields is not None and name not in self._wanted
        sample.nbytes += 0 if unwanted else member.size
        if name in sample.members:
            sample.trouble = f"two members are called {name!r}"
        elif len(sample.members) >= _MAX_MEMBERS:
            sample.trouble = f"it has more than {_MAX_MEMBERS} members"
        elif unwanted:
            sample.left_out.add(name)
            sample.members[name] = b""
        elif sample.nbytes > self.max_member_bytes:
            sample.members[name] = b""
            sample.trouble = f"it has more than {self.max_member_bytes} bytes, with {member.name!r:.200}"
        else:
            # In pieces: of a packed file nobody knows beforehand whether so many bytes are there.
            content = b"".join(iter(partial(cast("IO[bytes]", tar.extractfile(member)).read, _PIECE_BYTES), b""))
            if len(content) != member.size:
                raise tarfile.ReadError(f"{member.name!r:.200} has {member.size} bytes, but {len(content)} are there")
            sample.members[name] = content

    @property
    def _wanted(self) -> frozenset[str]:
        """The members that are wanted: beside an image that is kept there are fields of its header."""
        return frozenset(found for name in self.fields or () for found in (name, name.partition(".")[0]))

    def _item(self, sample: _Sample, file: str) -> Item:
        return Item(sample.key, partial(_decoded, sample, file, self.form, self.with_key, self.fields))


@dataclass(slots=True)
class _Sample:
    key: str
    members: dict[str, bytes] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    nbytes: int = 0
    trouble: str | None = None


class _Header(tarfile.TarInfo):
    """A member's header, which is looked at before tarfile acts on it."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: Any, errors: str) -> _Header:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENDED and not 0 <= header.size <= _MAX_EXTENDED_BYTES:
            raise tarfile.ReadError(f"a header of {header.size} bytes is no header")
        if header.type == tarfile.GNUTYPE_SPARSE:
            raise _sparse(header)
        return header


def _sparse(member: tarfile.TarInfo) -> tarfile.ReadError:
    """A few bytes of a sparse file would unpack to any number of zeros."""
    return tarfile.ReadError(f"{member.name!r:.200} is a sparse file")


class _Ending(io.RawIOBase):
    """A stream that does not end for ever: to skip what a header promises, tarfile reads on and on behind the end."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream
        self._empty = 0

    def read(self, size: int = -1) -> bytes:
        found = self._stream.read(size)
        self._empty = 0 if found else self._empty + 1
        if self._empty > _MOST_EMPTY_READS:
            raise tarfile.ReadError("it ends in the middle of a member")
        return found


@contextmanager
def _opened(file: str) -> Iterator[tuple[tarfile.TarFile, int]]:
    """A tar file, read from its beginning to its end, and the bytes that it has, or -1 if it is packed.

    Whatever is wrong with it is a FormatError. tarfile's own reader of compressed streams does not check their
    checksums, so it is not used.
    """
    try:
        with open_file(file) as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            nbytes = -1 if packed else os.fstat(raw.fileno()).st_size
            stream = cast("IO[bytes]", _Ending(cast("IO[bytes]", gzip.GzipFile(fileobj=raw)))) if packed else raw
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header, errors="strict") as tar:
                yield tar, nbytes
            left = len(stream.read(_TAIL_BYTES))  # to the checksum at the very end
            if not packed and not left and nbytes % tarfile.BLOCKSIZE:
                raise tarfile.ReadError("it ends in the middle of a block")
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, RecursionError, OverflowError) as error:
        if isinstance(error, FormatError | OptionError):
            raise
        raise FormatError(
            f"the tar file cannot be read: {in_words(error)}", file=file, remedy="Copy it again, whole."
        ) from None


def _members(tar: tarfile.TarFile, nbytes: int) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """Key, field and header of each member that is part of a sample."""
    while (member := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]  # it would remember them all
        if any(name.startswith("GNU.sparse.") for name in member.pax_headers):
            raise _sparse(member)
        has_content = member.isreg() or member.type not in tarfile.SUPPORTED_TYPES
        if has_content and (member.size < 0 or 0 <= nbytes < member.offset_data + member.size):
            raise tarfile.ReadError(
                f"the header of {member.name!r:.200} (byte {member.offset}) promises {member.size} bytes, but the file "
                f"has {nbytes} in all"
            )
        folder, slash, name = member.name.rpartition("/")
        stem, _, extension = name.partition(".")
        if member.isreg() and stem and extension:
            yield folder + slash + stem, extension.lower().replace(".", "_"), member


def _decoded(
    sample: _Sample, file: str, look: ImageForm, with_key: bool, wanted: Sequence[str] | None
) -> dict[str, Any]:
    where = f"{file}:{sample.key}"
    if sample.trouble is not None:
        raise FormatError(f"the sample cannot be taken: {sample.trouble}", file=where)
    found: dict[str, Any] = {}
    if with_key:
        if "key" in sample.members:
            raise FormatError("it has a member .key already", file=where, remedy="Pass with_key=False.")
        found["key"] = sample.key
    for name, content in sample.members.items():
        extension = name.rpartition("_")[2]
        if name in sample.left_out:
            continue
        try:
            put(found, _fields(name, extension, content, look, f"{where}.{name}"), where)
        except (ValueError, SyntaxError) as error:
            if isinstance(error, FormatError | OptionError):
                raise
            raise FormatError(f"it cannot be decoded: {in_words(error)}", file=f"{where}.{name}") from None
    if look.seen is None:  # else no image is in it
        missing = [name for name in wanted or () if name not in found]
        sample_fields(missing, [*found, *sorted(sample.left_out)], where)
    return found


def _fields(name: str, extension: str, content: bytes, look: ImageForm, where: str) -> dict[str, Any]:
    if extension in _IMAGES:
        return look.fields(name, content, where)
    if f".{extension}" in SOUNDS and not look.keep_encoded:
        return sound_fields(name, content, where)
    return {name: _decoder(extension)(content)}


def _decoder(extension: str) -> Callable[[bytes], Any]:
    if extension in _NUMBERS:
        return int
    if extension in _TEXTS:
        return partial(str, encoding="utf-8")
    return decode_npy if extension == "npy" else bytes
