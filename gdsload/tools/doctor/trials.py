"""The trials: the GPU as a separate process describes it, and a direct read of a file at the path."""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

TRIED_BYTES = 4096
"""The bytes of a direct read: the alignment of fields in shards."""
_MADE_BYTES = 2**20
_PREFIX = ".gdsload-trial-"


@dataclass(frozen=True, slots=True)
class GpuTrial:
    """A device as torch describes it, and the results of the trial on it.

    Attributes:
        kind: ``cuda``, ``hip``, another accelerator's name as torch has it, or empty for none.
        address: its PCI address, such as ``0000:3b:00.0``, or empty.
        error: the reason why it cannot be used, or empty.
        registered: whether a page of a file, mapped read-only, can be registered with CUDA; None if not tried.
        mapped_rate: bytes per second of the GPU's copies from pages of a file; 0 if not measured.
        pinned_rate: the same from pinned memory.
        coherent: whether CPU and GPU have coherent memory.
        slow: whether they have, and `mapped_rate` is too low for the `mapped` backend.
        bar1_bytes: the size of BAR1 by NVML, of which `bar1_free` are free; 0 if unknown.
        status: the end of the process that tried it: ``ok``, ``timeout``, ``crashed`` or ``skipped``.
    """

    kind: str = ""
    name: str = ""
    address: str = ""
    total_bytes: int = 0
    error: str = ""
    registered: bool | None = None
    register_error: str = ""
    mapped_rate: float = 0.0
    pinned_rate: float = 0.0
    coherent: bool = False
    slow: bool = False
    bar1_bytes: int = 0
    bar1_free: int = 0
    status: str = "ok"


@dataclass(frozen=True, slots=True)
class FileTrial:
    """The result of a direct read of a file.

    Attributes:
        direct: whether an O_DIRECT read of aligned bytes worked; None if it was not tried.
        hole: where its first hole or unwritten extent begins; None if the file system reports none.
    """

    file: str = ""
    direct: bool | None = None
    direct_error: str = ""
    hole: int | None = None


def try_file(file: str) -> FileTrial:
    """Read a file with O_DIRECT, and look for holes. May block as long as the file system does."""
    with mmap.mmap(-1, TRIED_BYTES) as memory, memoryview(memory) as view:
        step = "open"
        try:
            fd = os.open(file, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            try:
                step = "read"
                os.preadv(fd, [view], 0)
                hole = os.lseek(fd, 0, os.SEEK_HOLE)
                return FileTrial(file, True, "", hole if hole < os.fstat(fd).st_size else None)
            finally:
                os.close(fd)
        except OSError as error:
            return FileTrial(file, False, f"{step}: {error.strerror}")


@contextlib.contextmanager
def temporary_file(folder: str) -> Iterator[str]:
    """A file in a folder, ``.gdsload-trial-*``, that exists while the context lasts; empty if none can be created.

    May wait as long as the file system does.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.NamedTemporaryFile(prefix=_PREFIX, dir=folder, buffering=0))
            # A daemon thread that holds the context is killed without cleanup when the main thread ends.
            atexit.register(file.close)
            stack.callback(atexit.unregister, file.close)
            file.write(os.urandom(_MADE_BYTES))
            os.fsync(file.fileno())
        except OSError:
            yield ""
            return
        yield file.name
