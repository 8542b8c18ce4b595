"""gdsload, as its user calls it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from numpy.typing import NDArray

import gdsload
from benchmarks.contenders.base import Contender, Mode

__all__ = ["Gdsload", "GdsloadBlock"]


class Gdsload(Contender):
    """The loader with its defaults."""

    title = 'gdsload, shuffle="full" / False'
    package = "gdsload"
    settings = 'DataLoader(path, batch_size, shuffle="full" or False, device="cpu"), all else by default'
    kind: ClassVar[str] = "full"

    @property
    def version(self) -> str:
        """Of the source tree: it need not be installed."""
        return gdsload.__version__

    def prepare(self, rows: NDArray[Any]) -> None:
        """Shards of the default size."""
        step = max(2**24 // self.workload.row_bytes, 1)
        with gdsload.ShardWriter(self.folder / "shards") as writer:
            for low in range(0, len(rows), step):
                writer.write_batch({"data": rows[low : low + step]})

    def batches(self, mode: Mode, *, endless: bool) -> Iterator[Any]:
        """Dicts of tensors."""
        shuffle: str | bool = self.kind if mode == "shuffled" else False
        path = str(self.folder / "shards")
        with gdsload.DataLoader(path, self.workload.batch_size, shuffle, device="cpu") as loader:
            while True:
                yield from loader
                if not endless:
                    return

    def data(self, batch: Any) -> Any:
        """The one field."""
        return batch["data"]


class GdsloadBlock(Gdsload):
    """The order for cold disks: blocks of neighbours, then samples within a window of them."""

    title = 'gdsload, shuffle="block"'
    settings = 'DataLoader(path, batch_size, shuffle="block", device="cpu"), all else by default'
    shuffle = "blocks, then samples within a window"
    modes = ("shuffled",)
    kind = "block"
