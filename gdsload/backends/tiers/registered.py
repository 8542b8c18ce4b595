"""The tier of shards whose pages are registered with CUDA: the GPU reads them out of the page cache by itself.

Its thread finds shards that can be registered, so that no batch waits for that: until a shard is registered, the other
backend reads its resident pages. So an epoch that fills the page cache is followed by one that reads from it.
"""

from __future__ import annotations

import os
from contextlib import suppress

import numpy as np
import torch

from gdsload.backends.base import Backend
from gdsload.backends.mapped import MappedBackend
from gdsload.backends.tiers.tiered import Filling
from gdsload.shards.files import Files
from gdsload.shards.page_cache import file_is_resident
from gdsload.system.numa import processors_near, stay_on

__all__ = ["RegisteredTier"]

_FILL_BYTES = 4 * 2**20
_LOOK_EVERY_S = 0.25
"""Seconds between checks of shards that were not resident the last time: 32 reads of a byte each."""


class RegisteredTier(MappedBackend):
    """Shards that are resident and registered.

    Args:
        files: the shards, mapped.
        device: the GPU.
        register_bytes: bytes of files that may be registered at once; none is evicted for another.
        read_in: whether shards are read into the page cache to be registered, as far as the budget allows.
    """

    thread = "gdsload-register"

    def __init__(self, files: Files, device: torch.device, *, register_bytes: int, read_in: bool = False) -> None:
        super().__init__(files, device, register_bytes=register_bytes)
        self.ready = self.registered
        self._read_in = read_in

    def fill(self, _far: Backend, filling: Filling) -> None:
        """See `Near.fill`."""
        stay_on(processors_near(self.device))  # what it reads into the page cache lies where it runs
        while not filling.over:
            filling.wait()
            for file in np.flatnonzero(filling.wanted & self.files.opened & ~self.ready).tolist():
                if filling.over or self.trouble:
                    return
                with suppress(Exception):  # an error of a file is raised where it is read
                    if file_is_resident(self.files, file) or self._filled(file, filling):
                        self.trouble = self.try_register(file)
                filling.wanted[file] = False
            filling.pause(_LOOK_EVERY_S)

    def _filled(self, file: int, filling: Filling) -> bool:
        """Read a shard into the page cache, if that is wanted and the budget has room for it."""
        if not self._read_in or not self.has_room(file):
            return False
        scratch = memoryview(bytearray(_FILL_BYTES))
        with self.files.descriptor(file) as fd:
            for offset in range(0, self.files.length(file), _FILL_BYTES):
                if filling.over:
                    return False
                os.preadv(fd, [scratch], offset)
        return True
