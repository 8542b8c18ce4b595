"""The program of the probing process, ``python -m gdsload.system.probe.child FILE DEVICE``: all that may hang or crash.

It answers with the attributes of `CufileProbe` that are known, before each stage and at the end; only the last answer
has a status. The parent process never loads libcufile: opening its driver can spin for ever (seen with 1.19 and 1.20
where /proc/modules is missing), and it must not be used after a fork.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

import numpy as np

from gdsload.system.probe.library import find_libraries
from gdsload.system.probe.process import take_output, write_answer
from gdsload.system.probe.result import PATHS
from gdsload.system.probe.tree import Tree

__all__ = ["CufileDescr", "main", "reads_by_path"]

_BUFFER_BYTES = 16 * 2**20
"""From 10 MiB on torch's allocator makes a separate allocation: the buffer begins where the allocation does."""
_READ_BYTES = 2**20
_BLOCK_BYTES = 4096
_BATCHED_READS = 1000
_BASE_ERROR = 5000  # cufile.h, CUFILEOP_BASE_ERR
_ERRORS = {
    5001: "DRIVER_NOT_INITIALIZED", 5002: "DRIVER_INVALID_PROPS", 5004: "DRIVER_VERSION_MISMATCH",
    5007: "PLATFORM_NOT_SUPPORTED", 5008: "IO_NOT_SUPPORTED", 5009: "DEVICE_NOT_SUPPORTED", 5010: "NVFS_DRIVER_ERROR",
    5011: "CUDA_DRIVER_ERROR", 5018: "INVALID_FILE_TYPE", 5019: "INVALID_FILE_OPEN_FLAG", 5020: "DIO_NOT_SET",
    5022: "INVALID_VALUE", 5025: "PERMISSION_DENIED", 5027: "HANDLE_NOT_REGISTERED", 5029: "DEVICE_NOT_FOUND",
    5030: "INTERNAL_ERROR", 5033: "NVFS_SETUP_ERROR", 5034: "IO_DISABLED", 5036: "GPU_MEMORY_PINNING_FAILED",
    5044: "IO_ERROR", 5047: "INVALID_CONTEXT_ERROR", 5048: "NVFS_INTERNAL_DRIVER_ERROR",
}  # fmt: skip


class _Status(ctypes.Structure):
    _fields_ = [("err", ctypes.c_int), ("cu_err", ctypes.c_int)]


class CufileDescr(ctypes.Structure):
    """CUfileDescr_t, cufile.h: an enum, a union of a descriptor and a pointer, and a pointer."""

    _fields_ = [("type", ctypes.c_int), ("handle", ctypes.c_void_p), ("fs_ops", ctypes.c_void_p)]


class _RefusedError(Exception):
    """Why the probe ends here; caught in this module."""

    def __init__(self, status: str, reason: str, error: str = "") -> None:
        super().__init__(reason)
        self.status, self.error = status, error


class _Found(dict[str, Any]):
    """The attributes of `CufileProbe` that are known so far."""

    def __init__(self, output: int) -> None:
        super().__init__()
        self._output = output

    def enter(self, stage: str) -> None:
        """Begin a stage, and answer what is known before it: the stage may hang or crash."""
        self["stage"] = stage
        write_answer(self._output, self)


def _probe(path: str, device: str, found: _Found) -> None:
    found.enter("library")
    bindings, library = _load(found)
    found.enter("cuda")
    buffer = _allocate(device, found)
    found.enter("driver-open")
    if bindings is not None:
        bindings.set_stats_level(3)
    start = time.monotonic()
    _check(library.cuFileDriverOpen(), "cuFile's driver cannot be opened")
    found["open_s"] = time.monotonic() - start
    if bindings is not None:
        bindings.stats_start()
    found.enter("register")
    fd = _open(path)
    handle, descr = ctypes.c_void_p(), CufileDescr(1, fd, None)  # 1: CU_FILE_HANDLE_TYPE_OPAQUE_FD
    _check(
        library.cuFileHandleRegister(ctypes.byref(handle), ctypes.byref(descr)),
        "the file cannot be registered",
    )
    found["registered"] = True
    if buffer is None:
        raise _RefusedError("failed", "there is no CUDA device to read into; driver and file were tried, and work")
    found.enter("read")
    before = {} if bindings is None else reads_by_path(bindings)
    _read(library, handle, path, buffer, found)
    after = {} if bindings is None else reads_by_path(bindings)
    for name, count in after.items():
        found[name] = max(count - before[name], 0)
    found["reason"] = "a read was made and its bytes are right"
    if bindings is not None:
        found.enter("batch")
        found["batches"] = _reads_batches(bindings, handle, path, buffer)


def _load(found: _Found) -> tuple[Any, ctypes.CDLL]:
    """The bindings that read counters (None without them), and the library, loaded once for both."""
    bindings: Any = None
    trouble = ""
    try:
        from cuda.bindings import cufile

        cufile.get_version()  # loads the library
        bindings = cufile
    except Exception as error:
        trouble = f"{type(error).__name__}: {error}"
    candidates = [] if bindings is None else _loaded()
    candidates += [library.path for library in find_libraries(Tree(), os.environ, sys.path)]
    for candidate in [*candidates, "libcufile.so.0"]:
        try:
            library = ctypes.CDLL(candidate)
            version = ctypes.c_int()
            for name in ("cuFileGetVersion", "cuFileDriverOpen", "cuFileHandleRegister"):
                getattr(library, name).restype = _Status
            library.cuFileRead.restype = ctypes.c_ssize_t
            library.cuFileGetVersion(ctypes.byref(version))
        except (OSError, AttributeError) as error:
            trouble = trouble or str(error)
            continue
        found["library"] = (_loaded() or [candidate])[0]
        # 1151 is 1.15.1: thousands, tens, and a digit.
        found["version"] = f"{version.value // 1000}.{version.value % 1000 // 10}.{version.value % 10}"
        return bindings, library
    raise _RefusedError("missing", f"libcufile cannot be loaded: {trouble}"[:500])


def _loaded() -> list[str]:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = [line.split(maxsplit=5)[-1].strip() for line in maps if "/libcufile.so" in line]
    return list(dict.fromkeys(paths))[:1]


def _allocate(device: str, found: _Found) -> Any:
    """A buffer on the device; so CUDA is in use before cuFile is opened, as cuFile requires. None without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        if torch.device(device).index is not None:
            torch.cuda.set_device(torch.device(device))
        found["gpu"] = torch.cuda.get_device_name()
        buffer = torch.zeros(_BUFFER_BYTES, dtype=torch.uint8, device=device)
        torch.cuda.synchronize()
    except Exception as error:
        raise _RefusedError("failed", f"{device} cannot be used: {error}"[:500]) from None
    return buffer


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # cuFile itself reports what it can do then
        except OSError as error:
            raise _RefusedError("failed", f"{path} cannot be opened: {error.strerror}") from None


def _read(library: ctypes.CDLL, handle: ctypes.c_void_p, path: str, buffer: Any, found: _Found) -> None:
    import torch

    with open(path, "rb") as file:
        expected = file.read(_READ_BYTES)
    if len(expected) >= _BLOCK_BYTES:
        # cuFile reads a partial block by another path, which says nothing about DMA.
        expected = expected[: len(expected) // _BLOCK_BYTES * _BLOCK_BYTES]
    address, size = ctypes.c_void_p(buffer.data_ptr()), ctypes.c_size_t(len(expected))
    count = library.cuFileRead(handle, address, size, ctypes.c_longlong(0), ctypes.c_longlong(0))
    if count < -_BASE_ERROR:
        name = _ERRORS.get(-count, str(-count))
        raise _RefusedError("failed", f"cuFile cannot read the file: {name}", name)
    if count < 0:
        # cufile.h: -1 means that errno is set; ctypes has lost it by now.
        raise _RefusedError("failed", f"cuFile cannot read the file: it returned {count}")
    torch.cuda.synchronize()
    if bytes(buffer[:count].cpu().numpy()) != expected[:count] or count != len(expected):
        raise _RefusedError("failed", f"cuFile read {count} bytes of {len(expected)}, or other bytes than the file's")
    found["read_bytes"] = count


def _reads_batches(bindings: Any, handle: ctypes.c_void_p, path: str, buffer: Any) -> bool:
    """Return whether cuFile makes several batches of reads at once, of which all bytes are right.

    Blocks of the file are read in another order than they have there, again and again.
    """
    import torch

    from gdsload.system.cufile_batches import CufileBatches

    with open(path, "rb") as file:
        whole = np.frombuffer(file.read(_READ_BYTES), np.uint8)
    blocks = len(whole) // _BLOCK_BYTES
    if not blocks:
        return False
    buffer.zero_()
    torch.cuda.synchronize()
    chosen = np.arange(_BATCHED_READS) * 7 % blocks
    same = np.ones(_BATCHED_READS, np.int64)
    try:
        batches = CufileBatches(bindings)
        positions = np.arange(_BATCHED_READS) * _BLOCK_BYTES
        done = batches.read(
            same * ctypes.c_int64(handle.value or 0).value, same * buffer.data_ptr(), positions, same * _BLOCK_BYTES,
            chosen * _BLOCK_BYTES,
        )  # fmt: skip
    except Exception:
        return False
    torch.cuda.synchronize()
    read = buffer[: _BATCHED_READS * _BLOCK_BYTES].cpu().numpy().reshape(_BATCHED_READS, _BLOCK_BYTES)
    expected = whole[: blocks * _BLOCK_BYTES].reshape(blocks, _BLOCK_BYTES)[chosen]
    return bool((done == _BLOCK_BYTES).all()) and np.array_equal(read, expected)


def reads_by_path(bindings: Any) -> dict[str, int]:
    """Reads that cuFile has counted in this process, over all GPUs, by the attributes of `CufileProbe`."""
    level = bindings.StatsLevel3()
    bindings.get_stats_l3(level.ptr)
    gpus = [level.per_gpu_stats[index] for index in range(len(level.per_gpu_stats))]
    return {reads: sum(int(getattr(gpu, f"n_{reads}")) for gpu in gpus) for reads in PATHS.values()}


def _check(status: _Status, what: str) -> None:
    if status.err:
        name = _ERRORS.get(status.err, str(status.err))
        cuda = f", CUDA error {status.cu_err}" if status.cu_err else ""
        raise _RefusedError("failed", f"{what}: {name} ({status.err}{cuda})", name)


def main(arguments: list[str]) -> None:
    """Probe, print and exit without any cleanup: closing cuFile can hang, too."""
    file, device = arguments
    output = take_output()
    found = _Found(output)
    try:
        _probe(file, device, found)
        found |= {"status": "ok", "stage": "done"}
    except _RefusedError as refusal:
        found |= {"status": refusal.status, "reason": str(refusal), "error": refusal.error}
    except Exception as error:
        found |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:500]}
    write_answer(output, found)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
