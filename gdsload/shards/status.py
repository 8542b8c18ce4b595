"""The system's status of files, and its errors as errors of gdsload's."""

from __future__ import annotations

import errno
import os

from gdsload.errors import ReadError

NO_RIGHT = (errno.EACCES, errno.EPERM)
"""The system's reasons where one may not read what is there."""
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""The system's reasons where a file is there, and too many are open."""
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def is_absent(error: OSError) -> bool:
    """Return whether an error means that there is nothing at a path; any other error says nothing of that."""
    return error.errno in _ABSENT


def read_error(what: str, error: OSError, path: str, remedy: str | None = None) -> ReadError:
    """The error of a file that cannot be opened, with the system's reason in `errno`, and what to do about it.

    Args:
        what: what cannot be done.
        error: why.
        path: with what.
        remedy: what to do; None: what the reason says.
    """
    if remedy is None and error.errno in NO_RIGHT:
        remedy = "Give yourself the right to read it."
    if remedy is None and error.errno in NO_DESCRIPTORS:
        remedy = "Raise the limit by `ulimit -n`, or close files that are not needed any more."
    found = ReadError(f"{what}: {error.strerror}", file=path, remedy=remedy)
    found.errno = error.errno
    return found


def status_of(fd: int, path: str) -> os.stat_result:
    """The system's status of an open file.

    Raises:
        ReadError: if it does not answer.
    """
    try:
        return os.fstat(fd)
    except OSError as error:
        raise read_error("the file cannot be looked at", error, path) from None
