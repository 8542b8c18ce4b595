"""Tar files, read from the beginning to the end: all archives in a file, and links as the members that they lead to."""

from __future__ import annotations

import io
import posixpath
import shlex
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, cast

from gdsload.conversion.input_files import open_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.sources.streams import DAMAGED, read_pieces, unpacked_by_magic
from gdsload.errors import FormatError

__all__ = ["BadMemberError", "Member", "Place", "TarReader", "opened_tar"]

# tarfile reads long names and the like whole, whatever their length.
_EXTENDED = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_FURTHER_VOLUME = b"M"
_MAX_EXTENDED_BYTES = 2**20
_PIECE_BYTES = 2**22
_MAX_LINKED_BYTES = 2**28
_MAX_LINKS = 40
_TWICE = -1
_KINDS = {tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device", tarfile.FIFOTYPE: "a named pipe"}


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a tar file, which may have several archives, counted from 0."""

    archive: int
    header: tarfile.TarInfo

    @property
    def is_link(self) -> bool:
        """True if it has no content, but leads to another member."""
        return self.header.islnk() or self.header.issym()


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a member's content; of a packed file, which is not read twice, with the content itself."""

    offset: int
    nbytes: int
    content: bytes | None = None


class BadMemberError(Exception):
    """A member that has no content; its text says what it is: "a device", "a link to ..."."""


class _Header(tarfile.TarInfo):
    """A member's header, which is looked at before tarfile acts on it."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        """Act on a header; `frombuf` is not asked for each one by all versions of tarfile."""
        if self.type in _EXTENDED and not 0 <= self.size <= _MAX_EXTENDED_BYTES:
            raise tarfile.ReadError(f"a header of {self.size} bytes is no header")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _sparse(self)
        if self.type == _FURTHER_VOLUME:
            raise FormatError(
                f"the tar file continues {self.name!r:.200} of another volume",
                remedy="Unpack all volumes (tar -xM), and pack the files again.",
            )
        found: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        return found


def _sparse(member: tarfile.TarInfo) -> FormatError:
    """A few bytes of a sparse file would unpack to any number of zeros."""
    return FormatError(
        f"the tar file cannot be read: {member.name!r:.200} is a sparse file",
        remedy="Unpack it, and pack the files again as whole files.",
    )


class TarReader:
    """The members of a tar file, in order. The content of one is read before the next one is asked for, or not at all.

    Args:
        stream: the file, unpacked.
        nbytes: how long it is; -1 if it is packed, so that it is not known.
        file: its name.

    Attributes:
        has_end: once all are read, whether a mark came after the last one: otherwise the file may be cut short.
    """

    def __init__(self, stream: IO[bytes], nbytes: int, file: str) -> None:
        self._stream = stream
        self._nbytes = nbytes
        self._file = file
        self.has_end = True
        self._links: dict[tuple[int, str], str] | None = None
        self._places: dict[tuple[int, str], Place | None] = {}

    def __iter__(self) -> Iterator[Member]:
        """All members of all archives.

        Raises:
            TarError: if it is damaged, or what comes after an archive is none.
        """
        # Its constructor would read the first header, by rules that end at a damaged one as at the end.
        tar = tarfile.TarFile(fileobj=io.BytesIO(bytes(2 * tarfile.BLOCKSIZE)), errors="strict")
        tar.fileobj, tar.offset = self._stream, 0
        archive, empty = 0, True
        while True:
            self._go_to(tar.offset)
            try:
                header = _Header.fromtarfile(tar)
            except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
                if not self._skip_zeros():
                    return
                archive, empty, tar.pax_headers, tar.offset = archive + (not empty), True, {}, self._stream.tell()
                continue
            except tarfile.EmptyHeaderError:  # type: ignore[attr-defined]
                if tar.offset == 0:
                    raise tarfile.ReadError("it is empty") from None
                self.has_end = empty
                return
            except tarfile.HeaderError as error:
                if archive and empty:
                    raise self._more(tar.offset) from None
                raise tarfile.ReadError(f"it is damaged at byte {tar.offset}: {error}") from None
            empty = False
            self._check(header)
            yield Member(archive, header)

    def _more(self, offset: int) -> FormatError:
        file, end = shlex.quote(self._file), f"head -c {offset}"
        cut = f"{end} {file}" if self._nbytes >= 0 else f"gzip -cd {file} | {end}"
        return FormatError(
            f"after the end of an archive there is something else, at byte {offset}",
            remedy=f"Copy the file again, whole; or, if it is no part of the dataset, cut it off: {cut} > cut.tar",
        )

    def _check(self, header: tarfile.TarInfo) -> None:
        if any(name.startswith("GNU.sparse.") for name in header.pax_headers):
            raise _sparse(header)
        has_content = header.isreg() or header.type not in tarfile.SUPPORTED_TYPES
        if has_content and (header.size < 0 or 0 <= self._nbytes < header.offset_data + header.size):
            raise tarfile.ReadError(
                f"the header of {header.name!r:.200} (byte {header.offset}) promises {header.size} bytes, but the file "
                f"has {self._nbytes} in all"
            )

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

    def place(self, member: Member) -> Place | None:
        """The place of a member's content, or of the content that a link leads to in the end; None for a folder.

        Raises:
            BadMemberError: if it has none.
        """
        header = member.header
        if header.isreg():
            return Place(header.offset_data, header.size)
        if not member.is_link:
            raise BadMemberError(_KINDS.get(header.type, f"of type {header.type!r}, which is not known"))
        if self._links is None:  # most files have none
            self._links = self._find_links()
            self._places = self._find_places()
        name = _followed(self._links, member.archive, _normal(header.name))
        if (member.archive, name) not in self._places:
            raise BadMemberError(f"a link to {name!r:.200}, which is not in the archive")
        place = self._places[member.archive, name]
        if place is not None and place.offset == _TWICE:
            raise BadMemberError(f"a link to {name!r:.200}, which is in the archive twice")
        return place

    def content(self, place: Place) -> bytes:
        """The content at a place: of the member that was given last, or of one that a link leads to."""
        if place.content is not None:
            return place.content
        if place.offset == self._stream.tell():
            return _read(self._stream, place.nbytes)
        with open_file(self._file) as again:
            again.seek(place.offset)
            return _read(again, place.nbytes)

    def _find_links(self) -> dict[tuple[int, str], str]:
        """The name that each link of the file leads to."""
        with opened_tar(self._file) as again:
            return {(one.archive, _normal(one.header.name)): _target(one.header) for one in again if one.is_link}

    def _find_places(self) -> dict[tuple[int, str], Place | None]:
        """The places of the members that links lead to; None for folders."""
        links, wanted = self._links or {}, set()
        for archive, name in links:
            try:
                wanted.add((archive, _followed(links, archive, name)))
            except BadMemberError:
                continue
        found: dict[tuple[int, str], Place | None] = {}
        kept = 0
        with opened_tar(self._file) as again:
            for one in again:
                name, header = _normal(one.header.name), one.header
                if header.isreg() and (key := (one.archive, name)) in wanted:
                    kept += header.size if self._nbytes < 0 else 0
                    if kept > _MAX_LINKED_BYTES:
                        raise FormatError(
                            f"links of the packed tar file lead to more than {_MAX_LINKED_BYTES} bytes",
                            remedy="Unpack it first (gunzip): then it is read with its links.",
                        )
                    place = Place(header.offset_data, header.size)
                    content = again.content(place) if self._nbytes < 0 else None
                    found[key] = Place(_TWICE if key in found else place.offset, place.nbytes, content)
                folder = name if header.isdir() else posixpath.dirname(name)
                while folder:
                    if (one.archive, folder) in wanted:
                        found.setdefault((one.archive, folder), None)
                    folder = posixpath.dirname(folder)
        return found


def _read(stream: IO[bytes], nbytes: int) -> bytes:
    found = read_pieces(stream, nbytes)
    if len(found) < nbytes:
        raise tarfile.ReadError(f"a member has {nbytes} bytes, but {len(found)} are there")
    return found


def _normal(name: str) -> str:
    """The name of a member by which links find it."""
    return posixpath.normpath(name).lstrip("/")


def _target(link: tarfile.TarInfo) -> str:
    """The name that a link leads to: of a hard link from the root of the archive on, of a symbolic one from itself."""
    if link.islnk():
        return _normal(link.linkname)
    return posixpath.normpath(posixpath.join(posixpath.dirname(_normal(link.name)), link.linkname))


def _followed(links: dict[tuple[int, str], str], archive: int, name: str) -> str:
    """The name that is left once all links are followed, those of its folders as well."""
    for _ in range(_MAX_LINKS):
        pieces = name.split("/")
        for end in range(len(pieces), 0, -1):
            if (key := (archive, "/".join(pieces[:end]))) in links:
                if links[key].split("/", 1)[0] in ("", ".."):
                    raise BadMemberError(f"a link to {links[key]!r:.200}, which is out of the archive")
                name = posixpath.normpath("/".join([links[key], *pieces[end:]]))
                break
        else:
            return name
    raise BadMemberError("a link to itself, by other links")


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
            yield TarReader(*unpacked_by_magic(raw), file)
    except FormatError as error:
        error.within(file)
        raise
