"""Folders for the files of benchmarks."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["existing_folder"]


def existing_folder(text: str) -> Path:
    """A folder that a command line names, for argparse. Not made: where a drive is not mounted, it would be on another.

    Raises:
        argparse.ArgumentTypeError: if it is no folder.
    """
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder; make it, or mount the drive that it is to be on")
    return path
