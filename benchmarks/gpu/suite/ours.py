"""gdsload, as its user calls it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import gdsload
from benchmarks.gpu.suite.cases import Case, Order
from benchmarks.gpu.suite.contenders import Contender
from benchmarks.gpu.suite.data import Stored

__all__ = ["SHUFFLE", "Gdsload", "GdsloadBounce", "GdsloadShards", "GdsloadVram"]

SHUFFLE: dict[Order, bool | str] = {"sequential": False, "full": "full", "block": "block"}
"""What each order is called there."""


class Gdsload(Contender):
    """The loader with its defaults."""

    title = "gdsload"
    package = "gdsload"
    settings = "DataLoader(path, batch_size, shuffle, device=...), all else by default"
    bursts = True  # its first epoch registers the files with CUDA
    options: ClassVar[dict[str, Any]] = {}

    @property
    def version(self) -> str:
        """Of the source tree: it need not be installed."""
        return gdsload.__version__

    def loader(self, case: Case, **options: Any) -> gdsload.DataLoader:
        """A loader for a case."""
        self._loader = gdsload.DataLoader(
            self.stored(case).folder,
            case.batch_size,
            SHUFFLE[case.order],
            device=self.place.device,
            **(self.options | options),
        )
        return self._loader

    def batches(self, case: Case, *, endless: bool) -> Iterator[Any]:
        """Tensors. A loader for each trial: what one has registered can be dropped from the page cache by nobody."""
        with self.loader(case) as loader:
            yield from self.epochs(loader, endless=endless)

    def epochs(self, loader: gdsload.DataLoader, *, endless: bool) -> Iterator[Any]:
        """The batches of a loader."""
        while True:
            for batch in loader:
                yield batch["x"]
            if not endless:
                return

    def paths(self) -> dict[str, int]:
        """See `Contender.paths`."""
        return self._loader.backend.bytes_by_path


class GdsloadBounce(Gdsload):
    """Out of the page cache by the processor."""

    title = "gdsload, backend bounce"
    settings = 'DataLoader(..., backend="bounce")'
    options: ClassVar[dict[str, Any]] = {"backend": "bounce"}


class GdsloadShards(Gdsload):
    """The same rows in many files, as a large dataset has them."""

    title = "gdsload, 64 shards"
    settings = "as gdsload, the same rows in 64 shards instead of one"

    def stored(self, case: Case) -> Stored:
        """See `Contender.stored`."""
        return self.place.rows[f"{case.rows}-shards"]


class GdsloadVram(Gdsload):
    """The dataset stays in VRAM after the first epoch, which is not timed."""

    title = "gdsload, cache vram"
    settings = 'DataLoader(..., cache="vram"), from the second epoch on'
    options: ClassVar[dict[str, Any]] = {"cache": "vram"}

    def epochs(self, loader: gdsload.DataLoader, *, endless: bool) -> Iterator[Any]:
        """See `Gdsload.epochs`. The epoch that fills VRAM is nobody's: bytes are compared as they come out of there."""
        for _ in loader:
            pass
        return super().epochs(loader, endless=endless)
