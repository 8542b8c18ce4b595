"""Reads through pinned memory."""
