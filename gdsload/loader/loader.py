"""The loader: batches from shards, in torch's words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from inspect import signature
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast

import torch

from gdsload.backends.base import BackendStatus, CacheStatus
from gdsload.backends.choices import Auto, Bounce, Gds
from gdsload.backends.request import BackendRow
from gdsload.engine.sample_transform import PerSample
from gdsload.engine.stats import LoaderStats, Observer
from gdsload.loader.batch_fields import Padded
from gdsload.loader.diagnosis import Diagnosis
from gdsload.loader.life import Life
from gdsload.loader.options import Memory, Options, Verify, per_sample, verification
from gdsload.loader.plan import plan_loader
from gdsload.loader.progress import Progress
from gdsload.loader.rank_groups import ranks_of
from gdsload.loader.shown import loader_html, loader_text
from gdsload.loader.torch_attributes import BatchView, OrderView, SequentialView, TorchAttributes
from gdsload.loader.torch_keywords import TorchKeywords, check_torch_keywords, warn_of_shared_draws
from gdsload.order import BlockShuffle
from gdsload.order.checks import check_whole
from gdsload.transforms import DecodeImage
from gdsload.transforms.compose import callables

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


class DataLoader(TorchAttributes):
    """Loads batches from shards, ahead of the consumer, in an order that can be repeated.

        loader = gdsload.DataLoader("shards/", batch_size=256, shuffle=True)
        for batch in loader:                       # dict of tensors
            loss = model(batch["image"], batch["label"])

    Each `iter(loader)` is one epoch, and the next one is shuffled again. `epoch` counts those that were run to their
    end: one that is left early, by a `break`, an error or a look at its first batch, does not count. `set_epoch` sets
    the number, as with torch's distributed sampler. The order is a pure function of dataset, seed, epoch and order
    options: prefetch, threads, budgets and backend never change it.

    A batch belongs to its holder and is never overwritten, unless `reuse_buffers` asks for that. Its memory comes
    back when its tensors are dropped.

    Args:
        dataset: a `ShardDataset`, a path to one, `Windows`, torch's `Subset` and `ConcatDataset` over them, or a `Mix`
            of these.
        batch_size: samples of a batch of this rank.
        shuffle: the order of the samples. False or None: dataset order; ``"full"``: one permutation of all samples;
            ``"block"``: blocks of neighbouring samples permuted, then samples within windows of them, so that a cold
            disk is read in large pieces, or `BlockShuffle` with the sizes of both; True: the one that suits the
            dataset: see `order_options.reason`.
        seed: seed of the shuffle and of what transforms draw, from 0 to ``2**64 - 1``. Loaders of one dataset and seed
            have one order. None: drawn from torch's global generator when the first epoch begins, which all ranks then
            begin together and with the first one's. With a sampler it is the seed of what transforms draw alone.
        generator: as torch's loader takes it: its ``initial_seed()`` is the seed, whatever was drawn from it.
        drop_last: leave out the last global batch if it is not full: ``tail="drop"``.
        tail: what becomes of a last global batch that is not full. ``"share"``, the default: it is shared out, so that
            all ranks get equally many samples and at least one. If the samples cannot be divided evenly, a few of them
            (less than one per rank) go to two ranks. ``"pad"``: it is filled up with the samples that the epoch began
            with, as torch's `DistributedSampler` does it, so that all batches are full. ``"drop"``: it is left out.
        device: where batches go: None for the current accelerator, or the CPU if there is none.
        fields: names of the fields to read; None for all.
        with_index: add the samples' indices in `dataset` as ``batch["index"]``, int64 ``[batch]``, on the CPU.
        with_real: add ``batch["real"]``, bool ``[batch]``, on the batch's device: False for samples that `tail` has
            repeated, so that each counts once. `device_transform` does not see it.
        transform: called with each finished batch, in the consumer's thread; its result is handed out instead.
        as_tuple: names of fields in the order of ``for image, label in loader``: batches are tuples of these, made
            after all transforms. Without transforms and `fields`, no other fields are read.
        sample_transform: called with each sample as ``dataset[i]`` gives it, and ``"index"`` if `with_index`: a
            function, several in a list, or `PerSample` with the number and kind of its workers. It runs ahead of the
            consumer, without gradients, for many samples at once. If it takes a `generator` it gets one on the CPU,
            seeded by `seed`, epoch, and the sample's place in the order of all ranks (with a sampler, by step, rank and
            place in the batch); torch's functions draw from it, too.
        collate_fn: makes a batch of a list of samples, as `sample_transform` has made them. It runs ahead, in threads,
            for several batches at once; torch's functions draw from a generator of the batch. None: torch's
            ``default_collate``, after `sample_transform`. Tensors go to `device` from pinned memory, if they are in
            dicts, lists or tuples, and `device_transform` is called after that.
        device_transform: called before `transform` with each batch on its device: a function or module, or several in a
            list (`gdsload.transforms` has some). It runs ahead of the consumer, in the loader's threads and, on a GPU,
            on its stream, without gradients or autocast; one call at a time, but not always in the order of batches. If
            it takes a `generator` it gets one, seeded by `seed`, epoch, and the batch's place in the order of all ranks
            (with a sampler, by step and rank). Tensors in what it returns are looked for in mappings, lists, tuples and
            dataclasses. Their memory beyond the batch's own is not part of ``Memory(prefetch=)``.
        decode: how fields of encoded images are decoded: ``{"image": gdsload.transforms.DecodeImage(...)}``. Fields of
            `bytes` may hold images, too. A field that is not named is a list of bytes.
        ahead: whether batches are made ahead of the consumer. False: the thread that asks for a batch makes it, with
            all transforms, and ``breakpoint()`` works in these.
        reuse_buffers: copy every batch at `next`, on the stream that is current, into the same tensors, as CUDA graphs
            need it. A smaller batch is their first rows. It is valid until the next `next` of any iterator of this
            loader. For fields and results of transforms that are tensors of a fixed shape.
        ragged: the form of ragged fields. ``"jagged"``: nested tensors of that layout; ``"offsets"``: pairs (values
            ``[rows, ...]``, offsets int64 ``[batch + 1]``); ``"padded"``: pairs (padded ``[batch, longest, ...]``,
            lengths int64 ``[batch]``); ``"varlen"``: `Varlen` (values ``[rows, ...]``, cu_seqlens int32
            ``[batch + 1]``, max_seqlen); `Padded`: as ``"padded"``, with other values. Text and bytes are lists.
        sampler: the indices of the samples, instead of `shuffle`. A function is called with the number of each epoch,
            once, and returns its indices, of which some may repeat, in a one-dimensional int64 tensor or numpy array:
            ranks share them out. A sampler as in torch, or indices in a tensor, are this rank's alone. A sampler is
            iterated ahead of the consumer, by one thread at a time, and `close` waits until it has given its next
            index. `state_dict()` in the middle of an epoch needs one that has `state_dict`, a seeded `generator`, or
            `set_epoch` and `epoch`, or that is a list, range or tensor.
        batch_sampler: gives lists of indices, a batch each; otherwise as `sampler`. `TokenBudget` and `LengthBuckets`
            share their batches out among the ranks.
        ranks: the ranks that share each global batch: all make the same number of steps, with batches of one size.
            ``(rank, world_size)``: this process's rank, and how many there are. None: those of torch.distributed when
            an epoch begins, or 0 of 1 if it is not initialised and WORLD_SIZE names no others. A DeviceMesh: its
            dimensions of data parallelism (``dp``, ``fsdp``, ``dp_replicate``, ``dp_shard`` and the like) share
            samples, and ranks along those of tensor, context, sequence or pipeline parallelism (``tp``, ``cp``, ``sp``,
            ``pp``) get the same batches; one dimension of another name shares samples. A ProcessGroup: its ranks do.
            Ranks of a mesh or group begin the first epoch together, and compare what their loaders do.
        verify: ``"all"``: each stored byte of a batch is compared with its checksum where it lands, before it is
            decoded; ``"sample"``: one block in 16, the same ones in every epoch. Shards that gdsload did not write are
            refused, and random reads of small samples. `Verify` says more, and what becomes of damaged batches.
        memory: the loader's budgets in bytes; see `Memory`. None: those that suit the machine.
        mmap: whether shards are mapped, as in `ShardDataset`; None: as the dataset was opened.
        backend: the way that bytes travel: a name, or `Auto`, `Gds` or `Bounce` with options, or another library's
            `gdsload.backends.request.BackendRow`. It is used or refused, never replaced; ``"gds"`` means that cuFile's
            own counters have shown DMA.
        cache: where samples are kept for later epochs. ``"pagecache"``: on a GPU the first shards that
            ``Memory(registered=)`` has room for are read into the page cache during the first epoch and registered with
            CUDA; others are read around it. ``"none"``: all are read around it. ``"vram"``: in the GPU's memory;
            ``"auto"``: there first, and then in the page cache. Shards that do not fit are read in every epoch. With a
            `decode` that makes the same of an image in every epoch but for a flip, ``"vram"`` and ``"auto"`` keep the
            decoded images in the GPU's memory instead, and ``"ram"`` keeps them in memory, where batches are built on
            the CPU. `loader.cache` says what is where.
        **unneeded: `num_workers`, `pin_memory` and others of torch's, which have no effect: one warning names them.

    Raises:
        OptionError: if an argument cannot be used.
        BudgetError: if ``Memory(arena=)`` is too small for the windows of all lanes.
        BackendUnavailableError: if the backend or the cache that was asked for by name cannot be used.
        DatasetNotFoundError, FormatError: see `ShardDataset`.
    """

    def __init__(  # noqa: PLR0913 (every option is declared here, and nowhere else)
        self,
        dataset: object,
        batch_size: int = 1,
        shuffle: bool | str | BlockShuffle | None = False,
        *,
        seed: int | None = 0,
        generator: torch.Generator | None = None,
        drop_last: bool = False,
        tail: Literal["share", "pad", "drop"] | None = None,
        device: str | torch.device | int | None = None,
        fields: Sequence[str] | None = None,
        with_index: bool = False,
        with_real: bool = False,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        as_tuple: Sequence[str] | None = None,
        sample_transform: Callable[..., Any] | Sequence[Callable[..., Any]] | PerSample | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        device_transform: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        decode: Mapping[str, DecodeImage] | None = None,
        ahead: bool = True,
        reuse_buffers: bool = False,
        ragged: Literal["jagged", "offsets", "padded", "varlen"] | Padded = "jagged",
        sampler: Iterable[Any] | Callable[[int], Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        ranks: tuple[int, int] | DeviceMesh | ProcessGroup | None = None,
        verify: Literal["off", "sample", "all"] | Verify = "off",
        memory: Memory | None = None,
        mmap: bool | None = None,
        backend: Literal["auto", "gds", "mapped", "bounce", "host"] | Auto | Gds | Bounce | BackendRow = "auto",
        cache: Literal["pagecache", "none", "auto", "vram", "ram"] = "pagecache",
        **unneeded: Unpack[TorchKeywords],
    ) -> None:
        check_torch_keywords(unneeded, self._defaults)
        options = Options(
            batch_size=check_whole(batch_size, "batch_size", 1),
            shuffle=False if shuffle is None else shuffle,
            seed=None if seed is None else check_whole(seed, "seed", 0, 2**64 - 1),
            sample_transform=per_sample(sample_transform, collated=collate_fn is not None),
            device_transform=callables(device_transform, "device_transform"),
            ranks=ranks_of(ranks),
            memory=Memory() if memory is None else memory,
            generator=generator, drop_last=drop_last, tail=tail, device=device, fields=fields, with_index=with_index,
            with_real=with_real, transform=transform, as_tuple=as_tuple, collate_fn=collate_fn, decode=decode,
            ahead=ahead, reuse_buffers=reuse_buffers, ragged=ragged, sampler=sampler, batch_sampler=batch_sampler,
            verify=verification(verify), mmap=mmap, backend=backend, cache=cache,
        )  # fmt: skip
        warn_of_shared_draws(options)
        self._set_up(dataset, options)

    def _set_up(self, dataset: object, options: Options) -> None:
        before = vars(self).keys() | {"_own", "_made"}
        self._plan = plan = plan_loader(dataset, options)
        # As with torch's loader, `len(loader.dataset)` is the number of samples.
        self.dataset, self.device, self.order_options = plan.dataset, plan.device, plan.order
        self.batch_size = plan.schedule.batch_size if options.batch_sampler is None else None
        self.tail, self.drop_last = plan.schedule.tail, plan.schedule.tail == "drop"
        self._progress = Progress(plan)
        self._life = Life(plan, self._progress)
        view = (SequentialView if plan.order.shuffle == "sequential" else OrderView)(self._life, len(plan.selected))
        self.sampler: Any = view if options.sampler is None or options.function is not None else options.sampler
        self.batch_sampler: Any = options.batch_sampler
        if options.batch_sampler is None:
            self.batch_sampler = BatchView(self._life, view, plan.schedule.batch_size, self.drop_last)
        self._own = vars(self).keys() - before | {"_own", "_made", "stats"}  # not a subclass's, or any other's
        self._made = True

    __class_getitem__: Any = classmethod(GenericAlias)  # `DataLoader[dict]` is an annotation, as of torch's

    def __len__(self) -> int:
        """Number of batches of an epoch, the same for every rank. With a sampler its own length counts, as in torch.

        With a function as the sampler: of the epoch that runs, or else of the next one.

        Raises:
            OptionError: if there are several processes, and the rank of this one is unknown; see `ranks`.
        """
        return self._life.batches()

    def __iter__(self) -> Iterator[Any]:
        """One epoch. Nothing is read before its first batch is asked for."""
        if torch.compiler.is_compiling():
            return cast("Iterator[Any]", torch.compiler.disable(self._life.epoch)())
        return self._life.epoch()

    @property
    def epoch(self) -> int:
        """The number of finished epochs, counted from the number that `set_epoch` or a state has set."""
        return self._progress.epoch

    @property
    def step(self) -> int:
        """Number of the first batch of the next `iter` within its epoch: 0, unless that epoch was begun before."""
        return self._progress.step

    @property
    def seed(self) -> int | None:
        """Seed of the order and of what transforms draw; with ``seed=None``, None until the first epoch has begun."""
        return self._progress.seed

    @property
    def real_samples(self) -> int | None:
        """Samples that count, if each is to count once, of the batch that the newest epoch has handed out last.

        They are as many as there are in all batches but the last of an epoch. Of that, ``tail="pad"`` repeats samples
        at its end, and ``tail="share"`` hands some to two ranks; `with_real` says which. None before the first batch,
        and with a sampler.
        """
        return self._progress.real_samples

    @property
    def remainder(self) -> int:
        """Samples of the last batches of an epoch of all ranks, each counted once; 0 if all are full, or left out.

        With ``tail="pad"`` they are the first ones of what ranks gather of these batches, rank by rank. With a sampler
        it is 0.
        """
        return self._progress.remainder

    def set_epoch(self, epoch: int, step: int | None = None) -> None:
        """Set the number of the epoch that the next `iter` runs, and with which of its batches it begins.

        It is passed on to a sampler that has `set_epoch`.

        Args:
            epoch: the number.
            step: number of the first batch: those before it are left out, at no cost. None: where that epoch was
                resumed, even if nothing was left of it, unless it has been finished since; else its first batch.

        Raises:
            OptionError: if `epoch` is no whole number from 0 to 2**64 - 1, or the epoch has no such step; with a
                sampler, if a step is given.
        """
        self._life.set_epoch(epoch, step)

    @property
    def stats(self) -> LoaderStats:
        """The counters of this loader since it was created: always the same object, updated at each access."""
        return self._life.settled()

    @property
    def epoch_stats(self) -> LoaderStats:
        """The counters of the newest epoch, running or finished.

        ``str`` gives one line. The logger "gdsload" writes it at the end of each epoch, at level INFO.
        """
        return self._life.epoch_stats

    @property
    def backend(self) -> BackendStatus:
        """The backend in use, the reason, and the bytes it has moved, by path."""
        return self._life.backend

    @property
    def cache(self) -> CacheStatus:
        """The caches in VRAM and in the page cache: their budgets, the bytes kept, and the bytes read from them."""
        return self._life.cache

    def observe(self, observer: Observer) -> None:
        """Add an observer, which is called from now on; a copy of the loader has no observers.

        An observer that raises an error is not called again, and the error is logged.
        """
        self._life.stats.observers += (observer,)

    def diagnose(self) -> Diagnosis:
        """Find what limits this loop, from the counters; a drive is also read for a second if no epoch is running."""
        return self._life.diagnosed()

    def state_dict(self) -> dict[str, Any]:
        """The place of the consumer: small, JSON-able, and exact after every batch.

        It holds the position after the last batch handed out, whatever has been read ahead, and what the order depends
        on. The same state serves every rank; with a sampler it is this rank's own, and names it.

        Raises:
            StateError: in the middle of an epoch of a sampler that cannot be resumed there.
        """
        return self._life.state()

    def load_state_dict(self, state: dict[str, Any], *, change_batch_size: bool = False) -> None:
        """Go on where `state` was taken: the next `iter` runs the rest of that epoch, or if none is left the next one.

        With a sampler older iterators end.

        Args:
            state: what `state_dict` gave.
            change_batch_size: go on with another batch size than the state's, if a global batch of that size begins
                where it was taken. With a sampler, between two epochs alone.

        Raises:
            StateError: if dataset, seed, order options, global batch size or `tail` are not what they were, if it is
                the state of another rank's sampler, or none of a loader's; nothing is changed then.
        """
        self._life.resume(state, change_batch_size=change_batch_size)

    def close(self) -> None:
        """Stop reading and give files and memory back; may be called twice, and from any thread.

        Batches that are out stay valid. An iterator that is not through raises LoaderClosedError at its next `next`.

        Raises:
            RuntimeError: if a `device_transform` calls it, whose end it would have to wait for.
        """
        self._life.close()

    def __reduce__(self) -> tuple[object, ...]:
        """Copies, in this process and in others, are made from the arguments, and continue where this loader is.

        With a mesh or a process group they are made in this process alone, of the same.

        Raises:
            StateError: in the middle of an epoch of a sampler that cannot be resumed there.
            OptionError: if a loader with a mesh or a process group is pickled.
        """
        state = {name: value for name, value in vars(self).items() if name not in self._own}
        options = self._plan.options
        if self.seed is not None:  # one that was drawn, too
            options = replace(options, seed=self.seed, generator=None)
        return _remade, (type(self), self.dataset, options), (self._life.luggage(), state)

    def __setstate__(self, state: tuple[tuple[int | dict[str, Any], int | None], dict[str, Any]]) -> None:
        luggage, attributes = state
        vars(self).update(attributes)
        self._life.unpack(*luggage)

    def __copy__(self) -> Self:
        parts: Any = self.__reduce__()
        options: Options = parts[1][-1]
        # The place of a loader is the state of its sampler and its generator: two loaders would move each other.
        with suppress(TypeError):  # it holds a lock, say, and is shared
            memo = {id(self.dataset): self.dataset}
            sampler, batch_sampler = deepcopy((options.sampler, options.batch_sampler), memo)
            options = replace(options, sampler=sampler, batch_sampler=batch_sampler)
        made: Any = _remade(type(self), self.dataset, options)
        made.__setstate__(parts[-1])
        return cast("Self", made)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    __repr__, _repr_html_ = loader_text, loader_html


_all = signature(DataLoader).parameters
DataLoader._defaults = {name: one.default for name, one in _all.items() if name != "unneeded"}  # noqa: SLF001


def _remade(kind: type[DataLoader], dataset: object, options: Options) -> DataLoader:
    """A loader of these options, whatever the arguments of its class's constructor are."""
    loader = kind.__new__(kind)
    loader._set_up(dataset, options)  # noqa: SLF001
    return loader
