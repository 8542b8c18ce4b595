"""Bits of files that turn over."""

import os


def flip(path, offset, bit=0):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def flip_unseen(path, offset):
    """Change a byte in place, and put the time of the last write back."""
    before = os.stat(path)
    flip(path, offset)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(path).st_mtime_ns == before.st_mtime_ns
