"""Tar files, read from the beginning to the end. A file has one archive."""

from __future__ import annotations

import io
import os
import shlex
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

from gdsload.conversion.input_files import open_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.sources.streams import DAMAGED, exactly, unpacked_by_magic
from gdsload.errors import FormatError

_PIECE_BYTES = 2**22
_PACK = "tar --sort=name --transform='s,^[.]/,,'"
_PACK_LINKS = "tar --sort=name --transform='s,^[.]/,,' --dereference --hard-dereference"
_KINDS = {tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device", tarfile.FIFOTYPE: "a named pipe"}


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
                    raise self._more(self._stream.tell()) from None
                return
            except tarfile.EmptyHeaderError:  # type: ignore[attr-defined]
                if tar.offset == 0:
                    raise tarfile.ReadError("it is empty") from None
                self.has_end = False
                return
            except tarfile.HeaderError as error:
                raise tarfile.ReadError(f"it is damaged at byte {tar.offset}: {error}") from None
            if header.size < 0:
                raise tarfile.ReadError(f"it is damaged at byte {header.offset}: {header.size} bytes are no size")
            if header.issparse() or any(name.startswith("GNU.sparse.") for name in header.pax_headers):
                raise FormatError(
                    f"the tar file cannot be read: {header.name!r:.200} is a sparse file",
                    remedy="Unpack it, and pack the files again as whole files.",
                )
            yield header

    def _more(self, offset: int) -> FormatError:
        """The error for what `cat` or damage has put after an archive: most readers would leave it out in silence."""
        file, first, rest = shlex.quote(self._file), f"head -c {offset}", f"tail -c +{offset + 1}"
        whole, packed = ("", f" {file}") if self._nbytes >= 0 else (f"gzip -cd {file} | ", "")
        return FormatError(
            f"after the end of an archive there is something else, at byte {offset}",
            remedy="Copy the file again, whole; or take two archives apart: "
            f"`{whole}{first}{packed} > first.tar; {whole}{rest}{packed} > rest.tar`",
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

    def fault(self, member: tarfile.TarInfo) -> FormatError | None:
        """The error for a member without content, such as a device. Links are not followed."""
        if member.isreg():
            return None
        kind, remedy = _KINDS.get(member.type, f"of type {member.type!r}, which is not known"), None
        if member.islnk() or member.issym():
            kind = f"a link to {member.linkname!r:.100}, which is not followed"
            if ".." not in member.linkname.split("/") and not member.linkname.startswith("/"):
                remedy = f"To make files of links: `{repacked(self._file, _PACK_LINKS)}`"
        return FormatError(f"the sample cannot be taken: {member.name!r:.200} is {kind}", remedy=remedy)

    def content(self, member: tarfile.TarInfo) -> bytes:
        """The content of the member that was given last."""
        return exactly(self._stream, member.size, f"it ends within {member.name!r:.200}, of {member.size} bytes")


def repacked(file: str, pack: str = _PACK) -> str:
    """The shell command that unpacks a tar file, and packs it again with a command of GNU tar's.

    The results are named after the file, so that the commands of several files do not meet. It stops before it would
    unpack two members of one name, so that none is lost.
    """
    stem = os.path.basename(file).removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
    folder, packed = shlex.quote(f"files-{stem}"), shlex.quote(f"sorted-{stem}.tar")
    return f"mkdir {folder} && tar -xkf {shlex.quote(file)} -C {folder} && {pack} -cf {packed} -C {folder} ."


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
