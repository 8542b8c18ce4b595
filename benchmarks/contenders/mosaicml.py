"""MosaicML streaming: MDS shards."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from numpy.typing import NDArray

from benchmarks.contenders.base import Contender

__all__ = ["MosaicML"]


def _import_torchvision() -> None:
    """The library imports torchvision, and needs none of its compiled operators.

    Beside a CPU build of torch those of the common wheel do not load, and the import fails, as two names are missing.
    """
    signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for name in ("nms", "qnms", ""):
        try:
            importlib.import_module("torchvision")
        except RuntimeError as error:
            if not name or f"torchvision::{name} " not in str(error):
                raise
            torch.library.define(f"torchvision::{name}", signature)
        else:
            return


_import_torchvision()


class MosaicML(Contender):
    """Shards on the local disk; batches by torch's DataLoader, as its guide says."""

    title = "MosaicML streaming, {workers} workers"
    settings = (
        "MDS, ndarray column of fixed shape, not compressed; DataLoader(StreamingDataset(local), num_workers={workers})"
    )
    shuffle = "its default algorithm (py1e)"
    own_format = True

    def prepare(self, rows: NDArray[Any]) -> None:
        """MDS shards of the default size."""
        streaming = importlib.import_module("streaming")
        kind = f"ndarray:{self.job.dtype}:{','.join(map(str, self.job.shape))}"
        with streaming.MDSWriter(out=str(self.job.folder / "mds"), columns={"data": kind}) as writer:
            for row in rows:
                writer.write({"data": row})

    def batches(self, *, endless: bool) -> Iterator[Any]:
        """Dicts of tensors."""
        streaming = importlib.import_module("streaming")
        streaming.base.util.clean_stale_shared_memory()
        size = self.job.batch_size
        found = streaming.StreamingDataset(
            local=str(self.job.folder / "mds"), shuffle=self.job.shuffled, batch_size=size, num_canonical_nodes=1
        )
        loader: Any = torch.utils.data.DataLoader(
            found, batch_size=size, num_workers=self.job.workers, persistent_workers=True, pin_memory=self.job.pinned
        )
        while True:
            yield from loader
            if not endless:
                return

    def data(self, batch: Any) -> Any:
        """The one column."""
        return batch["data"]
