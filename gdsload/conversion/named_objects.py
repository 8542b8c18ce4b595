"""Import of objects that users name as ``package.module:name``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

_MOST = 200


def find_named(spec: str) -> Any:
    """The object called ``package.module:name``; modules of the working folder are looked at last.

    The installed command does not have that folder on its path, as `python -m gdsload` does. It is added last, so that
    it hides no other module, and stays, so that workers find the module, too.

    Raises:
        ImportError, AttributeError, ValueError: if there is no such object.
    """
    module, _, name = spec.partition(":")
    if not module or not name:
        raise ValueError("it has no module, or no name in it")
    try:
        found: Any = _imported(module)
    except ModuleNotFoundError as error:
        here = os.getcwd()
        if error.name != module.partition(".")[0] or here in sys.path:
            raise
        sys.path.append(here)
        importlib.invalidate_caches()
        found = _imported(module)
    for piece in name.split("."):
        found = getattr(found, piece)
    return found


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise
    except Exception as error:  # of the user's code
        raise ImportError(f"its import ends in {type(error).__name__}: {str(error)[:_MOST]}") from error
