"""The options of a loader: typed, checked, and refused where two of them contradict each other.

Which keywords there are, their types, defaults and meaning is declared by `gdsload.DataLoader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from gdsload.backends.choices import Auto, Bounce, Gds
from gdsload.backends.names import BackendChoice
from gdsload.backends.request import BackendRow, Placement
from gdsload.engine.batch_source import identity
from gdsload.engine.codecs import RaggedForm
from gdsload.engine.sample_transform import PerSample
from gdsload.errors import OptionError
from gdsload.loader.batch_fields import Padded
from gdsload.loader.rank_groups import RankGroups
from gdsload.loader.samplers.indices import is_function
from gdsload.loader.samplers.planned import PlannedSampler
from gdsload.order import BlockShuffle, Tail
from gdsload.system.names import check_list
from gdsload.system.units import parse_bytes
from gdsload.transforms import DecodeImage
from gdsload.transforms.compose import callables

CacheChoice = Literal["pagecache", "none", "auto", "vram", "ram"]
StoredCheck = Literal["off", "sample", "all"]
_PREFETCH_BYTES, _ARENA_BYTES = 2**28, 2**30
"""Bytes of batches ahead of the consumer, and of an arena, by default, where batches go to no GPU."""
_SHARE_OF_GPU, _AHEAD_ON_GPU = 64, (2**29, 2**30)
"""Of a GPU's memory a 64th may be ahead, as larger groups of batches cost less: at least and at most so many bytes."""
_CHOICES: dict[str, tuple[object, ...]] = {
    "ragged": get_args(RaggedForm),
    "cache": get_args(CacheChoice),
    "ahead": (False, True),
    "reuse_buffers": (False, True),
    "tail": (None, *get_args(Tail)),
    "mmap": (None, False, True),
}
_ITERATED = "its indices are this rank's alone, and only those of a function are shared out"
_BATCHES = "it alone says which samples are in which batch of this rank"
_COLLATED = "samples are made in CPU memory, and batches are collated from them there"
_CONFLICTS: tuple[tuple[str, str, tuple[object, ...], str], ...] = (
    ("batch_sampler", "sampler", (None,), _BATCHES),
    ("batch_sampler", "batch_size", (1,), _BATCHES),
    ("batch_sampler", "drop_last", (False,), _BATCHES),
    ("batch_sampler", "tail", (None,), _BATCHES),
    ("batch_sampler", "shuffle", (False,), _BATCHES),
    ("batch_sampler", "ranks", (None,), _BATCHES),
    ("sampler", "shuffle", (False,), "it alone says which samples come, in which order"),
    ("an iterated sampler", "tail", (None, "drop"), f"{_ITERATED}; torch's DistributedSampler pads by itself"),
    ("an iterated sampler", "ranks", (None,), _ITERATED),
    ("generator", "seed", (0,), "the generator's initial_seed() is the seed"),
    ("drop_last", "tail", (None, "drop"), "it leaves out a last batch that is not full"),
    ("collate_fn", "backend", ("auto", "host"), _COLLATED),
    ("collate_fn", "cache", ("pagecache", "none", "ram"), _COLLATED),
    ("collate_fn", "ragged", ("jagged",), _COLLATED),
    ("sample_transform", "backend", ("auto", "host"), _COLLATED),
    ("sample_transform", "cache", ("pagecache", "none", "ram"), _COLLATED),
    ("sample_transform", "ragged", ("jagged",), _COLLATED),
    ("processes", "ahead", (True,), "`PerSample(processes=True)` has samples made by processes, which work ahead"),
)
"""Options that contradict each other: one that is given, another, the values of the other that go with it, and why no
more do."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Budgets of a loader's memory, for `memory=`: numbers of bytes, or text such as ``"2GiB"``.

    Attributes:
        prefetch: batches that are made ahead of the consumer: two at least, and some hundreds at most. None: where
            batches go to a GPU a 64th of its memory, from 512 MiB to 1 GiB; 256 MiB elsewhere.
        arena: memory that reads land in, on the GPU or with ``mmap=False``. On a GPU, this and `prefetch` are what the
            loader takes of its memory; batches that were dropped while kernels still read them, and rows of less than
            16 KiB that are sorted, take up to `prefetch` more. None: on a GPU twice what None gives for `prefetch`,
            1 GiB elsewhere.
        registered: files that may be registered with CUDA, and so kept in memory. None: half of what is available, also
            to the control group, and all files in a tmpfs.
        vram: the cache in the GPU's memory. None: of what is free, half for ``cache="vram"``, a quarter for ``"auto"``.
        ram: decoded images that ``cache="ram"`` keeps. None: half of the memory that is available, or of the control
            group's limit, shared out among the host's ranks where torchrun has started several.

    Raises:
        OptionError: if one is no size; `prefetch` and `arena` are 1 at least.
    """

    prefetch: int | str | None = None
    arena: int | str | None = None
    registered: int | str | None = None
    vram: int | str | None = None
    ram: int | str | None = None

    def __post_init__(self) -> None:
        for name in ("prefetch", "arena", "registered", "vram", "ram"):
            self.nbytes(name)

    def nbytes(self, name: Literal["prefetch", "arena", "registered", "vram", "ram"]) -> int | None:
        """A budget in bytes; None if it is not given."""
        value: int | str | None = getattr(self, name)
        return None if value is None else parse_bytes(value, name, at_least=int(name in ("prefetch", "arena")))


@dataclass(frozen=True, slots=True)
class Verify:
    """The checks of what a loader reads and hands out, for `verify=`.

    Attributes:
        stored: ``"all"``: every stored byte that a batch is made of is compared with its checksum where it lands,
            whole blocks of 256 KiB, before it is decoded: by the GPU in its own memory, by the CPU in the host's.
            Shards that `cache` keeps within the GPU's reach are compared once, when they are there. ``"sample"``: one
            block in 16 is compared, the same ones in every epoch. The loader's seed chooses them, or 0 if it has none;
            reads of other blocks are not widened. ``"off"``: nothing is compared.
        on_corrupt: ``"raise"``: a batch with damaged samples is a `ChecksumError`, which names shard, field, bytes and
            samples; the next `next` goes on after it. ``"skip"``: such a batch is left out, and the log says why.
            The other batches stay as they are. Several ranks must make equally many steps, so they cannot skip any.

    Raises:
        OptionError: if a value cannot be used.
    """

    stored: StoredCheck = "all"
    on_corrupt: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        stored = get_args(StoredCheck)
        for name, known in (("stored", stored), ("on_corrupt", ("raise", "skip"))):
            if getattr(self, name) not in known:
                listed = f"Supported are {', '.join(map(repr, known))}."
                raise OptionError(f"is {getattr(self, name)!r}", option=f"verify.{name}", remedy=listed)


def verification(given: Any) -> Verify:
    """The value of `verify` as a `Verify`; OptionError if it is none, and no name of one."""
    if isinstance(given, Verify):
        return given
    if given not in get_args(StoredCheck):
        remedy = "Supported are 'off', 'sample', 'all', and gdsload.Verify."
        raise OptionError(f"is {given!r}", option="verify", remedy=remedy)
    return Verify(given)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """All options of a loader but its dataset; OptionError if one cannot be used, or not together with another."""

    batch_size: int
    shuffle: bool | str | BlockShuffle
    seed: int | None
    generator: torch.Generator | None
    drop_last: bool
    tail: Tail | None
    device: str | torch.device | int | None
    fields: Sequence[str] | None
    with_index: bool
    with_real: bool
    transform: Callable[..., Any] | None
    as_tuple: Sequence[str] | None
    sample_transform: PerSample | None
    collate_fn: Callable[[list[Any]], Any] | None
    device_transform: tuple[Callable[..., Any], ...]
    decode: Mapping[str, DecodeImage] | None
    ahead: bool
    reuse_buffers: bool
    ragged: RaggedForm | Padded
    sampler: Iterable[Any] | Callable[[int], Any] | None
    batch_sampler: Iterable[Any] | None
    ranks: RankGroups | tuple[int, int] | None
    verify: Verify
    memory: Memory
    mmap: bool | None
    backend: BackendChoice | Auto | Gds | Bounce | BackendRow
    cache: CacheChoice

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if self._said(name) not in known:
                listed = f"Supported are {', '.join(map(repr, known))}."
                raise OptionError(f"is {getattr(self, name)!r}", option=name, remedy=listed)
        for name in ("transform", "collate_fn"):
            if (function := getattr(self, name)) is not None and not callable(function):
                raise OptionError(f"is {function!r}, which cannot be called", option=name)
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            raise OptionError(f"is {self.generator!r}, which is no torch.Generator", option="generator")
        if not isinstance(self.memory, Memory):
            remedy = 'Pass `memory=gdsload.Memory(prefetch="1GiB")`.'
            raise OptionError(f"is {self.memory!r}", option="memory", remedy=remedy)
        for one, other, possible, why in _CONFLICTS:
            value, given = self._said(other), self._said(one)
            together = any(value is each or (isinstance(each, str | int) and value == each) for each in possible)
            if given is not None and given is not False and not together:
                shown = f"{other}={value!r}" if isinstance(value, str | int) else other
                message = f"cannot be used together with `{shown}`: {why}"
                raise OptionError(message, option=one.removeprefix("an iterated "), remedy="Leave one of them out.")

    def _said(self, name: str) -> object:
        """The value of an option as the tables above have it."""
        if name == "processes":
            return self.sample_transform is not None and self.sample_transform.processes
        if name == "an iterated sampler":
            return self.sampler if self.function is None else None
        if name == "ranks" and (isinstance(self.ranks, RankGroups) or isinstance(self.batch_sampler, PlannedSampler)):
            return None  # both may be given with a batch sampler: its ranks may differ, or it shares its batches out
        value = getattr(self, name)
        return value.name if isinstance(value, Auto | Gds | Bounce | Padded) else value

    @property
    def function(self) -> Callable[[int], Any] | None:
        """The sampler, if it is a function of the epoch, whose indices ranks share out."""
        return self.sampler if is_function(self.sampler) else None

    @property
    def order_seed(self) -> int | None:
        """The seed as given, or the generator's; None if it is still to be drawn."""
        return self.seed if self.generator is None else int(self.generator.initial_seed())

    @property
    def last_batch(self) -> Tail:
        """The treatment of a last global batch that is not full: as `tail` or `drop_last` says, else it is shared."""
        return self.tail or ("drop" if self.drop_last else "share")

    @property
    def tuple_names(self) -> tuple[str, ...]:
        """The fields of batches that are handed out as tuples; none: batches are as they are.

        Raises OptionError if they are no names.
        """
        names = self.as_tuple
        if names is None:
            return ()
        check_list("as_tuple", names)
        if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
            remedy = 'Name the fields in their order: `as_tuple=("image", "label")`.'
            raise OptionError(f"is {names!r}", option="as_tuple", remedy=remedy)
        return tuple(names)


def per_sample(
    transform: Callable[..., Any] | Sequence[Callable[..., Any]] | PerSample | None, *, collated: bool
) -> PerSample | None:
    """The transforms of samples, and the number and kind of their workers; None: batches are made of no samples.

    If batches are `collated` by a function, they are made of samples in any case. Raises OptionError if a transform
    cannot be called.
    """
    if isinstance(transform, PerSample):
        return transform
    found = callables(transform, "sample_transform") or ((identity,) if collated else ())
    return PerSample(found) if found else None


def default_budgets(placement: Placement, device: torch.device) -> tuple[int, int]:
    """Bytes of batches ahead of the consumer, and of an arena, by default."""
    if device.type != "cuda":
        return _PREFETCH_BYTES, _ARENA_BYTES
    least, most = _AHEAD_ON_GPU
    memory = torch.cuda.get_device_properties(device).total_memory if torch.cuda.is_available() else 0
    ahead = min(max(memory // _SHARE_OF_GPU, least), most)
    if placement == "host":  # and copied to the GPU: what is ahead is there
        return ahead, _ARENA_BYTES
    # A block shuffle holds its windows, of 512 MiB at most, and reads as much ahead as any other order.
    return ahead, 2 * ahead
