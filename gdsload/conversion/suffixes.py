"""Endings of names that more than one source knows its files by."""

from __future__ import annotations

__all__ = ["PICTURES"]

PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".ppm", ".pgm", ".pbm", ".pnm", ".bmp", ".tif", ".tiff")
"""What pictures end in that are read, as files or as members of tar files: the one list of it."""
