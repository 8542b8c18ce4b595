"""Optional packages: imported when they are needed, and named in the error when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from gdsload.errors import OptionError


def need(module: str, *, file: str | None = None, package: str | None = None, purpose: str = "reading this") -> Any:
    """Import a module of an optional package; `package` is its name for pip, if the extra `convert` does not have it.

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
