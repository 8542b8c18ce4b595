"""Errors that travel from the thread that got them to the one that raises them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn


@dataclass(slots=True)
class Failed:
    """An error in the place of a result.

    The frames in the error's traceback may refer to this object: if it kept the error, they were a circle, in which
    all that they refer to would stay.
    """

    error: BaseException | None

    def __call__(self) -> NoReturn:
        """Raise the error, and forget it."""
        error, self.error = self.error, None
        try:
            raise error or RuntimeError("an error was to be raised twice")
        finally:
            del error
