"""Trial of reads of a file at the path: direct I/O, reads that do not wait, and the file's attributes."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from dataclasses import dataclass

__all__ = ["FileTrial", "try_file"]

_STATX_DIOALIGN = 0x2000  # Linux 6.1, include/uapi/linux/stat.h, as all below
_STATX_BYTES = 256
_ATTRIBUTES = {
    0x4: "compressed",
    0x10: "immutable",
    0x20: "append-only",
    0x800: "encrypted",
    0x100000: "verity",
}
_AT_FDCWD = -100
_ALIGNED_BYTES = 65536
"""Aligned for every page and block size there is, so that a refusal is no matter of alignment."""


@dataclass(frozen=True, slots=True)
class FileTrial:
    """The results of a trial on a file.

    Attributes:
        file: the file; empty if there was none.
        direct: whether an aligned O_DIRECT read worked; None if it was not tried.
        direct_error: why it did not.
        memory_align: bytes that direct I/O wants memory aligned to; 0 if unsupported, None if that is not known.
        offset_align: the same for offsets and lengths.
        nowait: whether reads with RWF_NOWAIT work; None if it was not tried.
        nowait_error: why they do not.
        attributes: those that matter, of ``compressed``, ``immutable``, ``append-only``, ``encrypted``, ``verity``.
    """

    file: str = ""
    direct: bool | None = None
    direct_error: str = ""
    memory_align: int | None = None
    offset_align: int | None = None
    nowait: bool | None = None
    nowait_error: str = ""
    attributes: tuple[str, ...] = ()


def try_file(file: str) -> FileTrial:
    """Try a file; may wait as long as the file system does."""
    direct, direct_error = _direct(file)
    nowait, nowait_error = _nowait(file)
    memory_align, offset_align, attributes = _statx(file)
    return FileTrial(file, direct, direct_error, memory_align, offset_align, nowait, nowait_error, attributes)


def _direct(file: str) -> tuple[bool, str]:
    with mmap.mmap(-1, _ALIGNED_BYTES) as memory, memoryview(memory) as view:
        try:
            fd = os.open(file, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as error:
            return False, f"open: {error.strerror}"
        try:
            os.preadv(fd, [view], 0)
        except OSError as error:
            return False, f"read: {error.strerror}"
        finally:
            os.close(fd)
    return True, ""


def _nowait(file: str) -> tuple[bool | None, str]:
    flag = getattr(os, "RWF_NOWAIT", None)
    if flag is None:
        return None, "this Python does not have RWF_NOWAIT"
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return None, f"open: {error.strerror}"
    try:
        os.preadv(fd, [bytearray(1)], 0, flag)
    except OSError as error:
        # EAGAIN: the file system supports it, and the page is not there.
        return (True, "") if error.errno == errno.EAGAIN else (False, error.strerror or str(error))
    finally:
        os.close(fd)
    return True, ""


def _statx(file: str) -> tuple[int | None, int | None, tuple[str, ...]]:
    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if statx is None:
        return None, None, ()
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(file), 0, ctypes.c_uint(_STATX_DIOALIGN), found) != 0:
        return None, None, ()
    mask, _, attributes = struct.unpack_from("=IIQ", found, 0)
    names = tuple(name for bit, name in _ATTRIBUTES.items() if attributes & bit)
    if not mask & _STATX_DIOALIGN:
        return None, None, names
    memory_align, offset_align = struct.unpack_from("=II", found, 152)
    return memory_align, offset_align, names
