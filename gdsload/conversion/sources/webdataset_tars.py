"""Tar files as WebDataset has them: a sample is a run of members with one name, a field is a member's extension."""

from __future__ import annotations

import os
import re
import shlex
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Unpack, cast

from gdsload.conversion.folders import is_passed_over, is_path_passed_over
from gdsload.conversion.input_files import stamps
from gdsload.conversion.reading_notes import note
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import sample_fields
from gdsload.conversion.source import FieldChoice, Item, Part
from gdsload.conversion.sources.npy import decode_npy
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageForm, ImageSource, put
from gdsload.conversion.sources.sounds import SOUNDS, sound_fields
from gdsload.conversion.sources.tar_archives import Member, TarReader, opened_tar
from gdsload.conversion.suffixes import PICTURES
from gdsload.errors import FormatError

__all__ = ["TarSource"]

_SUFFIXES = (".tar", ".tar.gz", ".tgz")
_NUMBERS = frozenset({"cls", "id", "index"})
_WHOLE = re.compile(rb"\s*[+-]?[0-9]{1,20}\s*")
_TEXTS = frozenset({"txt", "json"})
_NO_FILES = frozenset({b"V", b"D", b"A", b"E", b"I"})
"""Types of members that are no files: a label, a list of a folder, and notes of Solaris on the next member."""
_LEFT_OUT = "tar members that are hidden or have no ending are left out"
_MAYBE_CUT = "tar files without a mark at their end may be cut short"

MAX_SAMPLE_BYTES = 2**30
_MAX_MEMBERS = 1024
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

    All archives in a file are read. Members of one sample that are not side by side are an error; a sample with a link
    in it is a bad one. Members that are hidden or have no extension are left out, and noted.

    Args:
        path: a tar file (`.tar`, `.tar.gz`, `.tgz`), or a folder of them.
        with_key: add a text field ``key``, the name that the members share.
        **options: `size`, `resize`, `mode` and `keep_encoded`, as all sources of images have them: see `ImageForm`.
            `split` and `follow_links`, as all sources of files have them: see `SourceFiles`.
    """

    kind = "WebDataset tar files"
    threads = False

    def __init__(self, path: str, *, with_key: bool = True, **options: Unpack[ImageFileOptions]) -> None:
        super().__init__(path, **options)
        self.with_key = with_key

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        return {
            "kind": self.kind,
            "files": stamps(self.files.find(_SUFFIXES)),
            "with_key": self.with_key,
            **self.form.to_json(),
        }

    def metadata(self) -> dict[str, Any]:
        """The source's part of the dataset's metadata: the field that names samples."""
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
        sample: _Sample | None = None
        with opened_tar(file) as tar:
            for found, member, name in _grouped(tar, _Keys(file)):
                if sample is not None and found is not sample and sample.members:
                    yield self._item(sample, file)
                sample = found
                self._take(tar, member, name, sample)
            if not tar.has_end:
                note(_MAYBE_CUT, os.path.basename(file))
        if sample is not None and sample.members:
            yield self._item(sample, file)

    def _take(self, tar: TarReader, member: Member, name: str, sample: _Sample) -> None:
        if name in sample.members:
            sample.trouble = f"two members are called {name!r}"
        elif len(sample.members) >= _MAX_MEMBERS:
            sample.trouble = f"it has more than {_MAX_MEMBERS} members"
        elif self.fields is not None and name not in self._wanted:
            sample.left_out.add(name)
            sample.members[name] = b""
        else:
            sample.nbytes += member.size
            sample.members[name] = b""
            if (fault := tar.fault(member)) is not None:
                sample.trouble = f"{member.name!r:.200} is {fault}"
            elif sample.nbytes > MAX_SAMPLE_BYTES:
                sample.trouble = f"it has more than {MAX_SAMPLE_BYTES} bytes, with {member.name!r:.200}"
            else:
                sample.members[name] = tar.content(member)

    @property
    def _wanted(self) -> frozenset[str]:
        """The members that are wanted: beside an image that is kept there are fields of its header."""
        return frozenset(found for name in self.fields or () for found in (name, name.partition(".")[0]))

    def _item(self, sample: _Sample, file: str) -> Item:
        return Item(sample.key, partial(_decoded, sample, file, self.form, self.with_key, self.fields))


@dataclass(slots=True)
class _Sample:
    key: str
    archive: int
    first: str = ""
    members: dict[str, bytes] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    nbytes: int = 0
    trouble: str | None = None


class _Keys:
    """The keys of a file's samples so far, to tell when members of one are not side by side.

    Of several archives in a file each may have samples with the names of those in another one. If all
    members of such a sample are called as none of the earlier archives are, they belong to the sample there.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._archive = 0
        self._here: set[int] = set()  # hashes: a file may have millions of samples
        self._before: set[int] = set()
        self._names: dict[int, set[str]] = {}

    def begin(self, member: Member, key: str) -> _Sample:
        """A sample that begins with a member.

        Raises:
            FormatError: if there was one with its key before.
        """
        if member.archive != self._archive:
            self._archive = member.archive
            self._before |= self._here
            self._here = set()
        if hash(key) in self._here:
            raise self._apart(key, member.archive, member.name)
        self._here.add(hash(key))
        return _Sample(key, member.archive, member.name)

    def named(self, archive: int, name: str) -> None:
        """Remember the name of a field that an archive has."""
        self._names.setdefault(archive, set()).add(name)

    def check(self, sample: _Sample) -> None:
        """Refuse a sample that is the rest of one in an earlier archive, or of which the rest comes later.

        Raises:
            FormatError: if it is one.
        """
        if hash(sample.key) in self._before:
            before = (names for archive, names in self._names.items() if archive < sample.archive)
            if not any(sample.members.keys() & names for names in before):
                raise self._apart(sample.key, sample.archive, sample.first)

    def _apart(self, key: str, archive: int, name: str) -> FormatError:
        with opened_tar(self._file) as tar:
            again = sum(one.archive == archive and one.name == name for one in tar) > 1
        if again:
            return FormatError(
                f"member {name!r:.200} is in the tar file twice, with other samples between",
                file=self._file,
                remedy="Pack the files again, each with another name.",
            )
        quoted = shlex.quote(self._file)
        return FormatError(
            f"the members of sample {key!r:.200} are not side by side: {name!r:.200} comes after other samples",
            file=self._file,
            remedy=f"Sort them, which loses none: mkdir files && tar -xif {quoted} -C files && tar --sort=name "
            "--transform='s,^[.]/,,' -cf sorted.tar -C files .",
        )


def _grouped(tar: TarReader, keys: _Keys) -> Iterator[tuple[_Sample, Member, str]]:
    """Each member of a tar file that is of a sample, with that sample and the name of its field.

    The caller adds the member to the sample before the next one is asked for.

    Raises:
        FormatError: if members of one sample are not side by side.
    """
    sample: _Sample | None = None
    for member in tar:
        if member.isdir() or member.type in _NO_FILES:
            continue
        found = _key_and_field(member.name)
        if found is None:
            note(_LEFT_OUT, member.name)
            continue
        key, name = found
        if sample is None or key != sample.key or (member.archive != sample.archive and name in sample.members):
            if sample is not None:
                keys.check(sample)
            sample = keys.begin(member, key)
        keys.named(member.archive, name)
        yield sample, member, name
    if sample is not None:
        keys.check(sample)


_is_beside = lru_cache(1024)(is_path_passed_over)


def _key_and_field(name: str) -> tuple[str, str] | None:
    """The key and the field that a member's name says; None if it is of no sample."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    if not stem or not extension or is_passed_over(base) or _is_beside(folder):
        return None
    return folder + slash + stem, extension.lower().replace(".", "_")


def _decoded(
    sample: _Sample, file: str, look: ImageForm, with_key: bool, wanted: Sequence[str] | None
) -> dict[str, Any]:
    where = f"{file}:{sample.key}"
    if sample.trouble is not None:
        raise FormatError(f"the sample cannot be taken: {sample.trouble}", file=where)
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
    return {name: _decoder(extension)(content)}


def _whole_number(content: bytes) -> int:
    if not _WHOLE.fullmatch(content):
        raise ValueError(f"{content[:100]!r} is no whole number")
    return int(content)


def _decoder(extension: str) -> Callable[[bytes], Any]:
    if extension in _NUMBERS:
        return _whole_number
    if extension in _TEXTS:
        return partial(str, encoding="utf-8")
    return decode_npy if extension == "npy" else bytes
