"""Tar files as WebDataset has them: a sample is a run of members with one name, a field is a member's extension.

They are read from the beginning to the end. A file has one archive.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby, islice
from typing import IO, Any, Unpack, cast

from gdsload.conversion.folders import PICTURES, is_passed_over, is_path_passed_over
from gdsload.conversion.input_files import open_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import sample_fields
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.arrays import decode_npy
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageForm, ImageSource, put
from gdsload.conversion.sources.sounds import SOUNDS, sound_fields
from gdsload.conversion.sources.streams import DAMAGED, exactly, unpacked_by_magic
from gdsload.errors import FormatError

_PIECE_BYTES = 2**22
_REPACK = "Unpack it, and pack the files again in the order of their names: `tar --sort=name`"
_KINDS = {tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device", tarfile.FIFOTYPE: "a named pipe"}


class TarReader:
    """The members of a tar file, in order. The content of one is read before the next one is asked for, or not at all.

    Args:
        stream: the file, unpacked.
        nbytes: how long it is; -1 if it is packed, so that it is not known.
    """

    def __init__(self, stream: IO[bytes], nbytes: int) -> None:
        self._stream = stream
        self._nbytes = nbytes

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        """All members.

        Raises:
            TarError: if it is damaged.
            FormatError: if there is more after the archive.
        """
        # Its constructor would read the first header, by rules that end at a damaged one as at the end.
        tar = tarfile.TarFile(fileobj=io.BytesIO(bytes(2 * tarfile.BLOCKSIZE)), errors="strict")
        tar.fileobj, tar.offset = self._stream, 0
        while True:
            self._go_to(tar.offset)
            try:
                header = tarfile.TarInfo.fromtarfile(tar)
            except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
                if self._skip_zeros():
                    raise FormatError(
                        f"after the end of an archive there is something else, at byte {self._stream.tell()}",
                        remedy="Copy the file again, whole; or take apart the archives that `cat` has put together.",
                    ) from None
                return
            except tarfile.EmptyHeaderError:  # type: ignore[attr-defined]
                if tar.offset == 0:
                    raise tarfile.ReadError("it is empty") from None
                raise FormatError(
                    "the tar file has no mark at its end, so it may be cut short",
                    remedy="Copy it again, whole. If it is whole, put the mark there, 1024 bytes of zeros.",
                ) from None
            except tarfile.HeaderError as error:
                raise tarfile.ReadError(f"it is damaged at byte {tar.offset}: {error}") from None
            if header.size < 0:
                raise tarfile.ReadError(f"it is damaged at byte {header.offset}: {header.size} bytes are no size")
            if header.issparse() or any(name.startswith("GNU.sparse.") for name in header.pax_headers):
                raise FormatError(
                    f"the tar file cannot be read: {header.name!r:.200} is a sparse file", remedy=f"{_REPACK}."
                )
            yield header

    def _go_to(self, offset: int) -> None:
        if 0 <= self._nbytes < offset:
            raise tarfile.ReadError("it ends in the middle of a block")
        if self._stream.tell() != offset and self._stream.seek(offset) != offset:
            raise tarfile.ReadError("it ends in the middle of a member")

    def _skip_zeros(self) -> bool:
        """Go to the first byte that is not zero, and whether there is one: what fills an archive up may be long."""
        while piece := cast("io.BufferedReader", self._stream).peek(_PIECE_BYTES):
            rest = piece.lstrip(b"\0")
            self._stream.read(len(piece) - len(rest))
            if rest:
                return True
        return False

    def fault(self, member: tarfile.TarInfo) -> FormatError | None:
        """The error for a member without content, such as a device. Links are not followed."""
        if member.isreg():
            return None
        kind, remedy = _KINDS.get(member.type, f"of type {member.type!r}, which is not known"), None
        if member.islnk() or member.issym():
            kind = f"a link to {member.linkname!r:.100}, which is not followed"
            remedy = f"{_REPACK}, with `--dereference --hard-dereference`, which makes files of links."
        return FormatError(f"the sample cannot be taken: {member.name!r:.200} is {kind}", remedy=remedy)

    def content(self, member: tarfile.TarInfo) -> bytes:
        """The content of the member that was given last."""
        return exactly(self._stream, member.size, f"it ends within {member.name!r:.200}, of {member.size} bytes")


@contextmanager
def opened_tar(file: str) -> Iterator[TarReader]:
    """Open a tar file, packed by gzip or not.

    Raises:
        FormatError: whatever is wrong with it.
    """
    errors = tarfile.TarError, *DAMAGED, ValueError, RecursionError, OverflowError
    try:
        with (
            reading("the tar file cannot be read", file, *errors, remedy="Copy it again, whole."),
            open_file(file) as raw,
        ):
            yield TarReader(*unpacked_by_magic(raw))
    except FormatError as error:
        error.within(file)
        raise


_NUMBERS = frozenset({"cls", "id", "index"})
_WHOLE = re.compile(rb"\s*[+-]?[0-9]{1,20}\s*")
_TEXTS = frozenset({"txt", "json"})
_NO_FILES = frozenset({b"V", b"D", b"A", b"E", b"I"})
"""Types of members that are no files: a label, a list of a folder, and notes of Solaris on the next member."""

_LOOKED_AT = 16
_BYTES_BESIDE = tarfile.BLOCKSIZE * 3 // 2
"""Of a member: its header, and what fills its last block, in the mean."""


class TarSource(FieldChoice, ImageSource):
    """WebDataset tar files.

    Members that follow each other and have one name up to the first dot of their base name are one sample. What comes
    after that dot, in lower case and with `_` for further dots, is the field's name, and says how it is decoded:
    ``npy`` as an array, ``cls``, ``id`` and ``index`` as a whole number, ``txt`` and ``json`` as text, the endings of
    image files as an image, uint8 ``[channels, height, width]``, turned as its EXIF data say, ``wav``, ``flac``,
    ``mp3``, ``ogg``, ``opus`` and ``aiff`` as the samples of a sound, with ``NAME.sampling_rate`` beside them, and
    anything else as bytes. Of ``left.seg.png`` the last part counts. Nothing is unpickled, and nothing is put on disk.

    A file has one archive: what comes after it is an error, and so are members of one sample that are not side by side.
    A sample with a link in it is a bad one. Members that are hidden or have no extension are left out.

    Args:
        path: a tar file (`.tar`, `.tar.gz`, `.tgz`), or a folder of them.
        with_key: add a text field ``key``, the name that the members share.
    """

    kind = "WebDataset tar files"
    threads = False
    suffixes = (".tar", ".tar.gz", ".tgz")
    decisive = ("with_key",)

    def __init__(self, path: str, *, with_key: bool = True, **options: Unpack[ImageFileOptions]) -> None:
        super().__init__(path, **options)
        self.with_key = with_key

    def metadata(self) -> dict[str, Any]:
        return {"key": "key"} if self.with_key else {}

    def bytes_in_files(self) -> float | None:
        """See `ImageSource.bytes_in_files`. In packed files headers are next to nothing, and images what they were."""
        packed, sizes = not self.all_files()[0].lower().endswith(".tar"), []
        for item in islice(self.first_items(), _LOOKED_AT):
            sample = cast("partial[Any]", item.make).args[0]
            beside = 0 if packed else _BYTES_BESIDE * len(sample.members)
            sizes.append(sum(map(len, sample.members.values())) + beside)
        return sum(sizes) / len(sizes) if sizes else None

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: one for each file, for they can only be read from their beginning."""
        return [Part(os.path.basename(file), (file,), nbytes=os.path.getsize(file)) for file in self.all_files()]

    def read(self, part: Part) -> Iterator[Item]:
        file = str(part.where[0])
        seen: set[int] = set()  # hashes of keys: a file may have millions of samples
        with opened_tar(file) as tar:
            named = ((found, member) for member in tar if (found := _key_and_field(member)) is not None)
            for key, members in groupby(named, lambda one: one[0][0]):
                sample = _Sample(key)
                for (_, name), member in members:
                    if not sample.members and hash(key) in seen:
                        raise _apart(key, member.name, file)
                    self._take(tar, member, name, sample)
                seen.add(hash(key))
                yield Item(key, partial(_decoded, sample, file, self.form, self.with_key, self.fields))

    def _take(self, tar: TarReader, member: tarfile.TarInfo, name: str, sample: _Sample) -> None:
        twice = name in sample.members
        sample.members.setdefault(name, b"")
        if twice:
            sample.trouble = FormatError(f"the sample cannot be taken: two members are called {name!r}")
        elif self.fields is not None and name not in self._wanted:
            sample.left_out.add(name)
        elif (fault := tar.fault(member)) is not None:
            sample.trouble = fault
        else:
            sample.members[name] = tar.content(member)

    @property
    def _wanted(self) -> frozenset[str]:
        """The members that are wanted: beside an image that is kept there are fields of its header."""
        return frozenset(found for name in self.fields or () for found in (name, name.partition(".")[0]))


@dataclass(slots=True)
class _Sample:
    key: str
    members: dict[str, bytes] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    trouble: FormatError | None = None


def _apart(key: str, name: str, file: str) -> FormatError:
    return FormatError(
        f"the members of sample {key!r:.200} are not side by side: {name!r:.200} comes after other samples",
        file=file,
        remedy=f"{_REPACK}.",
    )


_is_beside = lru_cache(1024)(is_path_passed_over)


def _key_and_field(member: tarfile.TarInfo) -> tuple[str, str] | None:
    """The key and the field that a member's name says; None if it is of no sample."""
    if member.isdir() or member.type in _NO_FILES:
        return None
    folder, slash, base = member.name.rpartition("/")
    stem, _, extension = base.partition(".")
    if not stem or not extension or is_passed_over(base) or _is_beside(folder):
        return None
    return folder + slash + stem, extension.lower().replace(".", "_")


def _decoded(
    sample: _Sample, file: str, look: ImageForm, with_key: bool, wanted: Sequence[str] | None
) -> dict[str, Any]:
    where = f"{file}:{sample.key}"
    if sample.trouble is not None:
        raise sample.trouble.within(where)
    found: dict[str, Any] = {}
    if with_key:
        if "key" in sample.members:
            raise FormatError("it has a member .key already", file=where, remedy="Pass `with_key=False`.")
        found["key"] = sample.key
    for name, content in sample.members.items():
        extension = name.rpartition("_")[2]
        if name in sample.left_out:
            continue
        with reading("it cannot be decoded", f"{where}.{name}", ValueError, SyntaxError):
            put(found, _fields(name, extension, content, look, f"{where}.{name}"), where)
    if look.seen is None:  # else no image is in it
        missing = [name for name in wanted or () if name not in found]
        sample_fields(missing, [*found, *sorted(sample.left_out)], where)
    return found


def _fields(name: str, extension: str, content: bytes, look: ImageForm, where: str) -> dict[str, Any]:
    if f".{extension}" in PICTURES:
        return look.fields(name, content, where)
    if f".{extension}" in SOUNDS and not look.keep_encoded:
        return sound_fields(name, content, where)
    if extension in _NUMBERS:
        return {name: _whole_number(content)}
    if extension in _TEXTS:
        return {name: content.decode()}
    return {name: decode_npy(content) if extension == "npy" else content}


def _whole_number(content: bytes) -> int:
    if not _WHOLE.fullmatch(content):
        raise ValueError(f"{content[:100]!r} is no whole number")
    return int(content)
