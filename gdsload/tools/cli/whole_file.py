"""Files that commands write: there whole, or as they were before."""

from __future__ import annotations

import os
from contextlib import suppress

from gdsload.errors import WriteError
from gdsload.shards.status import write_error


def refuse_unwritable(path: str, what: str) -> None:
    """Refuse a file that cannot be written, before the work for it; arguments and error as `write_whole`."""
    place = path if os.path.exists(path) else os.path.dirname(os.path.realpath(path))
    no_file = not path or os.path.isdir(path) or os.path.islink(os.path.realpath(path))  # the last: a link to itself
    if no_file or not os.access(place, os.W_OK):
        raise WriteError(f"the {what} cannot be written there", file=path, remedy="Name a file that you may write.")


def write_whole(path: str, content: bytes, what: str) -> None:
    """Write a file under a name of its folder that is free, and give it its own name at the end.

    A link stays: the file that it leads to is written. A device, a pipe, and a file in a folder that takes no other
    are written to as they are. A pipe without a reader is an error.

    In errors the content is called `what`, such as ``"page"``.

    Raises:
        WriteError: if the system refuses it; the file that was there is as before.
    """
    file = os.path.realpath(path)
    new = f"{file}.{os.getpid()}.new"
    replaced = os.path.isfile(file) and os.access(os.path.dirname(file), os.W_OK)
    in_place = os.path.exists(path) and not replaced
    try:
        flags = os.O_TRUNC if in_place else os.O_CREAT | os.O_EXCL  # the last: no link of another user's
        # A pipe is opened without waiting for its reader.
        with open(os.open(path if in_place else new, os.O_WRONLY | os.O_NONBLOCK | flags, 0o666), "wb") as opened:
            os.set_blocking(opened.fileno(), True)
            opened.write(content)
        if not in_place:
            os.replace(new, file)
    except OSError as error:
        raise write_error(f"the {what} cannot be written", error, path) from error
    finally:
        with suppress(OSError):
            os.unlink(new)
