"""The rows of a table: the ways from a dataset to the device, each of which hands out batches in the loader's order."""

from __future__ import annotations

import importlib
import multiprocessing
import resource
import signal
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from itertools import count
from multiprocessing import forkserver, resource_tracker
from typing import Any, ClassVar, cast

import torch

from gdsload.backends.names import SUMMARIES, BackendChoice
from gdsload.backends.select import dma_is_possible
from gdsload.engine.assemble import Batch
from gdsload.engine.gpu.plain_tensors import each_tensor
from gdsload.errors import BackendUnavailableError, BudgetError, OptionError
from gdsload.loader.epoch import Epoch
from gdsload.loader.loader import DataLoader
from gdsload.system.arrays import IntArray
from gdsload.system.streams import has_streams
from gdsload.tools.bench.bench_plan import BenchPlan
from gdsload.tools.bench.by_hand import Column, StoredRows, runs

_PROBE_S = 10.0
"""Seconds that cuFile's probe may take: until then `auto` reads another way."""
_PREFETCH = 2
_LEAST_FILES, _FILES_OF_WORKER = 24, 4  # open files of this process, and those for each worker of torch's loader
_KVIKIO_AHEAD = 4
"""Batches that kvikio reads beside the one that is waited for."""


class Row:
    """A row. One that maps the shards opens them at its first use, and again at the first use after `close`.

    Attributes:
        name: what it is called.
        kind: ``gdsload``, ``control``, ``read``, ``kvikio`` or ``torch``.
        detail: how it reads, in a few words.
        asked: the names of backends that come to this.
        maps: whether it maps the shards, which then stay in the page cache until it is closed.
        ahead: batches that it may have finished before they are asked for.
    """

    kind: ClassVar[str] = ""
    maps: bool = False
    ahead: int = 0

    def __init__(self, plan: BenchPlan, name: str, detail: str) -> None:
        self.plan, self.name, self.detail = plan, name, detail
        self.asked: list[str] = []
        self.backend: str | None = None
        self.reason = ""

    def epoch(self, number: int) -> Generator[Batch, None, None]:
        """The batches of an epoch, on the device or on their way there on its current stream."""
        raise NotImplementedError

    def paths(self) -> dict[str, int]:
        """Bytes moved since it was opened, by path; empty if that is not known."""
        return {}

    def depth(self) -> object:
        """A mark of its pace, which stays the same once it has found that."""
        return None

    def rest(self) -> None:
        """Wait until nothing is read any more, after an epoch was left."""

    def close(self) -> None:
        """Release everything; may be called twice."""


class LoaderRow(Row):
    """gdsload's loader, with one backend and further options."""

    kind = "gdsload"
    maps = True

    def __init__(self, plan: BenchPlan, backend: BackendChoice, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(plan, backend, SUMMARIES[backend] if backend != "auto" else "chosen automatically")
        self._options = {"backend": backend, **(options or {})}
        self._loader: DataLoader | None = None

    @property
    def loader(self) -> DataLoader:
        """The loader. No shard is mapped before the first batch."""
        if self._loader is None:
            plan = self.plan
            # Pairs (values, offsets), and not nested tensors, which cannot be pinned everywhere.
            self._loader = DataLoader(
                plan.path, plan.batch_size, plan.shuffle, device=plan.device, ragged="offsets", **self._options
            )
        return self._loader

    def epoch(self, number: int) -> Generator[Batch, None, None]:
        self.loader.set_epoch(number)
        with closing(cast("Epoch", iter(self.loader))) as batches:
            try:
                yield from batches
            finally:
                status = self.loader.backend
                self.backend, self.reason = status.chosen, status.reason

    def paths(self) -> dict[str, int]:
        return self.loader.backend.bytes_by_path

    def depth(self) -> object:
        return self.loader.stats.reads_ahead

    def close(self) -> None:
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()


class ControlRow(LoaderRow):
    """The same as another row, once more: their difference is chance."""

    kind = "control"

    def __init__(self, of: LoaderRow) -> None:
        super().__init__(of.plan, cast("BackendChoice", of.name))
        self.name, self.detail = "control", f"{of.name} a second time: the difference is noise"


class ReadRow(Row):
    """Reads in a loop, and then `to`."""

    kind = "read"

    def __init__(self, plan: BenchPlan) -> None:
        name, then = ("read + .to", ", then .to(device)") if plan.on_device else ("read", "")
        super().__init__(plan, name, f"one thread, a preadv for each run of neighbours{then}")
        self.rows = StoredRows(plan.path)

    def epoch(self, number: int) -> Generator[Batch, None, None]:
        for ids in self.plan.ids(number):
            yield _copied(self.rows.batch(ids), self.plan.device)

    def close(self) -> None:
        self.rows.close()


class KvikioRow(Row):
    """kvikio, by hand: one `pread` for each run of neighbours, of 5 batches at once.

    Raises:
        Exception: whatever kvikio raises where it cannot be used.
    """

    kind = "kvikio"

    def __init__(self, plan: BenchPlan) -> None:
        super().__init__(plan, "kvikio", "pread of each run of neighbours, 5 batches at once, 16 threads of 4 MiB")
        self._kvikio: Any = importlib.import_module("kvikio")
        importlib.import_module("kvikio.defaults").set(
            {"num_threads": 16, "task_size": 4 * 2**20, "compat_mode": self._kvikio.CompatMode.AUTO}
        )
        self._rows = StoredRows(plan.path)
        self._files: dict[int, Any] = {}

    def epoch(self, number: int) -> Generator[Batch, None, None]:
        under_way: list[tuple[list[Column], torch.Tensor, list[Any]]] = []
        try:
            for ids in self.plan.ids(number):
                under_way.append(self._begin(ids))
                if len(under_way) > _KVIKIO_AHEAD:
                    yield self._finish(*under_way.pop(0))
            while under_way:
                yield self._finish(*under_way.pop(0))
        finally:  # a read that goes on would write into memory that another batch has by then
            for _, _, reads in under_way:
                for read, _ in reads:
                    read.get()

    def _begin(self, ids: IntArray) -> tuple[list[Column], torch.Tensor, list[Any]]:
        columns, nbytes = self._rows.columns(ids)
        memory, reads = torch.empty(nbytes, dtype=torch.uint8, device=self.plan.device), []
        for column in columns:
            position = column.begin
            for file, offset, length in runs(column.extents):
                if file not in self._files:
                    self._files[file] = self._kvikio.CuFile(self._rows.source(file), "r")
                into = memory[position : position + length]
                reads.append((self._files[file].pread(into, length, offset), length))
                position += length
        return columns, memory, reads

    def _finish(self, columns: list[Column], memory: torch.Tensor, reads: list[Any]) -> Batch:
        for read, length in reads:
            if (count := read.get()) != length:
                raise RuntimeError(f"kvikio has read {count} of {length} bytes")
        return self._rows.fields(columns, memory)

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()
        self._rows.close()


class _Batches(torch.utils.data.Sampler[IntArray]):
    """The batches of an epoch as lists of samples; none follows once `over` is True."""

    def __init__(self, plan: BenchPlan) -> None:
        self.plan, self.epoch, self.over = plan, 0, True

    def __iter__(self) -> Iterator[IntArray]:
        for ids in self.plan.ids(self.epoch):
            if self.over:
                return
            yield ids


class TorchRow(Row):
    """torch's loader in its best form: whole batches, pinned, by workers that stay."""

    kind = "torch"

    def __init__(self, plan: BenchPlan) -> None:
        pinned = has_streams(plan.device)
        how = f"{plan.workers} workers, {'pinned, ' * pinned}__getitems__ by preadv"
        super().__init__(plan, "torch DataLoader", how)
        self.ahead = plan.workers * _PREFETCH
        self._ids = _Batches(plan)
        # A fork may copy locks that other threads hold, and CUDA does not survive one.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        limit, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], _LEAST_FILES + _FILES_OF_WORKER * plan.workers
        if 0 <= limit < needed:  # the workers would print tracebacks
            what = f"torch's loader needs {needed} open files, and the limit is {limit}"
            raise OptionError(what, remedy="Raise the limit of open files, `ulimit -n`, or pass a smaller `workers`.")
        _start_servers()
        self._loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
            cast("torch.utils.data.Dataset[Any]", StoredRows(plan.path, shared=True)),
            batch_sampler=self._ids,  # type: ignore[arg-type]
            num_workers=plan.workers,
            prefetch_factor=_PREFETCH,
            persistent_workers=True,
            pin_memory=pinned,
            collate_fn=_as_is,
            worker_init_fn=_ignore_ctrl_c,
            multiprocessing_context=context,
        )
        self._running: Iterator[Any] = iter(())

    def epoch(self, number: int) -> Generator[Batch, None, None]:
        self.rest()
        self._ids.epoch, self._ids.over = number, False
        self._running = iter(self._loader)
        for batch in self._running:
            yield _copied(batch, self.plan.device)

    def rest(self) -> None:
        self._ids.over = True
        for _ in self._running:
            pass
        self._running = iter(())

    def close(self) -> None:
        self._running = iter(())
        self._loader._iterator = None  # noqa: SLF001 - which ends the workers; there is no public way


def make_rows(plan: BenchPlan) -> tuple[list[Row], list[Row], dict[str, str]]:
    """The rows for a cold page cache, those for a hot one, and why others cannot be used, by name.

    Backends that come to the same are one row, and the first row of gdsload's has a control. Rows by hand are the same
    objects in both lists.

    Raises:
        BackendUnavailableError: if no backend can be used.
    """
    lacking: dict[str, str] = {}
    if plan.device.type == "cuda" and "gds" not in plan.backends and not (possible := dma_is_possible())[0]:
        lacking["gds"] = possible[1]
    chosen = {name: found for name in plan.backends if (found := _resolved(plan, name, lacking))}
    if not chosen:
        raise BackendUnavailableError(
            "; ".join(f"{name}: {why}" for name, why in lacking.items()), remedy="Leave --backends out."
        )
    by_state: list[list[Row]] = []
    for state in (0, 1):
        names: dict[str, list[str]] = {}
        for name, parts in chosen.items():
            part = name if parts[state] == "mapped" and "mapped" not in chosen else parts[state]
            names.setdefault(part, []).append(name)
        if not state and len(names) > 1:
            names.pop("mapped", None)  # it gathers from the page cache alone
        own = [LoaderRow(plan, cast("BackendChoice", name)) for name in sorted(names, key=[*SUMMARIES, "auto"].index)]
        for row in own:
            row.asked = names[row.name]
        by_state.append([*own, ControlRow(own[0])])
    others: list[Row] = [ReadRow(plan), *([TorchRow(plan)] if plan.torch_row else [])]
    if plan.device.type == "cuda":
        try:
            by_state[0].append(KvikioRow(plan))
        except Exception as error:  # a broken installation fails in any way
            lacking["kvikio"] = str(error)
    return by_state[0] + others, by_state[1] + others, lacking


def _resolved(plan: BenchPlan, name: BackendChoice, lacking: dict[str, str]) -> tuple[str, str] | None:
    """The names of the paths of a backend, cold and hot; None if it cannot be used."""
    row = LoaderRow(plan, name)
    try:
        until, parts = time.monotonic() + _PROBE_S, [str(name)]
        may_change = name == "auto" and plan.device.type == "cuda" and dma_is_possible()[0]
        with closing(endless(row, 0)) as batches:
            for _ in batches:
                parts = row.loader.backend.chosen.split("+")
                if not may_change or parts[-1] == "gds" or time.monotonic() > until:
                    break
        if name != "auto":
            return name, name
        tier = row.loader.cache.tiers.get("pagecache")
        whole = len(parts) == 1 or (tier is not None and tier.budget_bytes >= plan.dataset.num_bytes)
        return parts[-1], parts[0] if whole else name
    except (BackendUnavailableError, BudgetError) as error:
        lacking[name] = error.message
        return None
    finally:
        row.close()


def endless(row: Row, epoch: int) -> Generator[Batch, None, None]:
    """The batches of a row's epochs, one after the other."""
    for number in count(epoch):
        yield from row.epoch(number)


def size_of(batch: Batch) -> tuple[int, int]:
    """Samples of a batch, and their bytes without the offsets of ragged ones."""
    sizes = [_size_of(value) for value in batch.values()]
    return sizes[0][0], sum(nbytes for _, nbytes in sizes)


def _size_of(value: Any) -> tuple[int, int]:
    if isinstance(value, tuple):  # values and offsets
        return len(value[1]) - 1, int(value[0].nbytes)
    if isinstance(value, list):
        sizes = (len(text) if isinstance(text, bytes) or text.isascii() else len(text.encode()) for text in value)
        return len(value), sum(sizes)
    return len(value), int(value.nbytes)


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _copied(batch: Batch, device: torch.device) -> Batch:
    """A batch with its tensors on the device; texts stay in RAM."""
    if device.type == "cpu":
        return batch

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, non_blocking=tensor.is_pinned())

    return {name: value if isinstance(value, list) else each_tensor(value, copied) for name, value in batch.items()}


def _as_is(batch: Any) -> Any:
    return batch


def _start_servers() -> None:
    """Start the processes that make the workers, which import torch: Ctrl-C is the main process's meanwhile, too."""
    resource_tracker.ensure_running()  # by itself, since it lets the signal through at its end
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore_ctrl_c(_worker: int) -> None:
    """Leave Ctrl-C to the main process, which ends the workers."""
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
