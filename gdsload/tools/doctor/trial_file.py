"""A file to try reads on: one that exists, or a small one that is made and removed again."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import stat
import tempfile
from collections.abc import Iterator

_SMALLEST_BYTES = 4096
_MOST_LOOKED_AT = 2000
_MADE_BYTES = 2**20


@contextlib.contextmanager
def trial_file(path: str, *, may_make: bool = True) -> Iterator[str | None]:
    """A readable file at a path: the file itself, a shard or any file in the folder, or a temporary one.

    None if there is none and none can be made (a read-only folder without files). A temporary file is called
    ``.gdsload-trial-*`` and is removed when the context is left, or at the latest when Python ends. May wait as long as
    the file system does.
    """
    found = _find(path)
    if found is not None:
        yield found
        return
    made = _make(path) if may_make else None
    if made is None:
        yield None
        return
    # The context may be held by a daemon thread, which is killed without cleanup when the main thread ends.
    remove = functools.partial(_remove, made)
    atexit.register(remove)
    try:
        yield made
    finally:
        remove()
        atexit.unregister(remove)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _find(path: str) -> str | None:
    if _readable(path, 1):
        return path
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in itertools.islice(entries, _MOST_LOOKED_AT)]
    except (OSError, ValueError):
        return None
    names.sort(key=lambda name: (not name.endswith(".safetensors"), name))
    return next((found for name in names if _readable(found := os.path.join(path, name), _SMALLEST_BYTES)), None)


def _readable(path: str, smallest: int) -> bool:
    try:
        # Not through links: a link may lead to another file system, and the question is how this one behaves.
        found = os.lstat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size >= smallest and os.access(path, os.R_OK)


def _make(folder: str) -> str | None:
    try:
        fd, path = tempfile.mkstemp(prefix=".gdsload-trial-", dir=folder)
    except OSError:
        return None
    try:
        with open(fd, "wb") as file:
            file.write(os.urandom(_MADE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        _remove(path)
        return None
    return path
