"""The attributes of a loader that say how it goes: counts, backend, caches, and what limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdsload.backends.base import BackendStatus, CacheStatus
from gdsload.engine.stats import LoaderStats, Observer
from gdsload.loader.diagnosis import Diagnosis

if TYPE_CHECKING:
    from gdsload.loader.life import Life


class Watched:
    """The part of `DataLoader` that is asked how it goes."""

    _life: Life

    @property
    def stats(self) -> LoaderStats:
        """The counts of this loader since it was made: always the same object, brought up to date."""
        return self._life.settled()

    @property
    def epoch_stats(self) -> LoaderStats:
        """The counts of `stats` since the newest epoch began; of one that is over, until the next begins.

        As text they are one line, which the logger "gdsload" gets at the end of each epoch, at level INFO.
        """
        return self._life.epoch_stats

    @property
    def backend(self) -> BackendStatus:
        """The backend in use, the reason, and the bytes it has moved, by path."""
        return self._life.backend

    @property
    def cache(self) -> CacheStatus:
        """The caches in VRAM and in the page cache: their budgets, the bytes kept, and the bytes read from them."""
        return self._life.cache

    def observe(self, observer: Observer) -> None:
        """Call an observer, too, at each batch, group of batches and retry from now on; a copy of the loader does not.

        One that raises an error is not called again, and the log says so.
        """
        self._life.observe(observer)

    def diagnose(self) -> Diagnosis:
        """Say what limits this loop, by what was counted in the newest epoch, or since the loader was made: print it."""
        return self._life.diagnosed()
