"""Optional packages: imported when they are needed, and named in the error when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from gdsload.errors import OptionError

__all__ = ["need"]


def need(module: str, *, file: str | None = None, package: str | None = None, purpose: str = "reading this") -> Any:
    """Import a module of an optional package.

    Args:
        module: its full name.
        file: what is to be read with it, for the error.
        package: what pip calls it, if that is not the first part of its name and the extra does not bring it.
        purpose: what needs it, for the error.

    Raises:
        OptionError: if it is missing or broken.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:  # a broken installation raises anything
        wanted = '"gdsload[convert]"' if package is None else package
        raise OptionError(
            f"{purpose} needs {module.partition('.')[0]}, which cannot be imported: {str(error)[:200]}",
            file=file,
            remedy=f"pip install {wanted}",
        ) from None
