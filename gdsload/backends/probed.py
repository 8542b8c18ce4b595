"""A backend that reads at once, and by DMA from when cuFile has shown that it can.

Probing cuFile takes seconds, and no batch waits for that.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from gdsload.backends.base import Destination, FileBackend, PendingRead
from gdsload.backends.request import OpenedBackend
from gdsload.shards.files import Files
from gdsload.shards.reads import Extents
from gdsload.system.pool import Pool, done

Ask = Callable[[], tuple[OpenedBackend | None, str]]
"""Finds a better backend, if there is one, and says why that is used or not."""


class ProbedBackend(FileBackend):
    """Reads by one backend until a better one is there; `ask` is called once, in a thread."""

    name = "probed"

    def __init__(self, files: Files, first: OpenedBackend, ask: Ask) -> None:
        super().__init__(files)
        self.now, self.why = first, "cuFile is being probed"
        self._opened, self._ask = [first], ask
        self._lock, self._closed = threading.Lock(), False
        self._pool, self._probed = Pool(1, "gdsload-probe"), done
        try:
            self._probed = self._pool.run([self._probe])
        except RuntimeError as error:  # the system has no further thread
            self.why = f"cuFile was not probed: {error}"

    def _probe(self) -> None:
        self._pool.stop()  # the thread ends after this
        try:
            found, why = self._ask()
        except Exception as error:
            found, why = None, f"cuFile was not probed: {error}"
        with self._lock:
            if not self._closed:
                self.why = why
                if found is not None:
                    self._opened.append(found)
                    self.now = found
                return
        if found is not None:
            found.backend.close()

    def settle(self) -> None:
        """Wait until cuFile has answered."""
        self._probed.wait()

    def read(self, wanted: Extents, to: Destination = "device") -> PendingRead:
        return self.now.backend.read(wanted, to)

    def bytes_by_path(self) -> dict[str, int]:
        found = Counter[str]()  # both may read bytes for the host, by one path
        for one in self._opened:
            found.update(one.backend.bytes_by_path())
        return dict(found)

    def close(self) -> None:
        """See `Backend.close`. It does not wait for cuFile's answer, which nobody wants any more."""
        with self._lock:
            self._closed = True
        for one in self._opened:
            one.backend.close()
