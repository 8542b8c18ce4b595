"""The drive of open shards: the system's reads and cuFile, or whatever takes their place.

Headers, indexes and the offsets of ragged fields say what there is to read, and are read by the system in any case.
It may be several drives, each with its own queue and threads that read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gdsload.shards.identity import ShardSource
from gdsload.system.arrays import IntArray
from gdsload.system.bulk_reads import BulkReads

__all__ = ["LOCAL", "Drive", "FileReader", "file_system_of", "one_of_each_drive"]


class FileReader(Protocol):
    """Reads parts of open files into host memory; its methods may be called from several threads. See `BulkReads`."""

    def read(self, fds: IntArray, offsets: IntArray, nbytes: IntArray, addresses: IntArray) -> IntArray:
        """See `BulkReads.read`."""

    def read_one(self, fd: int, offset: int, into: memoryview) -> int:
        """See `BulkReads.read_one`."""

    def close(self) -> None:
        """See `BulkReads.close`."""


def file_system_of(source: ShardSource) -> Hashable:
    """The file system that a shard is on, as far as it is known before it is opened."""
    return source.identity.device if source.identity else None


def one_of_each_drive(sources: Iterable[ShardSource], drive: Drive) -> list[ShardSource]:
    """The first shard on each drive."""
    found: dict[Hashable, ShardSource] = {}
    for source in sources:
        found.setdefault(drive.lies_on(source), source)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Drive:
    """The readers of a dataset's samples, and the drives of its shards.

    Attributes:
        reader: makes what reads into host memory, once for each set of files.
        engine: makes what reads into a device's memory, a `gdsload.backends.gds.engines.Engine`, from the device; None:
            cuFile does, where it is shown to.
        cached: whether what is read may be in this machine's page cache, so that it is worth a look.
        lies_on: tells the drives of shards apart, which are read independently of one another.
    """

    reader: Callable[[], FileReader] = BulkReads
    engine: Callable[[torch.device], Any] | None = None
    cached: bool = True
    lies_on: Callable[[ShardSource], Hashable] = file_system_of


LOCAL = Drive()
"""Files of this machine's, as the system reads them."""
