"""Paths as the kernel takes them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from gdsload.errors import OptionError

_HERE = "'.' is the folder that the program is in."
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def refuse_empty(path: str | os.PathLike[str]) -> None:
    """Refuse an empty path: a variable of a shell that is not set must not be the folder that the program is in.

    Raises:
        OptionError: if it is empty.
    """
    if not os.fspath(path):
        raise OptionError("the path is empty", remedy=_HERE)


def refuse_no_path(path: str | os.PathLike[str]) -> None:
    """Refuse what is no path of a local file system, though it might be taken for one.

    Raises:
        OptionError: if it is an address, as ``s3://bucket/shards`` is, or empty.
    """
    refuse_empty(path)
    text = os.fspath(path)
    if not isinstance(text, str) or not _URL.match(text):
        return
    scheme = text.partition("://")[0].lower()
    if scheme == "file":
        raise OptionError(f"{text!r} is an address, not a path", remedy=f"Pass {unquote(urlsplit(text).path)!r}.")
    raise OptionError(
        f"{text!r} is an address, and gdsload reads and writes local file systems alone",
        remedy="Take a folder on a local disk, and copy from or to there; or pass the path of a folder where "
        f"{scheme} is mounted.",
    )


def absolute(path: str | os.PathLike[str]) -> str:
    """The path from the root on, without ``..``, of the file or folder that the kernel finds.

    Not `os.path.abspath`: that turns ``link/../d`` into ``d``, but after a symbolic link, ``..`` is the parent of its
    target. A link at the path itself stays one.

    Raises:
        OptionError: if it is empty or an address, see `refuse_no_path`, or has characters that no file's name has.
    """
    refuse_no_path(path)
    try:
        unusable = b"\0" in os.fsencode(path)
    except UnicodeEncodeError:
        unusable = True
    if unusable:
        raise OptionError(f"{os.fspath(path)!r} is no path: no file's name has such characters")
    whole = os.path.join(os.getcwd(), os.fspath(path))
    if ".." not in whole.split("/"):
        return os.path.normpath(whole)
    parent, name = os.path.split(whole.rstrip("/"))
    if name in (".", ".."):
        return os.path.realpath(whole)
    return os.path.join(os.path.realpath(parent), name)


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names as people count: ``part-9`` before ``part-10``."""
    return [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in re.split(r"(\d+)", name) if piece]


def listed_paths(what: str, given: Iterable[object]) -> list[str]:
    """Paths as texts; `what` is the option whose value they are.

    Raises:
        OptionError: if one is none: a number, bytes, an empty text.
    """
    found = []
    for one in given:
        path = os.fspath(one) if isinstance(one, str | os.PathLike) else None
        if not isinstance(path, str) or not path:
            remedy = f"Pass texts or os.PathLike objects; {_HERE}"
            raise OptionError(f"names {one!r:.200}, which is no path", option=what, remedy=remedy)
        found.append(path)
    return found
