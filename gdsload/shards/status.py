"""The system's status of files, and its errors as errors of gdsload's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from gdsload.errors import DiskFullError, GdsloadError, ReadError, WriteError

_Named = TypeVar("_Named", ReadError, WriteError)

NO_RIGHT = (errno.EACCES, errno.EPERM)
"""The system's reasons where one may not read what is there."""
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""The system's reasons where a file is there, and too many are open."""
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REMEDIES = {
    **dict.fromkeys(NO_RIGHT, "Give yourself the right to read it, or to write it."),
    **dict.fromkeys(NO_DESCRIPTORS, "Raise the limit by `ulimit -n`, or close files that are not needed any more."),
    **dict.fromkeys(_FULL, "Free some space, or write elsewhere."),
    errno.EFBIG: "Pass a smaller `shard_bytes`: the file system or the process (ulimit -f) allows no file as large.",
    errno.ENAMETOOLONG: "Use a shorter path.",
    errno.ENXIO: "Start what reads it first, or name a file.",
    errno.ENOMEM: "End other programs, raise the process's limit (ulimit -v), or work with less at once.",
    errno.EROFS: "Make its drive writable again. A drive that fails is made read-only by the system: dmesg says so.",
}
_LIBRARY_REMEDY = "The last words are those of a library: look them up, mend what they say, and run it again."
_OTHER_REMEDY = "See whether its drive is well, as dmesg says, and run it again."


def is_absent(error: OSError) -> bool:
    """Return whether an error means that there is nothing at a path; any other error says nothing of that."""
    return error.errno in _ABSENT


def is_there(path: str) -> bool:
    """Return whether anything is at a path, a link to nothing too; `os.path.lexists` says no if it cannot be known.

    Raises:
        OSError: if it cannot be known.
    """
    try:
        os.lstat(path)
    except OSError as error:
        if is_absent(error):
            return False
        raise
    return True


def remedy_for(error: OSError | MemoryError) -> str:
    """The remedy for something that the system refuses, or that a library says in its own words."""
    if isinstance(error, OSError) and error.errno is None and str(error):
        return _LIBRARY_REMEDY
    return _REMEDIES.get(_code(error), _OTHER_REMEDY)


def read_error(
    what: str, error: OSError | MemoryError, path: str, remedy: str | None = None, *, offset: int | None = None
) -> ReadError:
    """The error of what cannot be read, with the system's reason in `errno`, and what to do about it.

    Args:
        what: what cannot be done.
        error: why.
        path: with what.
        remedy: what to do; None: what the reason says.
        offset: from which byte of a file on.
    """
    found = _named(ReadError, what, error, path, remedy)
    found.offset = offset
    return found


def write_error(what: str, error: OSError | MemoryError, path: str) -> WriteError:
    """As `read_error`, of what cannot be written."""
    return _named(DiskFullError if _code(error) in _FULL else WriteError, what, error, path, None)


def _code(error: OSError | MemoryError) -> int:
    return (error.errno or errno.EIO) if isinstance(error, OSError) else errno.ENOMEM


def _named(kind: type[_Named], what: str, error: OSError | MemoryError, path: str, remedy: str | None) -> _Named:
    code = _code(error)
    if code in NO_RIGHT and remedy is None:
        remedy = f"Give yourself the right to {'read' if kind is ReadError else 'write'} it."
    said = getattr(error, "errno", code) is None and str(error)  # a library's words, such as those of a linker
    found = kind(f"{what}: {said or os.strerror(code)}", file=path, remedy=remedy or remedy_for(error))
    found.errno = code
    return found


@contextmanager
def naming(error_of: Callable[[str, OSError | MemoryError, str], GdsloadError], what: str, path: str) -> Iterator[None]:
    """Turn what the system refuses in here, memory too, into an error that `error_of` makes; gdsload's own pass.

    Args:
        error_of: `read_error` or `write_error`.
        what: what cannot be done.
        path: with what, where the system names no file.
    """
    try:
        yield
    except GdsloadError:
        raise
    except (OSError, MemoryError) as error:
        raise error_of(what, error, str(getattr(error, "filename", None) or path)) from error


def close(fd: int) -> None:
    """Close a file that nothing was written to, whatever the system says of that: the descriptor is gone."""
    with suppress(OSError):
        os.close(fd)


def status_of(fd: int, path: str) -> os.stat_result:
    """The system's status of an open file.

    Raises:
        ReadError: if it does not answer.
    """
    try:
        return os.fstat(fd)
    except OSError as error:
        raise read_error("the file cannot be looked at", error, path) from None
