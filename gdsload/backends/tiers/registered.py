"""The tier of shards whose pages are registered with CUDA: the GPU reads them out of the page cache by itself.

Its thread registers shards that are in memory, so that no batch waits for that: until then, the other backend reads
them. Shards that the page cache keeps for later epochs are read whole while the first epoch reads, and most of a
drive's time goes to that. Each page is read once, by whichever comes first. So the first epoch takes as long as it
takes to read the dataset in sequence, whatever its order, and the next one has all shards registered.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from functools import partial

import numpy as np
import torch

from gdsload.backends.base import Backend
from gdsload.backends.mapped import MappedBackend, registered_in_process
from gdsload.backends.readers import Readers, Reading
from gdsload.backends.tiers.tiered import Filling
from gdsload.errors import LoaderClosedError
from gdsload.shards.files import Files
from gdsload.shards.page_cache import file_is_resident
from gdsload.system.numa import processors_near, stay_on
from gdsload.system.probe.tree import Tree
from gdsload.system.ram import memory_room

__all__ = ["RegisteredTier"]

_READ_BYTES, _AT_ONCE = 4 * 2**20, 4
"""Bytes of a read, and shards that are read at once: each in order, as the kernel reads ahead of that."""
_AFTER_S = 0.2
"""Seconds from the first read of the loader until whole shards are read: its first batches should not wait for that."""
_LOOK_EVERY_S = 0.25
"""Seconds between checks of shards that were not resident the last time: 32 reads of a byte each."""
_SPARE = 0.1
"""Share of the memory that was free at the start which is left free, whoever took the rest."""


class RegisteredTier(MappedBackend):
    """Shards that are resident and registered.

    Args:
        files: the shards, mapped. Those that the page cache keeps are read into it.
        device: the GPU.
        register_bytes: bytes of files that may be registered at once; none is evicted for another.
    """

    thread = "gdsload-register"

    def __init__(self, files: Files, device: torch.device, *, register_bytes: int) -> None:
        super().__init__(files, device, register_bytes=register_bytes)
        self.ready = self.registered

    def fill(self, _far: Backend, filling: Filling) -> None:
        """See `Near.fill`."""
        near = processors_near(self.device)
        stay_on(near)  # pages that are read into the page cache are in the memory of the processor that reads them
        filling.wait()
        if self.files.kept.any():
            filling.pause(_AFTER_S)
            readers = Readers(_AT_ONCE, "gdsload-keep", near)
            try:
                self._keep(readers, filling)
            finally:
                readers.close()
        while not filling.over:
            for file in np.flatnonzero(filling.wanted & self.files.opened & ~self.ready).tolist():
                if filling.over or self.trouble:
                    return
                if self._resides(file):
                    with suppress(Exception):  # an error of a file is raised where it is read
                        self.trouble = self.try_register(file)
                filling.wanted[file] = False
            filling.pause(_LOOK_EVERY_S)
            filling.wait()

    def _keep(self, readers: Readers, filling: Filling) -> None:
        """Read the shards that are kept, and register them.

        The one that comes last after the first wanted one is read first: an epoch in order then has its own reads at
        the other end. What it has read itself is registered meanwhile.
        """
        spare, files = int(_SPARE * _room()), np.flatnonzero(self.files.kept & ~self.ready)
        pending = deque(np.roll(files, -int(files.searchsorted(filling.wanted.argmax()))).tolist())
        reading = deque[tuple[int, Reading]]()
        while (pending or reading) and not (filling.over or self.trouble):
            while pending and len(reading) < _AT_ONCE:
                file = pending.popleft() if self._resides(pending[0]) else pending.pop()
                if _room() < spare + self.files.sources[file].length():
                    self.files.kept &= self.ready
                    self.trouble = "the machine, or the control group, is short of memory"
                    return
                reading.append((file, readers.run([partial(self._read_in, file, filling)])))
            file, read = reading.popleft()
            with suppress(Exception):  # an error of a file is raised where it is read
                read.wait()
                self.trouble = self.try_register(file)

    def _read_in(self, file: int, filling: Filling) -> None:
        """Read a shard into the page cache."""
        self.files.ensure_open(np.array([file]))
        if self._resides(file):
            return
        memory = bytearray(_READ_BYTES)
        with self.files.descriptor(file) as fd:
            for offset in range(0, self.files.length(file), _READ_BYTES):
                if filling.over:
                    raise LoaderClosedError("the loader was closed")
                os.preadv(fd, [memory], offset)

    def _resides(self, file: int) -> bool:
        """Whether a shard is open and in memory."""
        with suppress(Exception):
            return bool(self.files.opened[file]) and file_is_resident(self.files, file)
        return False


def _room() -> int:
    """Bytes that may still be taken, of which those registered by this process cannot be reclaimed."""
    room = memory_room(Tree())
    return (2**62 if room is None else room) - registered_in_process()
