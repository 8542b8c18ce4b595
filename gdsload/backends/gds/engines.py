"""Two ways to call cuFile: its own API, through cuda.bindings, and kvikio.

cuFile's own `read`, from threads, is the default: kvikio's `pread` waits for the legacy default stream, which is
torch's, so that reading and training take turns (measured; docs/design/0004).
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import stat
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Protocol

import numpy as np
import torch

from gdsload.errors import BackendUnavailableError
from gdsload.system.arrays import IntArray
from gdsload.system.cufile_batches import LONGEST_BYTES, CufileBatches, ReadsUnderWayError
from gdsload.system.probe.child import CufileDescr, reads_by_path
from gdsload.system.probe.result import PATHS
from gdsload.system.streams import DeviceBytes

_log = logging.getLogger("gdsload")
_lock = threading.Lock()
_opened_by: list[int] = []
"""The process that has opened cuFile's driver, if one has."""


class Engine(Protocol):
    """One way to call cuFile."""

    @property
    def most_bytes(self) -> int:
        """Mean bytes of reads up to which `read_many` has many of them under way at once, without threads."""

    def open(self, path: str, fd: int) -> int:
        """Register a file, which is open as `fd` now; returns a handle, any number of 64 bits."""

    def close(self, handle: int) -> None:
        """Close a handle. No read of it may be under way."""

    def read(self, handle: int, base: int, position: int, nbytes: int, offset: int) -> int:
        """Read into a slot at address `base`, from byte `position` of it on; returns how many bytes were read.

        Raises:
            Exception: whatever the library raises.
        """

    def read_many(
        self, handles: IntArray, bases: IntArray, positions: IntArray, nbytes: IntArray, offsets: IntArray
    ) -> IntArray:
        """As `read`, many: returns how many bytes each has read; 0 or less if it failed, and `read` says why.

        Raises:
            ReadsUnderWayError: if it cannot tell that they have ended, so that their memory is lost.
        """
        return one_by_one(self, handles, bases, positions, nbytes, offsets)

    def end(self) -> None:
        """Release what is kept. No read may be under way; may be called twice."""

    def register(self, base: int, nbytes: int) -> None:
        """Register a slot for DMA.

        Raises:
            Exception: whatever the library raises if there is no room for it; an unregistered slot is only slower.
        """

    def deregister(self, base: int) -> None:
        """Deregister a slot."""


class CufileEngine(Engine):
    """cuFile's own API; with `batches`, cuFile is known to make many reads by one call."""

    def __init__(self, device: torch.device, *, batches: bool = False) -> None:
        self._cufile, self._device = _open_driver(device), device
        self._batches = CufileBatches(self._cufile) if batches else None
        self._descriptors: dict[int, int] = {}
        """Our own of each handle, which is cuFile's, and may be negative."""

    @property
    def most_bytes(self) -> int:
        return LONGEST_BYTES if self._batches else 0

    def open(self, path: str, fd: int) -> int:
        # cuFile refuses flags that it does not know, such as O_NOFOLLOW: the file is opened again without them.
        direct = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | direct)
        # Not the bindings' own structure: its memory is not initialized, and cuFile calls the pointers in it.
        descr = CufileDescr(int(self._cufile.FileHandleType.OPAQUE_FD), own, None)
        try:
            handle = int(self._cufile.handle_register(ctypes.addressof(descr)))
        except BaseException:
            os.close(own)
            raise
        self._descriptors[handle] = own
        return handle

    def close(self, handle: int) -> None:
        own = self._descriptors.pop(handle)
        try:
            self._cufile.handle_deregister(handle)
        finally:
            os.close(own)

    def read(self, handle: int, base: int, position: int, nbytes: int, offset: int) -> int:
        return int(self._cufile.read(handle, base, nbytes, offset, position))

    def read_many(
        self, handles: IntArray, bases: IntArray, positions: IntArray, nbytes: IntArray, offsets: IntArray
    ) -> IntArray:
        columns = (handles, bases, positions, nbytes, offsets)
        long = nbytes > LONGEST_BYTES
        short = (nbytes > 0) & ~long  # cuFile has been seen never to end an empty read of a batch
        if self._batches is None or not short.any():
            return one_by_one(self, *columns)
        if short.all():
            return self._batched(*columns)
        done = np.zeros(len(nbytes), np.int64)
        for chosen, read in ((short, self._batched), (long, partial(one_by_one, self))):
            done[chosen] = read(*(column[chosen] for column in columns))
        return done

    def _batched(self, *columns: IntArray) -> IntArray:
        """Reads of which none is long; one by one from now on if cuFile takes no batch."""
        batches = self._batches
        if batches is None:  # another thread's was refused
            return one_by_one(self, *columns)
        try:
            return batches.read(*columns)
        except ReadsUnderWayError:
            self._batches = None
            raise
        except Exception as error:
            _log.warning("cuFile takes no batches of reads, which are made one by one from now on: %s", error)
            self._batches = None
            return one_by_one(self, *columns)

    def end(self) -> None:
        if self._batches is not None:
            with suppress(Exception):  # nothing is read any more
                self._batches.close()

    def register(self, base: int, nbytes: int) -> None:
        with torch.cuda.device(self._device):  # whichever is current in a thread that reads
            self._cufile.buf_register(base, nbytes, 0)

    def deregister(self, base: int) -> None:
        with torch.cuda.device(self._device):
            self._cufile.buf_deregister(base)


class KvikioEngine(Engine):
    """kvikio, which calls cuFile; its own compat mode is switched off, so that it fails where cuFile does.

    It has no call for many reads, so `batches` is not used.
    """

    most_bytes = 0

    def __init__(self, device: torch.device, *, batches: bool = False) -> None:
        # The counters are cuFile's, whichever library calls it.
        _open_driver(device)
        try:
            import kvikio
            from kvikio import defaults
        except Exception as error:  # RuntimeError where libraries are missing
            raise BackendUnavailableError(
                f"kvikio cannot be imported: {error}", remedy='pip install "gdsload[cu13]", or leave `engine` out.'
            ) from None
        self._kvikio: Any = kvikio
        defaults.set({"compat_mode": kvikio.CompatMode.OFF})
        self._numbers = count()
        self._files: dict[int, Any] = {}

    def open(self, path: str, fd: int) -> int:
        """See `Engine.open`. kvikio opens the file itself, by the descriptor, so that it is the same one."""
        handle = next(self._numbers)
        self._files[handle] = self._kvikio.CuFile(f"/proc/self/fd/{fd}", "r")
        return handle

    def close(self, handle: int) -> None:
        self._files.pop(handle).close()

    def read(self, handle: int, base: int, position: int, nbytes: int, offset: int) -> int:
        into = DeviceBytes(base + position, nbytes)
        future = self._files[handle].pread(into, nbytes, offset, nbytes)
        return int(future.get())

    def register(self, base: int, nbytes: int) -> None:
        self._kvikio.memory_register(DeviceBytes(base, nbytes))

    def deregister(self, base: int) -> None:
        self._kvikio.memory_deregister(DeviceBytes(base, 1))


def one_by_one(
    engine: Engine, handles: IntArray, bases: IntArray, positions: IntArray, nbytes: IntArray, offsets: IntArray
) -> IntArray:
    """`Engine.read_many` by `Engine.read`; ends with the first read that fails or ends early."""
    done, read = np.zeros(len(nbytes), np.int64), engine.read
    columns = (column.tolist() for column in (handles, bases, positions, nbytes, offsets))
    # With small reads this is all that there is in Python for each of them, in many threads at once.
    for index, (handle, base, position, wanted, offset) in enumerate(zip(*columns, strict=True)):
        try:
            done[index] = count = read(handle, base, position, wanted, offset)
        except Exception:  # the caller reads it again, and raises the reason
            break
        if count < wanted:
            break
    return done


ENGINES: dict[str, Callable[..., Engine]] = {"cufile": CufileEngine, "kvikio": KvikioEngine}


def _open_driver(device: torch.device) -> Any:
    """Open cuFile's driver, once in a process, with its counters on. A probe in another process has opened it before.

    Raises:
        BackendUnavailableError: if cuFile is missing, cannot be opened, or was opened before a fork.
    """
    try:
        from cuda.bindings import cufile
    except Exception as error:
        raise BackendUnavailableError(
            f"cuda.bindings cannot be imported: {error}", remedy='pip install "gdsload[cu13]".'
        ) from None
    with _lock, torch.cuda.device(device):
        if not _opened_by:
            torch.cuda.current_stream().synchronize()  # CUDA is in use before cuFile is opened, as cuFile requires
            if "CUFILE_LOGFILE_PATH" not in os.environ:  # cuFile would write its log into the working directory
                os.environ["CUFILE_LOGFILE_PATH"] = log_file(tempfile.gettempdir())
            try:
                cufile.set_stats_level(3)
                cufile.driver_open()
                cufile.stats_start()
            except Exception as error:
                raise BackendUnavailableError(
                    f"cuFile's driver cannot be opened: {error}", remedy="Run gdsload doctor: it says why."
                ) from None
            _opened_by.append(os.getpid())
        elif _opened_by != [os.getpid()]:
            raise BackendUnavailableError(
                "cuFile was opened before this process was forked, which it does not survive",
                remedy='Start processes with the "spawn" method, or make loaders only in them.',
            )
    return cufile


def log_file(folder: str) -> str:
    """A file for cuFile's log in a folder that others may write to: it belongs to this user and is not a link."""
    path = os.path.join(folder, f"cufile-{os.getuid()}.log")
    try:
        opened = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            found = os.fstat(opened)
        finally:
            os.close(opened)
        if found.st_uid == os.geteuid() and stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            return path
    except OSError:
        pass
    return os.path.join(tempfile.mkdtemp(prefix="gdsload-", dir=folder), "cufile.log")


def path_counts() -> dict[str, int]:
    """Reads that cuFile has counted in this process, by path, over all GPUs; empty before its driver is open."""
    if _opened_by != [os.getpid()]:
        return {}
    from cuda.bindings import cufile

    counted = reads_by_path(cufile)
    return {path: counted[reads] for path, reads in PATHS.items()}
