"""gdsload, as its user calls it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

import gdsload
from benchmarks.contenders.base import Contender, Order

__all__ = ["Gdsload", "GdsloadBlock", "GdsloadBounce", "GdsloadShards", "GdsloadVram"]

SHUFFLE: dict[Order, bool | str] = {"sequential": False, "full": "full", "block": "block"}
"""The value of `shuffle` for each order."""


class Gdsload(Contender):
    """The loader with its defaults."""

    title = "gdsload"
    settings = "DataLoader(path, batch_size, shuffle, device=...), all else by default"
    version = gdsload.__version__  # of the source tree: it need not be installed
    host = False
    bursts = True  # its first epoch registers the files with CUDA
    options: ClassVar[dict[str, Any]] = {}

    @property
    def owns_data(self) -> bool:
        """Unless the rows are shards already."""
        return not self.job.sharded

    @property
    def dataset(self) -> Path:
        """The folder of the shards."""
        return self.job.source.parent if self.job.sharded else self.job.folder / "shards"

    def prepare(self, rows: NDArray[Any]) -> None:
        """Shards of the default size."""
        if not self.owns_data:
            return
        step = max(2**24 // self.job.row_bytes, 1)
        with gdsload.ShardWriter(self.dataset) as writer:
            for low in range(0, len(rows), step):
                writer.write_batch({"x": rows[low : low + step]})

    def loader(self) -> gdsload.DataLoader:
        """A loader for the job."""
        job = self.job
        self._loader = gdsload.DataLoader(
            self.dataset, job.batch_size, SHUFFLE[job.order], device=job.device, **self.options
        )
        return self._loader

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """Tensors. A loader for each trial: what one has registered can be dropped from the page cache by nobody."""
        with self.loader() as loader:
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


class GdsloadBlock(Gdsload):
    """The order for cold disks: blocks of neighbours, then samples within a window of them."""

    title = 'gdsload, shuffle="block"'
    settings = 'DataLoader(path, batch_size, shuffle="block", device=...), all else by default'
    shuffle = "blocks, then samples within a window"
    orders = ("block",)


class GdsloadBounce(Gdsload):
    """Out of the page cache by the processor."""

    title = "gdsload, backend bounce"
    settings = 'DataLoader(..., backend="bounce")'
    options: ClassVar[dict[str, Any]] = {"backend": "bounce"}


class GdsloadShards(Gdsload):
    """The same rows in many files, as a large dataset has them."""

    title = "gdsload, 64 shards"
    settings = "as gdsload, the same rows in 64 shards instead of one"


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
