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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gdsload.system.probe.process import write_answer
from gdsload.system.probe.result import PATHS

_BUFFER_BYTES = 16 * 2**20
"""From 10 MiB on torch's allocator makes a separate allocation: the buffer begins where the allocation does."""
_READ_BYTES = 2**20
_BLOCK_BYTES = 4096
_BATCHED_READS = 1000


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

    def enter(self, stage: str) -> None:
        """Begin a stage, and answer what is known before it: the stage may hang or crash."""
        self["stage"] = stage
        write_answer(self)


def _probe(path: str, device: str, found: _Found) -> None:
    found.enter("library")
    cufile = _load(found)
    found.enter("cuda")
    buffer = _allocate(device, found)
    found.enter("driver-open")
    cufile.set_stats_level(3)
    start = time.monotonic()
    with _named(cufile, "cuFile's driver cannot be opened"):
        cufile.driver_open()
    found["open_s"] = time.monotonic() - start
    cufile.stats_start()
    found.enter("register")
    descr = CufileDescr(int(cufile.FileHandleType.OPAQUE_FD), _open(path), None)
    with _named(cufile, "the file cannot be registered"):
        handle = int(cufile.handle_register(ctypes.addressof(descr)))
    found["registered"] = True
    if buffer is None:
        raise _RefusedError("failed", "there is no CUDA device to read into; driver and file were tried, and work")
    with open(path, "rb") as file:
        whole = file.read(_READ_BYTES)
    # cuFile reads a part of a block by another path, which says nothing about DMA.
    whole = whole[: len(whole) // _BLOCK_BYTES * _BLOCK_BYTES] or whole
    found.enter("read")
    before = reads_by_path(cufile)
    _read(cufile, handle, whole, buffer, found)
    found |= {name: count - before[name] for name, count in reads_by_path(cufile).items()}
    found["reason"] = "a read was made and its bytes are right"
    found.enter("batch")
    found["batches"] = _reads_batches(cufile, handle, whole, buffer)


@contextmanager
def _named(cufile: Any, what: str) -> Iterator[None]:
    """The context in which an error of cuFile's is a refusal with the error's name."""
    try:
        yield
    except cufile.cuFileError as error:
        raise _RefusedError("failed", f"{what}: {error}"[:500], cufile.OpError(error.status).name) from None


def _load(found: _Found) -> Any:
    """The bindings, with the library that they have loaded."""
    try:
        from cuda.bindings import cufile

        version = cufile.get_version()
    except Exception as error:
        raise _RefusedError("missing", f"cuda.bindings cannot load libcufile: {error}"[:500]) from None
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        found["library"] = next((line.split(maxsplit=5)[-1].strip() for line in maps if "/libcufile.so" in line), "")
    # 1151 is 1.15.1: thousands, tens, and a digit.
    found["version"] = f"{version // 1000}.{version % 1000 // 10}.{version % 10}"
    return cufile


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
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # cuFile itself reports what it can do then


def _read(cufile: Any, handle: int, expected: bytes, buffer: Any, found: _Found) -> None:
    import torch

    with _named(cufile, "cuFile cannot read the file"):
        count = int(cufile.read(handle, buffer.data_ptr(), len(expected), 0, 0))
        if count < 0:
            raise cufile.cuFileError(-count)
    torch.cuda.synchronize()
    if count != len(expected) or bytes(buffer[:count].cpu().numpy()) != expected:
        raise _RefusedError("failed", f"cuFile read {count} bytes of {len(expected)}, or other bytes than the file's")
    found["read_bytes"] = count


def _reads_batches(cufile: Any, handle: int, whole: bytes, buffer: Any) -> bool:
    """Return whether cuFile makes several batches of reads at once, of which all bytes are right.

    Blocks of the file are read in another order than they have there, again and again.
    """
    import torch

    from gdsload.system.cufile_batches import CufileBatches

    blocks = len(whole) // _BLOCK_BYTES
    if not blocks:
        return False
    buffer.zero_()
    torch.cuda.synchronize()
    chosen = np.arange(_BATCHED_READS) * 7 % blocks
    same = np.ones(_BATCHED_READS, np.int64)
    positions = np.arange(_BATCHED_READS) * _BLOCK_BYTES
    try:
        done = CufileBatches(cufile).read(
            same * handle, same * buffer.data_ptr(), positions, same * _BLOCK_BYTES, chosen * _BLOCK_BYTES
        )
    except Exception:
        return False
    torch.cuda.synchronize()
    read = buffer[: _BATCHED_READS * _BLOCK_BYTES].cpu().numpy().reshape(_BATCHED_READS, _BLOCK_BYTES)
    expected = np.frombuffer(whole, np.uint8).reshape(blocks, _BLOCK_BYTES)[chosen]
    return bool((done == _BLOCK_BYTES).all()) and np.array_equal(read, expected)


def reads_by_path(cufile: Any) -> dict[str, int]:
    """Reads that cuFile has counted in this process, over all GPUs, by the attributes of `CufileProbe`."""
    level = cufile.StatsLevel3()
    cufile.get_stats_l3(level.ptr)
    gpus = [level.per_gpu_stats[index] for index in range(len(level.per_gpu_stats))]
    return {reads: sum(int(getattr(gpu, f"n_{reads}")) for gpu in gpus) for reads in PATHS.values()}


def main(arguments: list[str]) -> None:
    """Probe, print and exit without any cleanup: closing cuFile can hang, too."""
    file, device = arguments
    found = _Found()
    try:
        _probe(file, device, found)
        found |= {"status": "ok", "stage": "done"}
    except _RefusedError as refusal:
        found |= {"status": refusal.status, "reason": str(refusal), "error": refusal.error}
    except Exception as error:
        found |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:500]}
    write_answer(found)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
