"""One thread that copies pinned blocks to the device, for all readers.

Readers that called CUDA themselves would stand in line for its locks and the interpreter's, with the disk idle.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import NamedTuple

import torch

from gdsload.backends.readers import Reading
from gdsload.pinned import Block, PinnedRing
from gdsload.streams import side_stream

__all__ = ["Copier"]

_UNDER_WAY = 4
"""Copies that are queued at once: the link is never idle, and blocks come back soon."""


class _Copy(NamedTuple):
    """A block, the part of a slot that it is copied to, and whom to tell when it is there."""

    block: Block
    target: torch.Tensor
    reading: Reading


class Copier:
    """Copies blocks in the order in which they come, and gives them back.

    Args:
        ring: where blocks go back to.
        device: where they are copied to.
    """

    def __init__(self, ring: PinnedRing, device: torch.device) -> None:
        self.stream = side_stream(device)
        self._ring = ring
        self._queue: SimpleQueue[_Copy | None] = SimpleQueue()
        self._under_way: deque[tuple[_Copy, torch.cuda.Event]] = deque()
        self._events: list[torch.cuda.Event] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def copy(self, block: Block, target: torch.Tensor, reading: Reading) -> None:
        """Have the first bytes of a block copied to `target`; a part of `reading` has ended when they are there."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._serve, name="gdsload-copy", daemon=True)
                    thread.start()  # a reader does it, whom Ctrl-C does not strike
                    self._thread = thread  # now: one that could not be started would be waited for, for ever
        self._queue.put(_Copy(block, target, reading))

    def close(self) -> None:
        """Wait for all copies, and end the thread. Nobody may call `copy` any more."""
        thread = self._thread
        self._queue.put(None)
        if thread is not None and thread.is_alive():
            thread.join()

    def _serve(self) -> None:
        with torch.cuda.stream(self.stream):
            self._copy_all()

    def _copy_all(self) -> None:
        while True:
            try:
                job = self._queue.get_nowait()
            except Empty:
                self._reap(0)
                job = self._queue.get()
            if job is None:
                self._reap(0)
                return
            self._start(job)
            del job  # or the last slot's memory would be held until the next one comes
            self._reap(_UNDER_WAY)

    def _start(self, job: _Copy) -> None:
        try:
            job.target.copy_(job.block.tensor[: len(job.target)], non_blocking=True)
            event = self._events.pop() if self._events else torch.cuda.Event()
            event.record(self.stream)
            self._under_way.append((job, event))
        except BaseException as error:
            self._ring.give(job.block)
            job.reading.finish(error)

    def _reap(self, keep: int) -> None:
        """Wait until no more than `keep` copies are under way."""
        while len(self._under_way) > keep:
            job, event = self._under_way.popleft()
            try:
                wait_for(event)
            except BaseException as error:
                job.reading.finish(error)
            else:
                job.reading.finish()
                self._events.append(event)
            self._ring.give(job.block)


def wait_for(event: torch.cuda.Event) -> None:
    """Wait until an event is past, without the interpreter lock.

    It spins, which takes a processor while the link is busy, and no longer. Being woken up takes longer than a copy.
    """
    event.synchronize()
