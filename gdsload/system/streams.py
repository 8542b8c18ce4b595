"""CUDA beyond torch for the GPU paths: side streams, registrations of host memory, plain memory.

CUDA is reached through torch, so that there is one runtime and one primary context for each device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import lru_cache
from typing import Any

import torch

from gdsload.errors import BudgetError
from gdsload.system.pool import Pool
from gdsload.system.units import format_bytes

_PORTABLE = 1  # cudaHostRegisterPortable, driver_types.h
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # noqa: SLF001  (see `stream_handle`)
_READ_ONLY = 8  # cudaHostRegisterReadOnly, likewise
_plain: dict[int, int] = {}
_pinned: dict[int, int] = {}
"""Bytes of plain and of pinned memory that the process holds, by address."""


def has_streams(device: torch.device) -> bool:
    """Return whether several threads may queue work on a device, each beside the others'.

    MPS has one stream, and crashes if two threads use it at once (torch 2.14). Others are not known.
    """
    return device.type == "cuda"


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream for the loader: it does not wait for the default stream, and has a higher priority than others."""
    return torch.cuda.Stream(device, priority=-1)


def stream_handle(device: torch.device) -> int:
    """CUDA's handle of the stream that is current for torch."""
    # The public call creates an object each time, which takes longer than queueing a kernel should.
    if _raw_stream is not None and device.index is not None:
        return int(_raw_stream(device.index))
    return torch.cuda.current_stream(device).cuda_stream


def current_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that is current for torch, or another object for the same one, to queue on or to wait for."""
    if device.index is None:
        return torch.cuda.current_stream(device)
    return _with_handle(stream_handle(device), device.index)


@lru_cache(maxsize=64)
def _with_handle(_handle: int, index: int) -> torch.cuda.Stream:
    """The stream that is current on a device and has that handle. Torch's own call creates an object each time."""
    return torch.cuda.current_stream(index)


class _On:
    """See `on`."""

    def __init__(self, stream: torch.cuda.Stream, before: torch.cuda.Stream) -> None:
        self._stream, self._before = stream, before

    def __enter__(self) -> None:
        torch.cuda.set_stream(self._stream)

    def __exit__(self, *_error: object) -> None:
        torch.cuda.set_stream(self._before)


@contextmanager
def _elsewhere(stream: torch.cuda.Stream) -> Iterator[None]:
    """As `on`, where another device is current: which has no context yet in many a thread, and is not to get one.

    `torch.cuda.stream` would make a stream of that device current again, and so begin a context on it: some hundred MiB
    of the first GPU for each process that uses another one.
    """
    with torch.cuda.device(stream.device), _On(stream, torch.cuda.current_stream(stream.device)):
        yield


def on(stream: torch.cuda.Stream) -> AbstractContextManager[object]:
    """Have torch queue on a stream, as by `torch.cuda.stream`, which takes several times as long to enter."""
    if torch.cuda.current_device() != stream.device_index:
        return _elsewhere(stream)
    return _On(stream, torch.cuda.current_stream(stream.device))  # that very object: it becomes current again


def new_event() -> torch.cuda.Event:
    """An event. A thread that waits for it sleeps: spinning costs a processor."""
    return torch.cuda.Event(blocking=True)


def record(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """An event after all that is queued on `stream`."""
    event = new_event()
    event.record(stream)
    return event


def register_host(device: torch.device, address: int, nbytes: int, *, read_only: bool = False) -> str:
    """Pin host memory and let all GPUs access it at its own address; returns an error's text, or an empty one.

    Pages of a file that is mapped read-only can only be registered read-only.
    """
    trouble = _runtime(device, "cudaHostRegister", address, nbytes, _PORTABLE | (_READ_ONLY if read_only else 0))
    if not trouble and not read_only:
        _pinned[address] = nbytes
    return trouble


def unregister_host(device: torch.device, address: int) -> str:
    """Remove a registration. No GPU may be using the memory."""
    _pinned.pop(address, None)
    return _runtime(device, "cudaHostUnregister", address)


def _runtime(device: torch.device, name: str, *arguments: int) -> str:
    """Call CUDA's runtime in a separate thread.

    CUDA remembers a failure for each thread, and torch, which asks after each kernel, would raise it at the next one.
    """
    found: list[str] = []

    def call() -> None:
        try:
            with torch.cuda.device(device):
                runtime: Any = torch.cuda.cudart()
                code = int(getattr(runtime, name)(*arguments))
                found.append(f"{name}: {_text(runtime, code)} ({code})" if code else "")
        except Exception as error:
            found.append(f"{name}: {error}")

    try:
        with closing(Pool(1, "gdsload-cuda")) as pool:  # Ctrl-C waits for it: the caller may undo it
            pool.run([call]).wait()
    except RuntimeError:  # at the interpreter's end there are no new threads; nor are there kernels that could fail
        call()
    except BaseException:
        if not found:  # Ctrl-C came before it had begun
            call()
        raise
    return found[0]


def _text(runtime: Any, code: int) -> str:
    try:
        return str(runtime.cudaGetErrorString(runtime.cudaError(code)))
    except Exception:
        return "CUDA error"


def allocate(device: torch.device, nbytes: int) -> int:
    """Plain memory of a device, aligned to at least 512 bytes, and not part of any pool.

    The target of DMA must be such memory: registering pins whole allocations, and pools move theirs.

    Raises:
        MemoryError: if none is left.
    """
    with torch.cuda.device(device):
        code, address = _bindings().cudaMalloc(nbytes)
    if int(code):
        raise MemoryError(f"cudaMalloc of {nbytes} bytes: {code}")
    _plain[int(address)] = nbytes
    return int(address)


def free(device: torch.device, address: int) -> None:
    """Free plain memory. The device must have ended all work on it."""
    _plain.pop(address, None)
    with torch.cuda.device(device):
        _bindings().cudaFree(address)


def held_bytes() -> tuple[int, int]:
    """Bytes that this process holds by `allocate`, and those of host memory that it has pinned by `register_host`."""
    return sum(_plain.copy().values()), sum(_pinned.copy().values())


def no_room(device: torch.device, what: str) -> BudgetError:
    """The error that a device has no memory left for `what`, which the loader needs."""
    available, total = torch.cuda.mem_get_info(device)
    return BudgetError(
        f"{device} has no memory left for {what}: {format_bytes(available)} of {format_bytes(total)} are free",
        remedy="Lower `batch_size`, or `memory=gdsload.Memory(prefetch=..., arena=...)`, or drop batches earlier.",
    )


@contextmanager
def room_for(what: str, device: torch.device) -> Iterator[None]:
    """The context in which torch takes memory of a device for `what`, which the loader needs.

    Raises:
        BudgetError: instead of torch's own error, if none is left.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise no_room(device, what) from None


def _bindings() -> Any:
    from cuda.bindings import runtime

    return runtime


class DeviceBytes:
    """Memory of a device at an address, for `torch.as_tensor`: a vector of integers of `unit` bytes."""

    def __init__(self, address: int, nbytes: int, unit: int = 1) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes // unit,),
            "typestr": f"<i{unit}" if unit > 1 else "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }
