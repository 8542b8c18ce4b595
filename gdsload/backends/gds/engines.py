"""Two ways to call cuFile: its own API, through cuda.bindings, and kvikio.

cuFile's own `read`, from threads, is the default: kvikio's `pread` waits for the legacy default stream, which is
torch's, so that reading and training take turns (measured; docs/design/0004).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import tempfile
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

from gdsload.errors import BackendUnavailableError
from gdsload.system.probe.child import CufileDescr, reads_by_path
from gdsload.system.probe.result import PATHS
from gdsload.system.streams import DeviceBytes

__all__ = ["ENGINES", "CufileEngine", "Engine", "KvikioEngine", "path_counts"]

_lock = threading.Lock()
_opened_by: list[int] = []
"""The process that has opened cuFile's driver, if one has."""


class Engine(Protocol):
    """One way to call cuFile."""

    name: str

    def open(self, path: str, fd: int) -> Any:
        """Register a file; `fd` stays open for as long as the handle is used."""

    def close(self, handle: Any) -> None:
        """Close a handle. No read of it may be under way."""

    def read(self, handle: Any, base: int, position: int, nbytes: int, offset: int) -> int:
        """Read into a slot at address `base`, from byte `position` of it on; returns how many bytes were read.

        Raises:
            Exception: whatever the library raises.
        """

    def register(self, base: int, nbytes: int) -> None:
        """Register a slot for DMA.

        Raises:
            Exception: whatever the library raises if there is no room for it; an unregistered slot is only slower.
        """

    def deregister(self, base: int) -> None:
        """Deregister a slot."""


class CufileEngine:
    """cuFile's own API."""

    name = "cufile"

    def __init__(self, device: torch.device) -> None:
        self._cufile = _open_driver(device)

    def open(self, path: str, fd: int) -> Any:
        """See `Engine.open`."""
        # cuFile refuses flags that it does not know, such as O_NOFOLLOW: the file is opened again without them.
        direct = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | direct)
        # Not the bindings' own structure: its memory is not initialized, and cuFile calls the pointers in it.
        descr = CufileDescr(int(self._cufile.FileHandleType.OPAQUE_FD), own, None)
        try:
            return self._cufile.handle_register(ctypes.addressof(descr)), own
        except BaseException:
            os.close(own)
            raise

    def close(self, handle: Any) -> None:
        """See `Engine.close`."""
        known, own = handle
        try:
            self._cufile.handle_deregister(known)
        finally:
            os.close(own)

    def read(self, handle: Any, base: int, position: int, nbytes: int, offset: int) -> int:
        """See `Engine.read`."""
        return int(self._cufile.read(handle[0], base, nbytes, offset, position))

    def register(self, base: int, nbytes: int) -> None:
        """See `Engine.register`."""
        self._cufile.buf_register(base, nbytes, 0)

    def deregister(self, base: int) -> None:
        """See `Engine.deregister`."""
        self._cufile.buf_deregister(base)


class KvikioEngine:
    """kvikio, which calls cuFile; its own compat mode is switched off, so that it fails where cuFile does."""

    name = "kvikio"

    def __init__(self, device: torch.device) -> None:
        # The counters are cuFile's, whichever library calls it.
        _open_driver(device)
        try:
            import kvikio
            from kvikio import defaults
        except Exception as error:  # RuntimeError where libraries are missing
            raise BackendUnavailableError(
                f"kvikio cannot be imported: {error}", remedy='pip install "gdsload[cu13]", or leave engine= out.'
            ) from None
        self._kvikio: Any = kvikio
        defaults.set({"compat_mode": kvikio.CompatMode.OFF})

    def open(self, path: str, fd: int) -> Any:
        """See `Engine.open`. kvikio opens the file itself, by the descriptor, so that it is the same one."""
        return self._kvikio.CuFile(f"/proc/self/fd/{fd}", "r")

    def close(self, handle: Any) -> None:
        """See `Engine.close`."""
        handle.close()

    def read(self, handle: Any, base: int, position: int, nbytes: int, offset: int) -> int:
        """See `Engine.read`."""
        into = DeviceBytes(base + position, nbytes)
        future = handle.pread(into, nbytes, offset, nbytes)
        return int(future.get())

    def register(self, base: int, nbytes: int) -> None:
        """See `Engine.register`."""
        self._kvikio.memory_register(DeviceBytes(base, nbytes))

    def deregister(self, base: int) -> None:
        """See `Engine.deregister`."""
        self._kvikio.memory_deregister(DeviceBytes(base, 1))


ENGINES: dict[str, Callable[[torch.device], Engine]] = {"cufile": CufileEngine, "kvikio": KvikioEngine}


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
            # cuFile would write its log into the working directory. It needs a file's name: a folder ends logging.
            os.environ.setdefault(
                "CUFILE_LOGFILE_PATH", os.path.join(tempfile.gettempdir(), f"cufile-{os.getuid()}.log")
            )
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


def path_counts() -> dict[str, int]:
    """Reads that cuFile has counted in this process, by path, over all GPUs; empty before its driver is open."""
    if _opened_by != [os.getpid()]:
        return {}
    from cuda.bindings import cufile

    counted = reads_by_path(cufile)
    return {path: counted[reads] for path, reads in PATHS.items()}
