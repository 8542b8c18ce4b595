"""Peers that hand out batches in CPU memory: pinned where they can, copied without waiting on a side stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch

from benchmarks.contenders import base
from benchmarks.contenders import load as load_host
from benchmarks.gpu.suite.cases import Case
from benchmarks.gpu.suite.contenders import Contender, Place
from benchmarks.residency import files_under
from benchmarks.workloads import Workload
from gdsload.system.streams import side_stream

__all__ = [
    "Grain", "GrainProcesses", "HuggingFace", "LitData", "MosaicML", "Spdl", "TorchBatches", "TorchItems",
    "WebDatasetTar",
]  # fmt: skip


def on_device(batches: Iterator[Any], device: torch.device) -> Iterator[torch.Tensor]:
    """Batches on the device, the next one under way while one is out."""
    if device.type != "cuda":
        yield from map(torch.as_tensor, batches)
        return
    stream, under_way = side_stream(device), deque[tuple[torch.Tensor, torch.cuda.Event]]()
    for batch in batches:
        host = torch.as_tensor(batch)
        host = host if host.is_pinned() else host.pin_memory()
        with torch.cuda.stream(stream):
            copied = host.to(device, non_blocking=True)
            under_way.append((copied, stream.record_event()))
        del batch, host, copied  # while it is out, nobody else holds it
        if len(under_way) > 1:
            yield _ready(*under_way.popleft())
    while under_way:
        yield _ready(*under_way.popleft())


def _ready(batch: torch.Tensor, copied: torch.cuda.Event) -> torch.Tensor:
    current = torch.cuda.current_stream(batch.device)
    current.wait_event(copied)
    batch.record_stream(current)
    return batch


class Host(Contender):
    """A contender of the CPU suite, with as many workers as there are processors.

    Attributes:
        host: its key in `benchmarks.contenders.NAMES`.
    """

    host: ClassVar[str]

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._kind = load_host(self.host)

    def about(self) -> dict[str, Any]:
        """See `Contender.about`."""
        return super().about() | {"shuffle": self._kind.shuffle}

    def contender(self, case: Case) -> base.Contender:
        """The contender for a case."""
        rows = self.stored(case)
        batches = self.samples(case) // case.batch_size
        workload = Workload(case.rows, rows.rows.shape, "uint8", case.batch_size, batches)
        found = self._kind(self.place.folder / case.rows, rows.files[0], workload)
        found.workers, found.pin_memory = self.place.workers, self.place.device.type == "cuda"
        return found

    def batches(self, case: Case, *, endless: bool) -> Iterator[Any]:
        """Tensors."""
        found = self.contender(case)
        mode: base.Mode = "sequential" if case.order == "sequential" else "shuffled"
        return on_device(map(found.data, found.batches(mode, endless=endless)), self.place.device)


class OwnFormat(Host):
    """One that reads a format of its own: fewer samples, since writing them takes long."""

    def prepare(self, case: Case) -> None:
        """See `Contender.prepare`."""
        folder = self.place.folder / case.rows
        if not folder.exists():
            folder.mkdir(parents=True)
            found = self.contender(case)
            found.prepare(found.open_source()[: self.samples(case)])

    def samples(self, case: Case) -> int:
        """See `Contender.samples`."""
        return self.place.own_samples[case.rows]

    def files(self, case: Case) -> list[Path]:
        """See `Contender.files`."""
        return files_under(self.place.folder / case.rows)


class TorchItems(Host):
    """As most use it."""

    title = "torch DataLoader, usual form"
    package, host = "torch", "torch-w2"
    settings = (
        "Dataset.__getitem__ over a memmap, default collate; a worker a core, persistent, pin_memory, non_blocking"
    )


class TorchBatches(Host):
    """The best that its interface allows."""

    title = "torch DataLoader, best form"
    package, host = "torch", "torch-batched-w2"
    settings = "Dataset.__getitems__: memmap[ids], no collate; a worker a core, persistent, pin_memory, non_blocking"


class Spdl(Host):
    """Threads that gather straight into pinned memory."""

    title = "SPDL"
    package, module, host = "spdl", "spdl.pipeline", "spdl"
    settings = (
        "PipelineBuilder: batches of ids -> numpy.take from a memmap into pinned memory, a thread a core, in order"
    )


class Grain(Host):
    """Threads."""

    title = "Grain, threads"
    package, host = "grain", "grain"
    settings = "MapDataset.source(memmap).shuffle().batch(n).to_iter_dataset, a thread a core; pinned by the consumer"


class GrainProcesses(Host):
    """Processes."""

    title = "Grain, processes"
    package, host = "grain", "grain-processes"
    settings = "as Grain, threads, and mp_prefetch with a process a core; pinned by the consumer"


class WebDatasetTar(OwnFormat):
    """Tar files."""

    title = "WebDataset"
    package, host = "webdataset", "webdataset"
    settings = "4 tar files of raw bytes a worker, batched in the workers; a worker a core, pin_memory, non_blocking"


class MosaicML(OwnFormat):
    """MDS shards."""

    title = "MosaicML streaming"
    package, module, host = "mosaicml-streaming", "streaming", "mosaicml"
    settings = "MDS, ndarray column of fixed shape, not compressed; a worker a core, pin_memory, non_blocking"


class HuggingFace(OwnFormat):
    """Arrow files."""

    title = "Hugging Face datasets"
    package, host = "datasets", "datasets"
    settings = "flat List(length=n), a batch a call; a worker a core, pin_memory, non_blocking"


class LitData(OwnFormat):
    """Chunks."""

    title = "LitData"
    package, host = "litdata", "litdata"
    settings = "optimize(64MB chunks), 1-d rows by TokensLoader; a worker a core, pin_memory, non_blocking"
