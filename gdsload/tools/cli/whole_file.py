"""Files that commands write: there whole, or as they were before."""

from __future__ import annotations

import os
from contextlib import suppress

from gdsload.errors import WriteError
from gdsload.shards.status import write_error


def refuse_unwritable(path: str, what: str) -> None:
    """Refuse a file that cannot be written, before the work for it; arguments and error as `write_whole`."""
    place = path if os.path.exists(path) else os.path.dirname(path) or "."
    if os.path.isdir(path) or not os.access(place, os.W_OK):
        raise WriteError(f"the {what} cannot be written there", file=path, remedy="Name a file that you may write.")


def write_whole(path: str, content: bytes, what: str) -> None:
    """Write a file under a name of its folder that is free, and give it its own name at the end.

    A link stays: the file that it leads to is written. A device, a pipe, and a file in a folder that takes no other
    are written to as they are.

    Args:
        path: the file.
        content: all of it.
        what: the file's content in errors, such as ``"page"``.

    Raises:
        WriteError: if the system refuses it; the file that was there is as before.
    """
    file = os.path.realpath(path)
    new = f"{file}.{os.getpid()}.new"
    replaced = os.path.isfile(file) and os.access(os.path.dirname(file), os.W_OK)
    in_place = os.path.exists(path) and not replaced
    try:
        with open(path if in_place else new, "wb" if in_place else "xb") as opened:  # "x": no link of another user's
            opened.write(content)
        if not in_place:
            os.replace(new, file)
    except OSError as error:
        raise write_error(f"the {what} cannot be written", error, path) from error
    finally:
        with suppress(OSError):
            os.unlink(new)
