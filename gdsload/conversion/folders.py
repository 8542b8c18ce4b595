"""What is in a folder of a source."""

from __future__ import annotations

import os

from gdsload.errors import FormatError

__all__ = ["names_in", "unreadable"]


def names_in(folder: str) -> list[str]:
    """The names of all that is in a folder, in no order.

    Raises:
        FormatError: if it cannot be read.
    """
    try:
        return os.listdir(folder)
    except OSError as error:
        raise unreadable(folder, error) from None


def unreadable(folder: str, error: OSError) -> FormatError:
    """The error for a folder that cannot be read."""
    return FormatError(f"the folder cannot be read: {error.strerror}", file=folder)
