"""Endings of file names that several sources share."""

from __future__ import annotations

PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".ppm", ".pgm", ".pbm", ".pnm", ".bmp", ".tif", ".tiff")
"""Endings of the pictures that are read, as files or as members of tar files."""
