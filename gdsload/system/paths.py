"""Paths as the kernel takes them."""

from __future__ import annotations

import os

__all__ = ["absolute"]


def absolute(path: str | os.PathLike[str]) -> str:
    """The path from the root on, without ``..``, of the file or folder that the kernel finds.

    Not `os.path.abspath`: that turns ``link/../d`` into ``d``, but after a symbolic link, ``..`` is the parent of its
    target. A link at the path itself stays one.
    """
    whole = os.path.join(os.getcwd(), os.fspath(path))
    if ".." not in whole.split("/"):
        return os.path.normpath(whole)
    parent, name = os.path.split(whole.rstrip("/"))
    if name in (".", ".."):
        return os.path.realpath(whole)
    return os.path.join(os.path.realpath(parent), name)
