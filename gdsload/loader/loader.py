"""The loader: batches from shards, in torch's words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast

import torch

from gdsload.backends.base import BackendStatus, CacheStatus
from gdsload.backends.request import BackendRow
from gdsload.engine.stats import LoaderStats
from gdsload.loader.carried import carried, unpacked, with_own_sampler
from gdsload.loader.life import Life
from gdsload.loader.options import TorchKeywords, check_torch_keywords
from gdsload.loader.plan import plan_loader
from gdsload.loader.progress import Progress
from gdsload.loader.shown import shown
from gdsload.loader.torch_attributes import BatchView, OrderView, SequentialView, TorchAttributes
from gdsload.loader.whole_batches import warn_of_shared_draws
from gdsload.order.checks import check_epoch, check_whole
from gdsload.transforms import DecodeImage

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["DataLoader"]


class DataLoader(TorchAttributes):
    """Loads batches from shards, ahead of the consumer, in an order that is right for ever.

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
            disk is read in large pieces; True: the one that suits the dataset: see `order_options.reason`.
        seed: seed of the shuffle and of what transforms draw, from 0 to ``2**64 - 1``. Loaders of one dataset and seed
            have one order. None: drawn from torch's global generator when the first epoch begins, which all ranks then
            begin together and with the first one's. With a sampler, whose order is its own, of what transforms draw
            alone.
        generator: as torch's loader takes it: its ``initial_seed()`` is the seed, whatever was drawn from it.
        drop_last: leave out the last global batch if it is not full: ``tail="drop"``.
        tail: what becomes of a last global batch that is not full. ``"share"``, the default: it is shared out, so that
            all ranks get equally many samples and at least one; if they do not go round, neighbouring ranks get some
            both, fewer than there are ranks. ``"pad"``: it is filled up with the samples that the epoch began with, as
            torch's `DistributedSampler` does it, so that all batches are full. ``"drop"``: it is left out.
        device: where batches go: None for the current accelerator, or the CPU if there is none.
        fields: names of the fields to read; None for all.
        with_index: add the samples' indices in `dataset` as ``batch["index"]``, int64 ``[batch]``, on the CPU.
        with_real: add which samples of the batch count if each is to count once as ``batch["real"]``, bool ``[batch]``,
            on the batch's device: all, but for those that `tail` has repeated. `device_transform` does not see it.
        transform: called with each finished batch, in the consumer's thread; its result is handed out instead.
        as_tuple: names of fields in the order of ``for image, label in loader``: batches are tuples of these, made
            after all transforms. Without transforms and `fields`, no other fields are read.
        sample_transform: called with each sample as ``dataset[i]`` gives it, and ``"index"`` if `with_index`: a
            function, or several in a list. Results are put together by torch's ``default_collate``, and go to `device`
            from pinned memory; `device_transform` is called after that. It runs ahead of the consumer, without
            gradients, for many samples at once. If it takes a `generator` it gets one on the CPU, seeded by `seed`,
            epoch, and the sample's place in the order of all ranks (with a sampler, by step, rank and place in the
            batch); torch's functions draw from it, too. numpy's and Python's global generators are seeded with
            `sample_processes` alone.
        sample_workers: how many threads or processes call it; None: as many as there are processors, or this rank's
            share of them where torchrun has started several on the host. 0, also without `sample_transform`: nothing is
            made ahead; the thread that asks for a batch makes it, and ``breakpoint()`` works in all transforms.
        sample_processes: whether they are processes: for transforms that hold the interpreter lock, or that draw from
            numpy's or Python's global generators. They must be picklable. Each process imports torch again.
        device_transform: called before `transform` with each batch on its device: a function or module, or several in a
            list (`gdsload.transforms` has some). It runs ahead of the consumer, in the loader's threads and, on a GPU,
            on its stream, without gradients or autocast; one call at a time, but not always in the order of batches. If
            it takes a `generator` it gets one, seeded by `seed`, epoch, and the batch's place in the order of all ranks
            (with a sampler, by step and rank). Tensors in what it returns are looked for in mappings, lists, tuples and
            dataclasses. Their memory beyond the batch's own is not part of `prefetch_bytes`.
        decode: how fields of encoded images are decoded: ``{"image": gdsload.transforms.DecodeImage(...)}``. Fields of
            `bytes` may hold images, too. A field that is not named is a list of bytes.
        reuse_buffers: copy every batch at `next`, on the stream that is current, into the same tensors, as CUDA graphs
            need it. A smaller batch is their first rows. It is valid until the next `next` of any iterator of this
            loader. For fields and results of transforms that are tensors of a fixed shape.
        ragged: the form of ragged fields. ``"jagged"``: nested tensors of that layout; ``"offsets"``: pairs (values
            ``[rows, ...]``, offsets int64 ``[batch + 1]``); ``"padded"``: pairs (padded ``[batch, longest, ...]``,
            lengths int64 ``[batch]``); ``"varlen"``: `Varlen` (values ``[rows, ...]``, cu_seqlens int32
            ``[batch + 1]``, max_seqlen), for attention over sequences of varying length. Text and bytes are lists on
            the CPU.
        padding_value: what ragged fields are filled up with if they are padded: a number, or one for each field.
        block: samples of a block of the block order; None for a default that suits the dataset.
        window: samples that the block order shuffles together; None as for `block`.
        lanes: lanes of the block order, the sequences of blocks that ranks share out; None as for `block`.
        sampler: what gives the indices of this rank's samples, instead of `shuffle`: a sampler as in torch, or indices
            in a tensor. Ranks do not share it out. It is drawn from ahead of the consumer, by the loader's threads, one
            at a time, and `close` waits until it has given its next index. `state_dict()` in the middle of an epoch
            needs one that has `state_dict`, a seeded `generator`, or `set_epoch` and `epoch`, or that is a list, range
            or tensor.
        batch_sampler: what gives lists of indices, a batch each; otherwise as `sampler`. `TokenBudget` and
            `LengthBuckets` share their batches out among the ranks.
        rank: this process's rank, which says what share of each global batch it gets; None for torch.distributed's when
            an epoch begins, or 0 of 1 if it is not initialised and WORLD_SIZE says of no others. All ranks make the
            same number of steps, with batches of the same size.
        world_size: number of ranks; given with `rank`.
        mesh: a DeviceMesh, instead of these two. Its dimensions of data parallelism (``dp``, ``fsdp``,
            ``dp_replicate``, ``dp_shard`` and the like) share samples out, and ranks along those of tensor, context,
            sequence or pipeline parallelism (``tp``, ``cp``, ``sp``, ``pp``) get the same batches. A mesh of one
            dimension of another name shares them out along that. All its ranks begin the first epoch together, in which
            they compare what their loaders do.
        process_group: the group of the ranks that share samples out, likewise.
        check_peers: compare each batch with those of the ranks of `mesh` that are to get the same one, by its hash.
            They ask for it together, and all of them raise an error if they differ, or if one fails. It costs a copy to
            the CPU and two small exchanges a batch.
        prefetch_bytes: bytes of batches that are made ahead of the consumer: two at least, and some hundreds at most.
            None: where batches go to a GPU a 64th of its memory, from 512 MiB to 1 GiB; 256 MiB elsewhere.
        arena_bytes: bytes of memory that reads land in, on the GPU or with `mmap=False`. On a GPU, this and
            `prefetch_bytes` are what the loader takes of its memory; batches that were dropped while kernels still read
            them, and rows of less than 16 KiB that are sorted, take up to `prefetch_bytes` more. None: on a GPU twice
            what None gives for `prefetch_bytes`, 1 GiB elsewhere.
        mmap: whether shards are mapped, as in `ShardDataset`; None: as the dataset was opened.
        backend: the way that bytes travel. By name it is used or refused, never replaced; ``"gds"`` means that cuFile's
            own counters have shown DMA. A `gdsload.backends.request.BackendRow` is a backend of another library.
        gds_engine: what calls cuFile.
        gds_compat: whether cuFile's own compat mode will do for ``"gds"``.
        pinned_bytes: bytes of host memory that ``"bounce"`` pins.
        register_bytes: bytes of files that may be registered with CUDA, and so kept in memory; None: half of what is
            available, also to the control group, and all files in a tmpfs.
        cache: where samples are kept for later epochs. ``"pagecache"``: on a GPU the first shards that `register_bytes`
            have room for are read into the page cache during the first epoch and registered with CUDA; others are read
            around it. ``"none"``: all are read around it. ``"vram"``: in the GPU's memory; ``"auto"``: there first, and
            then in the page cache. What does not fit is read in every epoch. With a `decode` that makes the same of an
            image in every epoch but for a flip, ``"vram"`` and ``"auto"`` keep the decoded images in the GPU's memory
            instead, and ``"ram"`` keeps them in memory, where batches are built on the CPU. `loader.cache` says what is
            where.
        vram_bytes: bytes of the tier in VRAM; None: of what is free, half for ``"vram"``, a quarter for ``"auto"``.
        ram_bytes: bytes of decoded images that ``"ram"`` keeps; None: half of the memory that is available, or of the
            control group's limit, shared out among the host's ranks where torchrun has started several.
        read_threads: how many threads read, 512 at most; several drives share them out. None for what suits the
            backend.
        **unneeded: `num_workers`, `pin_memory` and other keywords of torch's loader that have no meaning here are
            accepted. One warning in a process says so where they are not torch's defaults; `collate_fn` is refused.

    Raises:
        OptionError: if an argument cannot be used.
        BudgetError: if `arena_bytes` is too small for the windows of all lanes.
        BackendUnavailableError: if the backend or the cache that was asked for by name cannot be used.
        DatasetNotFoundError, FormatError: see `ShardDataset`.
    """

    def __init__(  # noqa: PLR0913 (every option is declared here, and nowhere else)
        self,
        dataset: object,
        batch_size: int = 1,
        shuffle: bool | str | None = False,
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
        sample_transform: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        sample_workers: int | None = None,
        sample_processes: bool = False,
        device_transform: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        decode: Mapping[str, DecodeImage] | None = None,
        reuse_buffers: bool = False,
        ragged: Literal["jagged", "offsets", "padded", "varlen"] = "jagged",
        padding_value: float | Mapping[str, float] = 0,
        block: int | None = None,
        window: int | None = None,
        lanes: int | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: DeviceMesh | None = None,
        process_group: ProcessGroup | None = None,
        check_peers: bool = False,
        prefetch_bytes: int | str | None = None,
        arena_bytes: int | str | None = None,
        mmap: bool | None = None,
        backend: Literal["auto", "gds", "mapped", "bounce", "host"] | BackendRow = "auto",
        gds_engine: Literal["cufile", "kvikio"] = "cufile",
        gds_compat: bool = False,
        pinned_bytes: int | str = "96MiB",
        register_bytes: int | str | None = None,
        cache: Literal["pagecache", "none", "auto", "vram", "ram"] = "pagecache",
        vram_bytes: int | str | None = None,
        ram_bytes: int | str | None = None,
        read_threads: int | None = None,
        **unneeded: Unpack[TorchKeywords],
    ) -> None:
        given = dict(locals())  # first of all, when there is nothing but the arguments
        del given["self"], given["dataset"], given["unneeded"]
        before = vars(self).keys() | {"_own", "_made"}
        check_torch_keywords(unneeded, ["dataset", *given])
        warn_of_shared_draws(given)
        self._plan = plan = plan_loader(dataset, given)
        self._given = carried(given)
        # As with torch's loader, `len(loader.dataset)` is the number of samples.
        self.dataset, self.device, self.order_options = plan.dataset, plan.device, plan.order
        self.batch_size = plan.schedule.batch_size if batch_sampler is None else None
        self.tail, self.drop_last = plan.schedule.tail, plan.schedule.tail == "drop"
        self._progress = Progress(plan)
        self._life = Life(plan, self._progress)
        self.stats = self._life.stats
        view = (SequentialView if plan.order.shuffle == "sequential" else OrderView)(self._life, len(plan.selected))
        self.sampler: Any = view if sampler is None else sampler
        self.batch_sampler: Any = batch_sampler
        if batch_sampler is None:
            self.batch_sampler = BatchView(self._life, view, plan.schedule.batch_size, self.drop_last)
        self._own = vars(self).keys() - before | {"_own", "_made"}  # not a subclass's, or whoever else's
        self._made = True

    __class_getitem__: Any = classmethod(GenericAlias)  # `DataLoader[dict]` is an annotation, as of torch's

    def __len__(self) -> int:
        """Number of batches of an epoch, the same for every rank. With a sampler its own length counts, as in torch.

        Raises:
            OptionError: if this is one of several processes, and nobody has said which; see `rank`.
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
            step: number of the first batch: those before it are left out, at no cost. None for where that very epoch
                was resumed, if it is not finished since, even if nothing was left of it; else for the first of all.

        Raises:
            OptionError: if `epoch` is no whole number from 0 to 2**64 - 1, or the epoch has no such step; with a
                sampler, if a step is given.
        """
        self._life.set_epoch(check_epoch(epoch), None if step is None else check_whole(step, "step", 0))

    @property
    def epoch_stats(self) -> LoaderStats:
        """The counts of `stats` since the newest epoch began; of one that is over, until the next begins."""
        return self._life.epoch_stats

    @property
    def backend(self) -> BackendStatus:
        """The backend in use, the reason, and the bytes it has moved, by path."""
        return self._life.backend

    @property
    def cache(self) -> CacheStatus:
        """The caches in VRAM and in the page cache: their budgets, the bytes kept, and the bytes read from them."""
        return self._life.cache

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
        """Copies, in this process and in others, are made from the arguments, and stand where this loader stands.

        With a mesh or a process group they are made in this process alone, of the same.

        Raises:
            StateError: in the middle of an epoch of a sampler that cannot be resumed there.
            OptionError: if a loader with a mesh or a process group is pickled.
        """
        state = {name: value for name, value in vars(self).items() if name not in self._own}
        given = self._given if self.seed is None else {**self._given, "seed": self.seed}  # one that was drawn, too
        return _remade, (type(self), self.dataset, given), (self._life.luggage(), state)

    def __setstate__(self, state: tuple[tuple[int | dict[str, Any], int | None], dict[str, Any]]) -> None:
        luggage, attributes = state
        vars(self).update(attributes)
        self._life.unpack(*luggage)

    def __copy__(self) -> Self:
        parts: Any = self.__reduce__()
        made: Any = _remade(type(self), self.dataset, with_own_sampler(parts[1][-1], self.dataset))
        made.__setstate__(parts[-1])
        return cast("Self", made)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return shown(self._plan, self.batch_size)


def _remade(kind: type[DataLoader], dataset: object, given: dict[str, Any]) -> DataLoader:
    """A loader of these arguments, whatever those of its class's constructor are."""
    loader = kind.__new__(kind)
    DataLoader.__init__(loader, dataset, **unpacked(given))
    return loader
