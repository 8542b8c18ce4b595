"""The tier of shards whose pages are registered with CUDA: the GPU reads them out of the page cache by itself.

Its thread registers shards that are in memory, so that no batch waits for that: until then, the other backend reads
them. It also has the shards read that the page cache keeps, so that the epoch after the first one is gathered by the
GPU.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.backends.base import Backend
from gdsload.backends.keep import AFTER_S, keep, resides
from gdsload.backends.mapped import MappedBackend
from gdsload.backends.tiers.tiered import Over
from gdsload.shards.files import Files
from gdsload.system.mapped_rate import slow_pages
from gdsload.system.numa import processors_near, stay_on
from gdsload.system.streams import unregister_host

_LOOK_EVERY_S = 0.25
"""Seconds between checks of shards that were not resident the last time: 32 reads of a byte each."""


class RegisteredTier(MappedBackend):
    """Shards that are resident and registered.

    Args:
        files: the shards, mapped. Those that the page cache keeps are read into it.
        register_bytes: bytes of files that may be registered at once; none is evicted for another.
        at_once: shards that are read whole at once; 0: none, and those are registered of which batches wanted all.
    """

    thread = "gdsload-register"

    def __init__(self, files: Files, device: torch.device, *, register_bytes: int, at_once: int) -> None:
        super().__init__(files, device, register_bytes=register_bytes)
        self.at_once = at_once
        self.ready = self.registered
        self._kept = False  # whether the shards that the page cache keeps were read
        self._measured = False

    def _pin(self, file: int) -> str:
        """Register a shard. The first one stays registered only if the GPU copies it fast enough."""
        trouble = super()._pin(file)
        if trouble or self._measured:
            return trouble
        self._measured, address = True, int(self.files.base[file])
        try:
            trouble = slow_pages(self.device, address, self.files.length(file))
        except BaseException:
            unregister_host(self.device, address)
            raise
        if trouble:
            unregister_host(self.device, address)
        return trouble

    def fill(self, _far: Backend, wanted: NDArray[np.bool_], over: Over) -> None:
        near = processors_near(self.device)
        stay_on(near)  # pages that are read into the page cache are in the memory of the processor that reads them
        if self.at_once and self.files.kept.any() and not self._kept:
            self._kept, first = True, int(wanted.argmax())
            self.trouble = keep(
                self.files,
                first,
                at_once=self.at_once,
                over=over,
                after_s=AFTER_S,
                then=self.try_register,
                processors=near,
            )
        while len(looked := np.flatnonzero(wanted & self.files.opened & ~self.ready)):
            for file in looked.tolist():
                if over(0) or self.trouble:
                    return
                if resides(self.files, file):
                    with suppress(Exception):  # an error of a file is raised where it is read
                        self.trouble = self.try_register(file)
                wanted[file] = False
            if over(_LOOK_EVERY_S):
                return
