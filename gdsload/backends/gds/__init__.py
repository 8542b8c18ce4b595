"""Reads by cuFile, straight into VRAM."""
