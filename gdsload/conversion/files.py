"""Files of a source: which there are, and what tells that they are still the same."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gdsload.errors import FormatError

__all__ = ["Stamp", "find_files", "inside", "natural", "noted_by", "stamps"]

Stamp = list[str | int]
_note: ContextVar[Callable[[Stamp], None] | None] = ContextVar("_note", default=None)


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names as people count: ``part-9`` before ``part-10``."""
    return [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in re.split(r"(\d+)", name) if piece]


def find_files(path: str, suffixes: Iterable[str], *, below: bool = True) -> list[str]:
    """The files at a path with one of these suffixes (``".tar"``), in natural order: the path itself, or those in it.

    Symbolic links to folders are not followed.

    Raises:
        FormatError: if there is none.
    """
    wanted = tuple(suffixes)
    if os.path.isfile(path):
        return [path]
    found = []
    for folder, folders, names in os.walk(path):
        folders.sort(key=natural)
        found += [os.path.join(folder, name) for name in sorted(names, key=natural) if name.lower().endswith(wanted)]
        if not below:
            break
    if not found:
        raise FormatError(f"there is no file with {' or '.join(wanted)}", file=path)
    return found


def stamps(files: Iterable[str]) -> list[Stamp]:
    """Name, length, and times of the last change of content and of anything of each file, JSON-able.

    The second of these times nobody can put back, and a file that takes another's place has its own. Numbers of devices
    and inodes are left out: on network file systems they change by themselves.
    """
    note = _note.get()
    found: list[Stamp] = []
    for file in files:
        status = os.stat(file)
        found.append([file, status.st_size, status.st_mtime_ns, status.st_ctime_ns])
        if note is not None:
            note(found[-1])
    return found


@contextmanager
def noted_by(note: Callable[[Stamp], None]) -> Iterator[None]:
    """Have a function called with each file that `stamps` looks at in here: whatever source it is, and however many."""
    before = _note.set(note)
    try:
        yield
    finally:
        _note.reset(before)


def inside(folder: str, name: str) -> str:
    """The path of a file that data name, if it is one in a folder or below it, also behind symbolic links.

    Raises:
        FormatError: if it leads elsewhere, or there is no regular file.
    """
    root = os.path.realpath(folder)
    try:
        path = os.path.realpath(os.path.join(root, name))
        is_file = os.path.isfile(path)  # to open anything else may wait for ever
    except ValueError as error:
        raise FormatError(f"{name!r:.200} is no name of a file: {error}", file=folder) from None
    if os.path.commonpath([root, path]) != root:
        raise FormatError(f"{name!r:.200} leads out of the folder", file=folder)
    if not is_file:
        raise FormatError(f"there is no file {name!r:.200}", file=folder)
    return path
