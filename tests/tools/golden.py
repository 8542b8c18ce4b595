"""Texts that were read, found right, and kept; GDSLOAD_GOLDEN=write writes the files again, to be read again."""

import os


def golden(file, text):
    if os.environ.get("GDSLOAD_GOLDEN") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
