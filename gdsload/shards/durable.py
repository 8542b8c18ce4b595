"""Files and folders that survive a power failure."""

from __future__ import annotations

import os
from contextlib import suppress

from gdsload.shards.status import close


def fsync_path(path: str) -> None:
    """Make a file's bytes, or the names in a folder, survive a power failure."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        close(fd)


def make_folders(path: str, mode: int = 0o777) -> None:
    """Make a folder, and those above it that are missing; the new ones survive a power failure.

    `mode` is that of the folder itself, less the umask.

    Raises:
        OSError: if one cannot be made.
    """
    above = os.path.dirname(path)
    if not os.path.isdir(above):
        make_folders(above)
    try:
        os.mkdir(path, mode)
    except OSError:
        if not os.path.isdir(path):
            raise
    else:
        with suppress(PermissionError):  # of a folder that one may write to, but not read: it cannot be opened
            fsync_path(above)
