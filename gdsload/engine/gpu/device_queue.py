"""A device as batches come to it: made on a stream beside the consumer's, and handed over to the consumer's.

The memory of a batch belongs to the stream that it is made on. If it belonged to the consumer's, what makes it would
have to wait for all that is queued there. So the hand-over is called for all batches: it records in the allocator that
the consumer's stream uses them, too. Otherwise memory that the user has dropped would be overwritten while the
consumer's kernels still read it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from gdsload.engine.gpu.plain_tensors import tensors_of
from gdsload.system.streams import current_stream, new_event, on, record, room_for, side_stream

_EVENTS = 8
"""Events within the bytes that may be pending: one for each batch would take longer than its hand-over."""


class DeviceQueue:
    """The streams that batches are made and transformed on, and their hand-over to the consumer's.

    Args:
        pending_bytes: bytes of batches that were dropped while the device may still be reading them.
        budget: what the user may lower, for the error when its memory runs out.
    """

    def __init__(self, device: torch.device, *, pending_bytes: int = 2**28, budget: str = "") -> None:
        self.device, self.stream = device, side_stream(device)
        self._transforms = side_stream(device)  # of their own: bytes arrive while batches are transformed
        self._what, self._pending_bytes = f"a group of batches ({budget})", pending_bytes
        self._pending: deque[tuple[torch.cuda.Event, int]] = deque()
        self._spare: list[torch.cuda.Event] = []
        self._bytes = self._dropped = 0
        self._lock = threading.RLock()  # several threads may iterate over epochs of one loader

    def room(self) -> AbstractContextManager[object]:
        """The context in which memory for batches is taken; see `room_for`."""
        return room_for(self._what, self.device)

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor in CPU memory, queued on the current stream. What is pinned must stay until it has ended.

        What is not is pinned here: torch keeps it until then.
        """
        return tensor.pin_memory().to(self.device, non_blocking=True, copy=True)

    @contextmanager
    def making(self) -> Iterator[None]:
        """The context in which batches are made: what is queued there has ended when it is left.

        Raises:
            BudgetError: if the device has no memory left.
        """
        with self.room(), to_its_end(self.stream):
            yield

    @contextmanager
    def transforming(self, batches: Sequence[Any], after: torch.cuda.Event | None = None) -> Iterator[None]:
        """The context in which batches are transformed, after an event: all queued there has ended when it is left."""
        stream = self._transforms
        if after is not None:
            stream.wait_event(after)
        # Their memory belongs to the other stream, and is freed while this one runs.
        hand_over(batches, stream)
        with to_its_end(stream):
            yield

    def follow(self) -> None:
        """Order what is queued from now on after what the calling thread has queued."""
        for stream in (self.stream, self._transforms):
            stream.wait_stream(current_stream(self.device))

    def hand_over(self, batches: Sequence[Any]) -> Callable[[Any], Any]:
        """A function that hands over the batches of a group, one at each call and in order, to the current stream.

        At the first call, until which all are held, their memory is recorded for its stream: the allocator is asked
        once for what they share.
        """
        ahead, nbytes = list(batches), deque[int]()
        recorded_for: int | None = None

        def give(batch: Any) -> Any:
            nonlocal recorded_for
            stream = current_stream(self.device)
            if ahead:
                known = dict[int, bool]()
                nbytes.extend([hand_over(one, stream, known) for one in ahead])
                ahead.clear()
                # Of another device the current stream may be another one each time.
                recorded_for = stream.stream_id if all(known.values()) else None
            elif stream.stream_id != recorded_for:
                hand_over(batch, stream)
            self.throttle(stream, nbytes.popleft())
            return batch

        return give

    def throttle(self, stream: torch.cuda.Stream, nbytes: int) -> None:
        """Note that a stream gets a batch of so many bytes, and wait while too much is pending.

        The memory of a dropped batch cannot be used again before the kernels that were queued to read it have run. A
        consumer that queues without ever waiting would make the loader allocate ever more.
        """
        # Each batch costs this, even where a training step is bound by launches: no object is created.
        past: list[torch.cuda.Event] = []
        with self._lock:
            if self._dropped * _EVENTS >= max(self._pending_bytes, 1):
                # As a rule the last batch is not used any more: all that reads it has been queued.
                event = self._spare.pop() if self._spare else new_event()
                event.record(stream)
                self._pending.append((event, self._dropped))
                self._bytes, self._dropped = self._bytes + self._dropped, 0
            while self._pending and self._bytes + self._dropped > self._pending_bytes:
                event, pending = self._pending.popleft()
                past.append(event)
                self._bytes -= pending
            self._dropped += nbytes
        for event in past:  # without the lock: another thread may have to queue what it waits for
            event.synchronize()
            self._spare.append(event)


@contextmanager
def to_its_end(stream: torch.cuda.Stream) -> Iterator[None]:
    """The context in which work is queued on a stream: all of it has ended when it is left."""
    with on(stream):
        try:
            yield
        finally:
            # No memory that is read from may be released before, even after an error.
            record(stream).synchronize()


def hand_over(batch: Any, stream: torch.cuda.Stream, known: dict[int, bool] | None = None) -> int:
    """Let a stream use a finished batch; for tensors of other devices, the stream current there. Returns its bytes.

    `known` has addresses of memory that is not recorded again, as it is still held, and whether it is of the stream's
    device; more is added.
    """
    nbytes, index, begin, end = 0, stream.device_index, 0, 0
    known = {} if known is None else known
    for tensor in tensors_of(batch):
        nbytes += tensor.nbytes
        # The allocator notes it for memory, not for tensors, and packed fields and small batches share some.
        if tensor.is_cuda and not begin <= tensor.data_ptr() < end:
            memory = tensor.untyped_storage()
            begin, end = memory.data_ptr(), memory.data_ptr() + memory.nbytes()
            if begin not in known:
                known[begin] = here = tensor.get_device() == index
                user = stream if here else torch.accelerator.current_stream(tensor.device)
                recordable(tensor).record_stream(user)
    return nbytes


def recordable(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in the same memory for which torch records a stream.

    Of a conjugate or negative view, whose numbers are not those in memory, it would record it for a copy, and fail.
    """
    if not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
