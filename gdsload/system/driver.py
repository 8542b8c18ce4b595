"""CUDA's driver, called without torch: for what many threads queue thousands of times a second, and for kernels.

To queue a copy and to record an event, torch releases the interpreter lock and takes it again several times. Among a
dozen threads each time can mean sleeping and being woken up, which takes longer than the copy. Kernels are launched
with an attribute that cupy does not support, and by fewer calls than cupy makes.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch

from gdsload.system.arrays import IntArray

_log = logging.getLogger("gdsload")


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute, cuda.h: which one, and its value."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_ubyte * 64))


class _Launch(ctypes.Structure):
    """CUlaunchConfig, cuda.h."""

    _fields_ = (
        ("blocks", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("count", ctypes.c_uint),
    )


_NOT_READY = 600  # CUDA_ERROR_NOT_READY, cuda.h
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuDeviceGetAttribute": (ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int),
    "cuLaunchKernelEx": (ctypes.POINTER(_Launch), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p),
    "cuStreamGetCtx": (ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)),
    "cuCtxGetCurrent": (ctypes.POINTER(ctypes.c_void_p),),
    "cuCtxSetCurrent": (ctypes.c_void_p,),
    "cuCtxPushCurrent_v2": (ctypes.c_void_p,),
    "cuCtxPopCurrent_v2": (ctypes.POINTER(ctypes.c_void_p),),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_int),
    "cuMemcpyAsync": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p),
    "cuMemcpyHtoDAsync_v2": (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
    "cuEventRecord": (ctypes.c_void_p, ctypes.c_void_p),
    "cuEventQuery": (ctypes.c_void_p,),
    "cuGetErrorString": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
}
BATCH_CALLS = {
    "cuMemcpyBatchAsync_v2": False,  # CUDA 13.0
    "cuMemcpyBatchAsync": True,  # 12.8
}
"""The forms of the call that queues many copies, and whether one has, before the stream, an output for the copy that
failed."""

_MOST_COPIES = 256
"""Copies of one such call; longer calls are no faster. One of 5461 unaligned copies of 8 to 40 KB never ended, or ended
in a launch failure (an H200, driver 580.159). See also `system.copies.SHORT_BYTES`."""


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes, cuda.h: when sources are read, and hints about both sides, which are left out."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source", ctypes.c_int * 2),
        ("target", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


_IN_STREAM_ORDER = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM


_DOMAIN_COUNT = 126  # CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, of CUDA 12.0
_HOST_PAGE_TABLES = 100  # CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
_DOMAIN_MAP = 9  # CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
_LOADER_SYNC_DOMAIN = _LaunchAttribute(_DOMAIN_MAP, 0, (ctypes.c_ubyte * 64)(2, 1))
"""The domains of what is launched as "default" and as "remote": number 2 instead of 0, and 1 as always."""


class DriverError(RuntimeError):
    """A call of the driver was refused, or work that was queued before has failed."""


class Driver:
    """The calls. Streams and events are torch's: the driver is given their handles.

    All raise DriverError with the driver's own text if it refuses, or if work that was queued before has failed.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, arguments in _SIGNATURES.items():
            getattr(library, name).argtypes = arguments
        self._copy, self._record = library.cuMemcpyHtoDAsync_v2, library.cuEventRecord
        self._query, self._copy_any = library.cuEventQuery, library.cuMemcpyAsync
        self._launch = library.cuLaunchKernelEx
        self._many = next((name for name in BATCH_CALLS if hasattr(library, name)), None)
        self._attributes, self._index = _Attributes(_IN_STREAM_ORDER), ctypes.c_size_t(0)
        self._primary: dict[int, int] = {}
        self._has_own_domain: dict[int, bool] = {}  # for each device, whether it has a domain for the loader alone

    def context(self, stream: torch.cuda.Stream) -> int:
        """The context of a stream."""
        found = ctypes.c_void_p()
        self._call("cuStreamGetCtx", stream.cuda_stream, ctypes.byref(found))
        return found.value or 0

    def enter(self, context: int) -> None:
        """Make a context this thread's. A thread that has never called torch has none."""
        self._call("cuCtxSetCurrent", context)

    def inside(self, device: int) -> AbstractContextManager[None]:
        """Make torch's context of a device, which is torch's current one, the context of this thread.

        A thread without a context keeps it. A thread in another context, of the user's, gets that one back.
        """
        found = ctypes.c_void_p()
        context = self._primary.get(device)
        if context is None:
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(found), device)  # never released: it is torch's, too
            context = self._primary[device] = found.value or 0
        self._call("cuCtxGetCurrent", ctypes.byref(found))
        if found.value not in (None, context):
            return self._pushed(context)
        if found.value is None:
            self.enter(context)
        return nullcontext()

    @contextmanager
    def _pushed(self, context: int) -> Iterator[None]:
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def copy_any(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy to the device, from its own memory or from host memory that is registered."""
        if code := self._copy_any(target, source, nbytes, stream):
            raise self._error("cuMemcpyAsync", code)

    @property
    def copies_many(self) -> bool:
        """True if there is a call for many copies."""
        return self._many is not None

    def copy_many(self, targets: IntArray, sources: IntArray, nbytes: IntArray, stream: int) -> bool:
        """Queue many copies by few calls, which may run in any order and concurrently; otherwise as `copy_any`.

        Returns whether they were queued. If not, `copy_any` does it, with all of them, or raises what is wrong. A call
        that was refused once is not made again.
        """
        name = self._many  # another thread may be refused meanwhile
        if name is None or not stream:  # it does not take the legacy default stream
            return False
        attributes = ctypes.byref(self._attributes), ctypes.byref(self._index), ctypes.c_size_t(1)
        failed = (ctypes.byref(ctypes.c_size_t()),) if BATCH_CALLS[name] else ()
        call = getattr(self._library, name)
        for low in range(0, len(targets), _MOST_COPIES):
            some = [array[low : low + _MOST_COPIES] for array in (targets, sources, nbytes)]
            pointers = [ctypes.c_void_p(array.ctypes.data) for array in some]
            code = call(*pointers, ctypes.c_size_t(len(some[0])), *attributes, *failed, ctypes.c_void_p(stream))
            if code:
                _log.warning("copies are queued one by one from now on: %s", self._error(name, code))
                self._many = None
                return False
        return True

    def launch(
        self, function: int, grid: tuple[int, int], params: int, stream: int, *, own_sync_domain: int | None = None
    ) -> None:
        """Queue a kernel that takes one structure; the kernel's context must be this thread's.

        At its end each kernel makes its writes visible to all, which waits for all accesses of its memory
        synchronization domain under way anywhere on the GPU: microseconds, if one is a read over the link. GPUs have
        four domains from compute capability 9.0 on (CUDA Programming Guide, Memory Synchronization Domains): kernels
        are in the first one, and NCCL's in the second. Elsewhere all are in one.

        `grid` is blocks, and threads of each; `params` the address of the structure, which is read before this returns.
        `own_sync_domain` is the device's index, if the kernel reads beyond its memory: it is put into the third domain,
        if there is one, so that no other kernel waits for its reads.
        """
        blocks, threads = grid
        config = _Launch((blocks, 1, 1), (threads, 1, 1), 0, stream)
        if own_sync_domain is not None and self._has_third(own_sync_domain):
            config.attributes, config.count = ctypes.pointer(_LOADER_SYNC_DOMAIN), 1
        if code := self._launch(ctypes.byref(config), function, ctypes.byref(ctypes.c_void_p(params)), None):
            raise self._error("cuLaunchKernelEx", code)

    def _has_third(self, device: int) -> bool:
        """Return whether a device has a memory synchronization domain apart from torch's kernels' and NCCL's."""
        found = self._has_own_domain.get(device)
        if found is None:
            domains = self._attribute(_DOMAIN_COUNT, device)
            found = self._has_own_domain[device] = domains > _LOADER_SYNC_DOMAIN.value[0]
        return found

    def shares_page_tables(self, device: int) -> bool:
        """Return whether a device reads the CPU's memory by the CPU's page tables, as GH200 and GB10 do."""
        return bool(self._attribute(_HOST_PAGE_TABLES, device))

    def _attribute(self, number: int, device: int) -> int:
        """An attribute of a device; 0 where the driver is too old for it, as CUDA 11's for domains."""
        found = ctypes.c_int()
        code = self._library.cuDeviceGetAttribute(ctypes.byref(found), number, device)
        return 0 if code else found.value

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy from pinned memory to the device."""
        if code := self._copy(target, source, nbytes, stream):
            raise self._error("cuMemcpyHtoDAsync_v2", code)

    def record(self, event: int, stream: int) -> None:
        """Record an event after what is queued."""
        if code := self._record(event, stream):
            raise self._error("cuEventRecord", code)

    def is_past(self, event: int) -> bool:
        """Return whether an event is past; never waits."""
        code = self._query(event)
        if code not in (0, _NOT_READY):
            raise self._error("cuEventQuery", code)
        return not code

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise self._error(name, code)

    def _error(self, name: str, code: int) -> DriverError:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return DriverError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")


@cache
def driver() -> Driver | None:
    """CUDA's driver; None where torch has another one, as with ROCm."""
    if torch.version.cuda is None:
        return None
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))
    except (OSError, AttributeError):  # missing, or without one of the calls
        return None
