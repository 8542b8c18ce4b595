"""Optional packages: imported when they are needed, and named in the error when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from gdsload.errors import OptionError

__all__ = ["need"]


def need(module: str, purpose: str, install: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: its full name.
        purpose: what needs it, for the error.
        install: what pip should install.

    Raises:
        OptionError: if it is missing or broken.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:  # a broken installation raises anything
        raise OptionError(
            f"{purpose} needs {module.partition('.')[0]}, which cannot be imported: {str(error)[:200]}",
            remedy=f"pip install {install}",
        ) from None
