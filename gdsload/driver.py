"""CUDA's driver, called without torch: for what many threads queue thousands of times a second.

To queue a copy and to record an event, torch gives the interpreter lock back and takes it again several times. Among a
dozen threads each time can mean to sleep and to be woken up, which takes longer than the copy.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Driver", "driver"]

IntArray = NDArray[np.int64]

_log = logging.getLogger("gdsload")

_NOT_READY = 600  # CUDA_ERROR_NOT_READY, cuda.h
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuStreamGetCtx": (ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)),
    "cuCtxSetCurrent": (ctypes.c_void_p,),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_int),
    "cuMemcpyAsync": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p),
    "cuMemcpyHtoDAsync_v2": (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
    "cuEventRecord": (ctypes.c_void_p, ctypes.c_void_p),
    "cuEventQuery": (ctypes.c_void_p,),
    "cuGetErrorString": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
}
_MANY = {
    "cuMemcpyBatchAsync_v2": False,  # CUDA 13.0
    "cuMemcpyBatchAsync": True,  # 12.8
}
"""The forms of the call that queues many copies, and whether it also says, before the stream, which of them failed."""


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes, cuda.h: when sources are read, and hints about both sides, which are left out."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source", ctypes.c_int * 2),
        ("target", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


_IN_STREAM_ORDER = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
_DOMAIN = 10  # CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN, of CUDA 12.0
_Value = ctypes.c_int * 16  # CUstreamAttrValue: 64 bytes, of which a domain is the first four
_DEFAULT, _REMOTE = _Value(0), _Value(1)  # CU_LAUNCH_MEM_SYNC_DOMAIN_*


class Driver:
    """The calls. Streams and events are torch's: their handles are what the driver knows them by.

    All raise RuntimeError with the driver's own text if it refuses, or if something that was queued before has failed.

    Args:
        library: the driver's library, as ctypes opened it.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, arguments in _SIGNATURES.items():
            getattr(library, name).argtypes = arguments
        self._copy, self._record = library.cuMemcpyHtoDAsync_v2, library.cuEventRecord
        self._query, self._copy_any = library.cuEventQuery, library.cuMemcpyAsync
        self._many = next((name for name in _MANY if hasattr(library, name)), None)
        self._attributes, self._index = _Attributes(_IN_STREAM_ORDER), ctypes.c_size_t(0)
        self._primary: dict[int, int] = {}
        self._has_domains = hasattr(library, "cuStreamSetAttribute")

    def context(self, stream: torch.cuda.Stream) -> int:
        """The context of a stream."""
        found = ctypes.c_void_p()
        self._call("cuStreamGetCtx", stream.cuda_stream, ctypes.byref(found))
        return found.value or 0

    def enter(self, context: int) -> None:
        """Make a context this thread's. A thread that has never called torch has none."""
        self._call("cuCtxSetCurrent", context)

    def enter_device(self, device: int) -> None:
        """Make the context of a device, which is torch's current one, this thread's: it may have none yet."""
        context = self._primary.get(device)
        if context is None:
            found = ctypes.c_void_p()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(found), device)  # never let go: it is torch's, too
            context = self._primary[device] = found.value or 0
        self.enter(context)

    def copy_any(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy to the device, from wherever: its own memory, or host memory that is registered."""
        if code := self._copy_any(target, source, nbytes, stream):
            raise self._error("cuMemcpyAsync", code)

    @property
    def copies_many(self) -> bool:
        """Whether there is a call for many copies."""
        return self._many is not None

    def copy_many(self, targets: IntArray, sources: IntArray, nbytes: IntArray, stream: int) -> bool:
        """Queue many copies by one call, which are made in any order, and at once; as `copy_any` otherwise.

        Returns:
            Whether they were queued. If not, `copy_any` does it, or says what the matter is. A call that was refused
            once is not made again.
        """
        if self._many is None or not stream:  # the legacy default stream is not for it
            return False
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (targets, sources, nbytes)]
        attributes = ctypes.byref(self._attributes), ctypes.byref(self._index), ctypes.c_size_t(1)
        failed = (ctypes.byref(ctypes.c_size_t()),) if _MANY[self._many] else ()
        call = getattr(self._library, self._many)
        code = call(*pointers, ctypes.c_size_t(len(targets)), *attributes, *failed, ctypes.c_void_p(stream))
        if code:
            _log.warning("copies are queued one by one from now on: %s", self._error(self._many, code))
            self._many = None
        return not code

    @contextmanager
    def remote(self, stream: int) -> Iterator[None]:
        """Launch kernels that read beyond the device's memory: those of the default domain do not wait for that.

        At its end each kernel makes sure that what it wrote can be seen by all, which takes as long as whatever of its
        memory synchronization domain is under way anywhere on the GPU: microseconds, if that is a read over the link.
        GPUs have several domains from compute capability 9.0 on; on others, and with a driver older than CUDA 12, there
        is one (CUDA Programming Guide, Memory Synchronization Domains).
        """
        self._set_domain(stream, _REMOTE)
        try:
            yield
        finally:
            self._set_domain(stream, _DEFAULT)  # the stream is one of torch's, which hands out each several times

    def _set_domain(self, stream: int, domain: Any) -> None:
        if self._has_domains and stream:  # the legacy default stream is the user's
            code = self._library.cuStreamSetAttribute(ctypes.c_void_p(stream), _DOMAIN, ctypes.byref(domain))
            self._has_domains = not code

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy from pinned memory to the device."""
        if code := self._copy(target, source, nbytes, stream):
            raise self._error("cuMemcpyHtoDAsync_v2", code)

    def record(self, event: int, stream: int) -> None:
        """Record an event behind what is queued."""
        if code := self._record(event, stream):
            raise self._error("cuEventRecord", code)

    def is_past(self, event: int) -> bool:
        """Whether an event is past; never waits."""
        code = self._query(event)
        if code not in (0, _NOT_READY):
            raise self._error("cuEventQuery", code)
        return not code

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise self._error(name, code)

    def _error(self, name: str, code: int) -> RuntimeError:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return RuntimeError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")


@cache
def driver() -> Driver | None:
    """CUDA's driver; None where torch has another one, as with ROCm."""
    if torch.version.cuda is None:
        return None
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))
    except (OSError, AttributeError):  # not there, or older than what is called
        return None
