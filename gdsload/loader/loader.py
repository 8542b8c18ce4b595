"""The loader: batches from shards, in torch's words."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, Self, Unpack

import torch

from gdsload.backends.base import BackendStatus
from gdsload.backends.tiers.cache_status import CacheStatus
from gdsload.engine.delivery import deliver
from gdsload.engine.ready import Deliverer
from gdsload.engine.stage import Job, Ordered, Steps
from gdsload.engine.stats import LoaderStats
from gdsload.errors import LoaderClosedError
from gdsload.loader.dataset import ShardDataset
from gdsload.loader.epoch import Epoch
from gdsload.loader.options import LoaderKeywords, parse_options, resolve_device
from gdsload.loader.parts import Parts, check_backend, give_back, last_steps, moves, open_parts
from gdsload.loader.ranks import Schedules
from gdsload.loader.samplers import sampled_by
from gdsload.loader.selection import select
from gdsload.loader.setup import buffers, device_transform, field_names, limits, order_options, positions
from gdsload.loader.state import Cursor, OrderIdentity, Place, dataset_digest
from gdsload.loader.tuned import with_tuned
from gdsload.order import Schedule, make_order
from gdsload.order.checks import check_epoch, check_whole
from gdsload.system.threads import Closer, WeakList, own_thread, settle_dropped

__all__ = ["DataLoader"]


class DataLoader:
    """Loads batches from shards, ahead of the consumer, in an order that is right for ever.

        loader = gdsload.DataLoader("shards/", batch_size=256, shuffle=True)
        for batch in loader:                       # dict of tensors
            loss = model(batch["image"], batch["label"])

    Each `iter(loader)` is one epoch, and the next one runs the epoch after it, shuffled anew; `set_epoch` sets the
    number, as with torch's distributed sampler. The order is a pure function of dataset, seed, epoch and order options:
    prefetch, threads, budgets and backend never change it.

    A batch belongs to whoever holds it and is never overwritten, unless `reuse_buffers` asks for that. Its memory comes
    back when its tensors are dropped.

    Args:
        dataset: a `ShardDataset`, a path to one, torch's `Subset` and `ConcatDataset` over them, or a `Mix` of these.
        batch_size: samples of a batch of this rank.
        shuffle: False, dataset order; ``"full"``, one permutation of all samples; ``"block"``, blocks of neighbouring
            samples permuted, then samples within windows of them, so that a cold disk is read in large pieces; True,
            the one of these two that suits the dataset (`order_options.reason` says which and why).
        seed: seed of the shuffle, from 0 to 2**64 - 1.
        drop_last: leave out the last batch if it is not full.
        device: where batches go: None for the current accelerator, or the CPU if there is none.
        **options: `fields`: names of the fields to read (default: all).
            `with_index`: add the samples' indices in `dataset` as ``batch["index"]``, int64 ``[batch]``, on the CPU.
            `transform`: called with each finished batch, in the consumer's thread; its result is handed out instead.
            `device_transform`: called before that with each batch on its device; a function or module, or several in a
            list (`gdsload.transforms` has some). It runs ahead of the consumer, in the loader's threads and, on a GPU,
            on its stream, without gradients or autocast; one call at a time, but not always in the order of batches. If
            it takes a `generator` it gets one, seeded by `seed`, epoch, and the batch's place in the order of all ranks
            (with a sampler, by step and rank). Tensors in what it returns are looked for in mappings, lists, tuples and
            dataclasses. Their memory beyond the batch's own is not part of `prefetch_bytes`.
            `reuse_buffers`: if True, every batch is copied at `next`, on the stream that is current, into the same
            tensors, as CUDA graphs need it; a smaller batch is their first rows. It is valid until the next `next` of
            any iterator of this loader. For fields and results of transforms that are tensors of a fixed shape.
            `ragged`: ``"jagged"``, nested tensors of that layout; ``"offsets"``, pairs (values ``[rows, ...]``, offsets
            int64 ``[batch + 1]``); ``"padded"``, pairs (padded ``[batch, longest, ...]``, lengths int64 ``[batch]``),
            filled up with `padding_value`, or what that maps their names to. Text and bytes are lists on the CPU.
            `block`, `window`, `lanes`: the block order's options, in samples, samples and lanes.
            `sampler`, `batch_sampler`: as in torch, what gives the indices of this rank's samples, or batches of them,
            instead of `shuffle`; or indices in a tensor. Ranks do not share it out. It is drawn from ahead of the
            consumer, by the loader's threads, one at a time, and `close` waits until it has given its next index.
            `state_dict()` in the middle of an epoch needs one that has `state_dict`, a seeded `generator`, or
            `set_epoch` and `epoch`, or that is a list, range or tensor.
            `rank`, `world_size`: this process's share of each global batch (default: torch.distributed's when an epoch
            begins, or 0 of 1 if it is not initialised and WORLD_SIZE says of no others). All ranks make the same number
            of steps, with batches of the same size: of a last global batch that does not go round, neighbouring ranks
            get some samples both, fewer than there are ranks; `drop_last=True` leaves it out.
            `prefetch_bytes`: bytes of batches that are made ahead of the consumer (``"256MiB"``); two are always made.
            `arena_bytes`: bytes of memory that reads land in, on the GPU or with `mmap=False` (``"1GiB"``). On a GPU,
            this and `prefetch_bytes` are what the loader takes of its memory; batches that were dropped while kernels
            still read them, and rows of less than 16 KiB that are sorted, take up to `prefetch_bytes` more.
            `mmap`: whether shards are mapped, as in `ShardDataset` (default: as the dataset was opened).
            `backend`: ``"auto"``, ``"gds"``, ``"mapped"``, ``"bounce"`` or ``"host"``. By name it is used or refused,
            never replaced. `gds` means that cuFile's own counters have shown DMA; with `gds_compat` its own compat mode
            will do, too. `gds_engine`: what calls cuFile, ``"cufile"`` or ``"kvikio"``.
            `pinned_bytes`: host memory that bounce pins (``"96MiB"``).
            `register_bytes`: bytes of files that may be registered with CUDA, and so kept in memory (default: half of
            what is available, or of the control group's limit; and what lies in a tmpfs).
            `cache`: where samples are kept for later epochs: ``"none"``, nowhere on purpose; ``"vram"``, in the GPU's
            memory; ``"pagecache"``, in the page cache, registered with CUDA within `register_bytes`; ``"auto"``, in the
            first of these that has room. The first epoch goes on from where the samples are while a thread fills the
            tier; what does not fit is read in every epoch. `loader.cache` says what is where.
            `vram_bytes`: bytes of the tier in VRAM (default: of what is free, half for ``"vram"``, a quarter for
            ``"auto"``).
            `read_threads`: how many threads read, 512 at most (default: what suits the backend).
            `tuned`: whether `prefetch_bytes`, `pinned_bytes` and `read_threads`, where they are not given, are what
            `gdsload tune` has found best here, if it was run (True). `repr` shows them. They change nothing but speed.
            `num_workers`, `pin_memory` and other keywords of torch's loader that have no meaning here are accepted, and
            one warning says so; `collate_fn` is refused.

    Raises:
        OptionError: if an argument cannot be used.
        BudgetError: if `arena_bytes` is too small for the windows of all lanes.
        DatasetNotFoundError, FormatError: see `ShardDataset`.
    """

    def __init__(
        self,
        dataset: object,
        batch_size: int = 1,
        shuffle: bool | str = False,
        *,
        seed: int = 0,
        drop_last: bool = False,
        device: str | torch.device | int | None = None,
        **options: Unpack[LoaderKeywords],
    ) -> None:
        self._options = parse_options(options)
        # As with torch's loader, `len(loader.dataset)` is the number of samples.
        self.dataset = ShardDataset(dataset) if isinstance(dataset, str | os.PathLike) else dataset
        batch_size = check_whole(batch_size, "batch_size", 1)
        self.seed = check_whole(seed, "seed", 0)
        self.drop_last = bool(drop_last)
        self.device = resolve_device(device)
        self._selected = select(self.dataset)
        self._options, self._tuned = with_tuned(self._options, options, self._selected.datasets[0].path, self.device)
        self._sampled = sampled_by(self._options, len(self._selected), shuffle, batch_size, self.drop_last, self.seed)
        self.sampler, self.batch_sampler = self._options.sampler, self._options.batch_sampler
        self.batch_size = batch_size if self.batch_sampler is None else None
        self._schema = self._selected.datasets[0].schema
        self._fields = field_names(self._schema, self._options)
        self.order_options = order_options(shuffle, self._selected, self._fields, self._options)
        self.stats = LoaderStats()
        self._schedules = Schedules(
            self._selected, self._options, self.order_options, batch_size, drop_last=self.drop_last
        )
        self._positions = positions(self._selected, self.order_options)
        self._limits_of = partial(limits, self._selected, self._fields, self._options, self.order_options, self.device)
        self._limits = self._limits_of(self._schedules.newest)
        copied = buffers(self._options, self._schema, self._fields, self._schedules.newest)
        self._transform = device_transform(self._options, self._schedules, self.seed, self.device)
        self._finish = last_steps(self._options, self.device, self._transform, copied)
        self._status = check_backend(self._selected, self._options, self.device)
        make_order(self.order_options, (), self.seed, 0)  # refuses a seed that is too large
        self._digest: str | None = None
        self._cursor = Cursor(0, 0)
        self._newest: Place | None = None
        self._resumed: dict[str, Any] | None = None
        self._parts: Parts | None = None
        self._epochs = WeakList[Epoch]()
        self._pipelines = WeakList[Deliverer]()
        self._left: list[Closer] = []
        self._lock = threading.RLock()  # between `begin` and `close`
        self._close_lock = threading.RLock()  # not a plain one: Ctrl-C may strike between taking it and using it
        self._owner = os.getpid()
        self._closed = self._closing = False

    def __len__(self) -> int:
        """Number of batches of an epoch, the same for every rank. With a sampler its own length counts, as in torch.

        Raises:
            OptionError: if this is one of several processes, and nobody has said which; see `rank`.
        """
        return self._schedules.now().steps if self._sampled is None else len(self._sampled)

    def __iter__(self) -> Iterator[Any]:
        """One epoch. Nothing is read before its first batch is asked for."""
        self.check_usable()
        return Epoch(self, self._finish)

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next `iter` runs."""
        return self._cursor.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that the next `iter` runs. A position resumed within that very epoch is kept.

        It is passed on to a sampler that has `set_epoch`.

        Raises:
            OptionError: if `epoch` is no whole number from 0 to 2**64 - 1.
        """
        number = check_epoch(epoch)
        self._settle()
        with self._lock:
            self._newest = None
            if number != self._cursor.epoch:
                self._cursor, self._resumed = Cursor(number, 0), None
            if self._sampled is not None:
                self._sampled.set_epoch(number, resumed=self._cursor.position > 0)

    @property
    def backend(self) -> BackendStatus:
        """Which backend is used, why, and the bytes it has moved, by path."""
        if (parts := self._parts) is None:
            return self._status
        chosen = parts.chosen
        return BackendStatus(self._options.backend, chosen.name, chosen.reason(), chosen.backend.bytes_by_path())

    @property
    def cache(self) -> CacheStatus:
        """What is kept in VRAM and in the page cache, within which budgets, and what came out of there."""
        if (parts := self._parts) is None:
            shards = self._positions.shards
            every = sum(len(one.sources) for one in self._selected.datasets)
            return CacheStatus(self._options.cache, every if shards is None else len(shards))
        return CacheStatus(self._options.cache, len(parts.table.starts), parts.backend.tiers())

    def state_dict(self) -> dict[str, Any]:
        """Where the consumer is: small, JSON-able, and exact after every batch.

        It holds the position behind the last batch handed out, whatever has been read ahead, and what the order depends
        on. The same state serves every rank; with a sampler it is this rank's own.

        Raises:
            StateError: in the middle of an epoch of a sampler that cannot be brought back there.
        """
        with self._lock:
            place, cursor = self._newest, self._cursor
            if place is not None:
                cursor, schedule = Cursor(place.epoch, place.schedule.position(place.step)), place.schedule
            else:
                schedule = self._schedules.newest if self._parts or self._closed else self._schedules.now()
            state = self._identify(schedule).state(cursor)
            if self._sampled is not None:
                state["sampler"] = self._sampled.state(place, cursor.position)
            return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken: the next `iter` runs the rest of that epoch. With a sampler older ones end.

        Raises:
            StateError: if dataset, seed, order options, global batch size or `drop_last` are not what they were, or
                `state` is none of a loader's; nothing is changed then.
        """
        if self._sampled is not None:
            for epoch in self._epochs:  # they would draw on from what is set back
                epoch.close()
        self._settle()
        with self._lock:
            mark = None
            if self._sampled is not None and isinstance(state, dict):
                mark = state.get("sampler")
                state = {name: value for name, value in state.items() if name != "sampler"}
            cursor = self._identify(self._schedules.now()).resume(state)
            if self._sampled is not None:
                self._sampled.resume(mark, cursor.position)
            self._cursor, self._newest, self._resumed = cursor, None, state

    def close(self) -> None:
        """Stop reading and give files and memory back; may be called twice, and from any thread.

        Batches that are out stay valid. An iterator that is not through raises LoaderClosedError at its next `next`.

        Raises:
            RuntimeError: if a `device_transform` calls it, whose end it would have to wait for.
        """
        if self._owner != os.getpid():
            return
        if self._transform is not None:
            self._transform.refuse_inside()
        if own_thread():  # where the garbage collector asks for it: who drops us gives all back
            self._closed = True
            for pipeline in self._pipelines:
                pipeline.stop()
            return
        with self._lock:
            self._closed = True
            epochs, pipelines = list(self._epochs), list(self._pipelines)
        for epoch in epochs:
            epoch.drop()
        for pipeline in pipelines:
            pipeline.close()
        for closer in self._left:
            closer.settle()
            closer.detach()
        self._close_parts()

    def _close_parts(self) -> None:
        """Give files and memory back. Ctrl-C may strike anywhere; then the next `close` does what is left."""
        if self._closing or not self._close_lock.acquire(blocking=False):
            return  # another thread is at it, or this one, whom a signal has called away from it
        try:
            self._closing = True
            if (parts := self._parts) is not None:
                self._status = self.backend
                parts.close()
                self._parts = None
                self._dropped.detach()
        finally:
            self._closing = False
            self._close_lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        options = self.order_options
        tuned = "".join(f", {name}={value} (tuned)" for name, value in self._tuned.items())
        return (
            f"DataLoader({self.dataset!r}, batch_size={self.batch_size}, {options.shuffle} order ({options.reason}), "
            f"seed={self.seed}, device={str(self.device)!r}{tuned})"
        )

    def check_usable(self) -> None:
        """For `Epoch`: raise an error if it cannot go on. See `EpochOwner`."""
        if self._closed:
            raise LoaderClosedError("the loader was closed", remedy="Make a new one.")
        if self._owner != os.getpid():
            raise LoaderClosedError(
                "the loader was made in another process, whose threads it cannot use",
                remedy="Make a loader in each process; after a fork, make a new one.",
            )

    def check_world(self, place: Place) -> None:
        """For `Epoch`: raise an error if its world is another one now."""
        self._schedules.check(place.schedule)

    def _identify(self, schedule: Schedule) -> OrderIdentity:
        if self._digest is None:
            self._digest = dataset_digest([dataset.digest for dataset in self._selected.datasets], self._selected.ids)
        return OrderIdentity(schedule, self.order_options, self.seed, self._digest, self._selected.mixture)

    def _open(self) -> Parts:
        if self._parts is None:
            settle_dropped()  # the memory of a loader that this one takes the place of, above all a GPU's
            parts = open_parts(
                self._selected, self._positions.shards, self._fields, self._options, self._limits, self.device
            )
            # Whoever still reads holds the table, so this waits for the last one.
            self._dropped = Closer(parts.table, partial(give_back, parts.backend, parts.maker))
            self._parts = parts
        return self._parts

    def begin(self, epoch: Epoch) -> None:
        """For `Epoch`: it asks for its first batch."""
        self._settle()
        with self._lock:
            self.check_usable()
            cursor, schedule = self._cursor, self._schedules.now()
            if self._resumed is not None:  # once more, as there may be more ranks by now
                self._identify(schedule).resume(self._resumed)
            epoch.place = Place(cursor.epoch, schedule.step_at(cursor.position), schedule)
            pipeline = self._start(epoch.place)
            try:
                self._pipelines.add(pipeline)
                self._epochs.add(epoch)
                self._left.append(epoch.reads_from(pipeline))
                pipeline.start()
                self.check_usable()  # a signal's handler may have closed us
                self._newest, self._cursor, self._resumed = epoch.place, Cursor(cursor.epoch + 1, 0), None
            except BaseException:  # Ctrl-C
                pipeline.close()
                if self._closed:
                    self._close_parts()  # which were being opened while the handler ran
                raise

    def _settle(self) -> None:
        """Wait for abandoned epochs, without the lock: what they hold must not add up, nor may they draw on."""
        if self._transform is not None:
            self._transform.refuse_inside()
        for closer in self._left:
            closer.settle()
        self._left = [closer for closer in self._left if not closer.over]
        for pipeline in self._pipelines:
            if pipeline.stopped:
                pipeline.close()

    def ended(self, epoch: Epoch) -> None:
        """For `Epoch`: it has handed out its last batch."""
        if (parts := self._parts) is not None:
            parts.table.files.watch.check_passed()
        with self._lock:
            if self._newest is epoch.place:
                self._newest = None

    def _start(self, place: Place) -> Deliverer:
        """Start reading an epoch from a place on."""
        self._limits = self._limits_of(place.schedule)
        parts = self._open()
        steps: Steps
        if self._sampled is None:
            steps = Ordered(self._positions.order(self.order_options, self.seed, place.epoch), place.schedule)
        else:
            steps = self._sampled.draws(place)
        ahead = None if moves(self._options, self.device) else self._transform
        transform = None if ahead is None else partial(ahead, place.epoch)
        job = Job(parts.table, steps, self._positions.selection, self._fields, transform)
        return deliver(job, parts.backend, parts.maker, limits=self._limits, start=place.step, stats=self.stats)
