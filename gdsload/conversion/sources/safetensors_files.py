"""Shards and safetensors files, taken apart and put together again."""

from __future__ import annotations

import os
from typing import Any, Unpack

from torch.utils.data import ConcatDataset

from gdsload.conversion.input_files import FileOptions, SourceFiles, stamps
from gdsload.conversion.selections import SelectionSource
from gdsload.errors import FormatError
from gdsload.loader.dataset import ShardDataset
from gdsload.shards.catalog import SHARD_SUFFIX
from gdsload.shards.format.index import INDEX_NAME


class SafetensorsSource(SelectionSource):
    """Whatever `ShardDataset` can open: a dataset of shards, a folder of safetensors files, or one such file.

    Samples are compared with their checksums, where there are any, before they are read.

    Args:
        path: where it is.
        **files: `split` and `follow_links`, as all sources of files have them: see `SourceFiles`. Shards have none.
    """

    kind = "safetensors files"
    rearranges = False

    def __init__(self, path: str, **files: Unpack[FileOptions]) -> None:
        self.path = path
        self.files = SourceFiles(path, **files)
        datasets = list(map(ShardDataset, self._paths()))
        for other in datasets[1:]:
            if other.schema != datasets[0].schema:
                raise FormatError(
                    f"its fields are {other.schema}, but those of {datasets[0].path} are {datasets[0].schema}",
                    file=other.path,
                    remedy="Pass one split, `split='train'`, say; or convert each file by itself.",
                )
        super().__init__(ConcatDataset(datasets), path)

    def describe(self) -> dict[str, Any]:
        files = stamps(shard.file for dataset in self.datasets for shard in dataset.shards)
        return {"kind": self.kind, "files": files, "digests": [dataset.digest for dataset in self.datasets]}

    def _paths(self) -> list[str]:
        """The paths to open as datasets: the source's own, or those of the split's files."""
        if not os.path.isdir(self.path) or os.path.lexists(os.path.join(self.path, INDEX_NAME)):
            return self.files.chosen([self.path])
        files = self.files.find((SHARD_SUFFIX,), below=False)
        return [self.path] if self.files.split is None else files
