"""Reading small text files of the kernel and of /etc, under a root that tests can replace.

Nothing here raises: what cannot be read is None. Only regular files are read (a named pipe instead of a configuration
would block for ever), and never more than a limit.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

_LIMIT_BYTES = 64 * 1024
_MOST_NAMES = 4096


@dataclass(frozen=True, slots=True)
class Tree:
    """A file tree such as /proc, /sys, /run and /etc.

    Attributes:
        root: the folder used as ``/``; paths given to the methods are absolute inside it.
    """

    root: str = "/"

    def at(self, path: str) -> str:
        """The real location of a path of the tree."""
        return path if self.root == "/" else self.root.rstrip("/") + "/" + path.lstrip("/")

    def data(self, path: str, limit: int = _LIMIT_BYTES) -> bytes | None:
        """The first `limit` bytes of a regular file, or None."""
        try:
            fd = os.open(self.at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except (OSError, ValueError):
            return None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            parts, left = [], limit
            while left > 0 and (part := os.read(fd, left)):
                parts.append(part)
                left -= len(part)
            return b"".join(parts)
        except OSError:
            return None
        finally:
            os.close(fd)

    def text(self, path: str, limit: int = _LIMIT_BYTES) -> str | None:
        """The first `limit` bytes of a regular file as text without the blanks around it, or None."""
        data = self.data(path, limit)
        return None if data is None else data.decode("utf-8", "replace").strip()

    def number(self, path: str) -> int | None:
        """A file that holds one decimal integer, or None."""
        text = self.text(path, 64)
        try:
            return None if text is None else int(text)
        except ValueError:
            return None

    def exists(self, path: str) -> bool:
        """Return whether there is something at a path."""
        try:
            return os.path.exists(self.at(path))
        except (OSError, ValueError):
            return False

    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted; none if it cannot be listed."""
        try:
            return sorted(os.listdir(self.at(path)))[:_MOST_NAMES]
        except (OSError, ValueError):
            return []

    def resolve(self, path: str) -> str | None:
        """A path of the tree with all links followed; None if nothing is there or a link leads out of the tree."""
        try:
            base = os.path.realpath(self.root)
            real = os.path.realpath(self.at(path), strict=True)
        except (OSError, ValueError):
            return None
        if base == "/":
            return real
        if real == base:
            return "/"
        return real[len(base) :] if real.startswith(base + "/") else None
