"""Peers that hand out batches on the GPU."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.contenders.base import open_rows, permutation, spans
from benchmarks.gpu.suite.cases import Case
from benchmarks.gpu.suite.contenders import Contender

__all__ = ["Dali", "Kvikio", "Safetensors"]

_AHEAD = 4


def _index_batches(count: int, case: Case, *, endless: bool) -> Iterator[Any]:
    """Spans (first, end), or arrays of indices, drawn anew for each epoch."""
    epoch = 0
    while True:
        pairs = spans(count, case.batch_size)
        if case.order == "sequential":
            yield from pairs
        else:
            ids = permutation(count, epoch)
            yield from (ids[low:high] for low, high in pairs)
        epoch += 1
        if not endless:
            return


class Kvikio(Contender):
    """By hand: `pread` into the batch, some batches under way."""

    title = "kvikio by hand"
    package, module = "kvikio-cu13", "kvikio"
    settings = "pread of a batch (in order) or of each row, 4 batches under way, 16 threads of 4 MiB, compat mode ON"
    shuffle = "full"

    def batches(self, case: Case, *, endless: bool) -> Iterator[Any]:
        """Tensors, filled on kvikio's own terms: it waits for the default stream itself."""
        kvikio = importlib.import_module("kvikio")
        defaults = importlib.import_module("kvikio.defaults")
        defaults.set({"num_threads": 16, "task_size": 4 * 2**20, "compat_mode": kvikio.CompatMode.ON})
        rows = self.stored(case).rows
        first: Any = open_rows(self.files(case)[0])
        begin, under_way = int(first.offset), deque[tuple[torch.Tensor, list[Any]]]()
        with kvikio.CuFile(str(self.files(case)[0]), "r") as file:
            for chosen in _index_batches(rows.samples, case, endless=endless):
                in_order = isinstance(chosen, tuple)
                count = chosen[1] - chosen[0] if in_order else len(chosen)
                out = torch.empty((count, *rows.shape), dtype=torch.uint8, device=self.place.device)
                if in_order:
                    reads = [file.pread(out, out.nbytes, begin + chosen[0] * rows.row_bytes)]
                else:
                    offsets = (begin + chosen * rows.row_bytes).tolist()
                    reads = [file.pread(out[row], rows.row_bytes, offset) for row, offset in enumerate(offsets)]
                under_way.append((out, reads))
                if len(under_way) > _AHEAD:
                    yield _read(*under_way.popleft())
            while under_way:
                yield _read(*under_way.popleft())


def _read(out: torch.Tensor, reads: list[Any]) -> torch.Tensor:
    if sum(read.get() for read in reads) != out.nbytes:
        raise RuntimeError("kvikio read fewer bytes than asked for")
    return out


class Safetensors(Contender):
    """A whole file at a time to the GPU, and batches of it."""

    title = "safetensors, whole file"
    package = "safetensors"
    settings = "load_file(path, device), anew for each epoch, then x[low:high] or x[permutation[low:high]]"
    shuffle = "full: the file is held in VRAM whole"
    bursts = True

    def batches(self, case: Case, *, endless: bool) -> Iterator[Any]:
        """Tensors; slices, where rows come in order."""
        load_file = importlib.import_module("safetensors.torch").load_file
        device, path = self.place.device, str(self.files(case)[0])
        epoch = 0
        while True:
            rows = load_file(path, device=str(device))["x"]
            ids = None if case.order == "sequential" else torch.from_numpy(permutation(len(rows), epoch)).to(device)
            for low, high in spans(len(rows), case.batch_size):
                yield rows[low:high] if ids is None else rows[ids[low:high]]
            epoch += 1
            if not endless:
                return


class Dali(Contender):
    """A pipeline whose worker processes fetch whole batches: its own readers take one sample a file."""

    title = "DALI, external source"
    package, module = "nvidia-dali-cuda130", "nvidia.dali"
    settings = "external_source(batch=True, parallel=True, memmap[ids]), a process a core, .gpu(), DALIGenericIterator"
    shuffle = "full"

    def batches(self, case: Case, *, endless: bool) -> Iterator[Any]:
        """Tensors."""
        dali, plugin = (importlib.import_module(f"nvidia.dali{name}") for name in ("", ".plugin.pytorch"))
        on_gpu = self.place.device.type == "cuda"
        pipeline = dali.Pipeline(
            batch_size=case.batch_size,
            num_threads=4,
            device_id=torch.cuda.current_device() if on_gpu else None,
            prefetch_queue_depth=_AHEAD,
            py_num_workers=self.place.workers,
            py_start_method="spawn",
        )
        with pipeline:
            source = _DaliSource(str(self.files(case)[0]), case, self.samples(case))
            rows = dali.fn.external_source(
                source=source, batch=True, batch_info=True, parallel=True, dtype=dali.types.UINT8
            )
            pipeline.set_outputs(rows.gpu() if on_gpu else rows)
        pipeline.start_py_workers()
        found = plugin.DALIGenericIterator([pipeline], ["x"], auto_reset=True)
        while True:
            for batch in found:
                yield batch[0]["x"]
            if not endless:
                return


class _DaliSource:
    """Whole batches, as lists of rows; DALI's worker processes are sent it, and each maps the file itself."""

    def __init__(self, path: str, case: Case, count: int) -> None:
        self._path, self._case, self._count = path, case, count
        self._rows: Any = None
        self._ids: tuple[int, Any] = (-1, None)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_rows": None, "_ids": (-1, None)}

    def __call__(self, info: Any) -> Any:
        low = info.iteration * self._case.batch_size
        if low + self._case.batch_size > self._count:
            raise StopIteration
        if self._rows is None:
            self._rows = open_rows(self._path)
        high = low + self._case.batch_size
        if self._case.order == "sequential":
            return list(self._rows[low:high])
        if self._ids[0] != info.epoch_idx:
            self._ids = info.epoch_idx, permutation(self._count, info.epoch_idx)
        return list(self._rows[self._ids[1][low:high]])
