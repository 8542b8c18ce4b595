"""The loader's options, checked in one place, with an answer to those that only torch's loader needs."""

from __future__ import annotations

import numbers
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.backends.registry import BACKEND_CHOICES, BackendChoice
from gdsload.engine.assemble import RaggedForm
from gdsload.errors import OptionError, SchemaError
from gdsload.order.checks import check_whole
from gdsload.shards.format.dtypes import DType
from gdsload.shards.format.schema import Schema
from gdsload.shards.values import as_bytes, held
from gdsload.system.names import check_names
from gdsload.system.units import parse_bytes

__all__ = ["MOST_READ_THREADS", "LoaderKeywords", "LoaderOptions", "padding_of", "parse_options", "resolve_device"]

_UNNEEDED = frozenset(
    {
        "num_workers",
        "pin_memory",
        "pin_memory_device",
        "prefetch_factor",
        "persistent_workers",
        "worker_init_fn",
        "multiprocessing_context",
        "timeout",
        "in_order",
    }
)
_REFUSED = {
    "collate_fn": "Batches are gathered whole: nothing is left to collate. Pass transform=: it gets the whole batch.",
    "generator": "Pass seed=, or a sampler with this generator.",
}
_NAMED = ("batch_size", "shuffle", "seed", "drop_last", "device")
"""Those that `gdsload.DataLoader` has as parameters of their own."""
MOST_READ_THREADS = 512
_CHOICES: dict[str, tuple[object, ...]] = {
    "ragged": ("jagged", "offsets", "padded"),
    "backend": BACKEND_CHOICES,
    "gds_engine": ("cufile", "kvikio"),
    "cache": ("none", "auto", "vram", "pagecache"),
    "reuse_buffers": (False, True),
    "tuned": (False, True),
}


class LoaderKeywords(TypedDict, total=False):
    """The keywords of `gdsload.DataLoader` after the first few; its documentation says what they mean."""

    fields: Sequence[str] | None
    with_index: bool
    transform: Callable[[dict[str, Any]], Any] | None
    device_transform: Callable[..., Any] | Sequence[Callable[..., Any]] | None
    reuse_buffers: bool
    ragged: RaggedForm
    padding_value: float | Mapping[str, float]
    backend: BackendChoice
    gds_engine: Literal["cufile", "kvikio"]
    gds_compat: bool
    pinned_bytes: int | str
    register_bytes: int | str | None
    cache: Literal["none", "auto", "vram", "pagecache"]
    vram_bytes: int | str | None
    block: int | None
    window: int | None
    lanes: int | None
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    rank: int | None
    world_size: int | None
    prefetch_bytes: int | str
    arena_bytes: int | str
    mmap: bool | None
    read_threads: int | None
    tuned: bool
    num_workers: int
    pin_memory: bool
    pin_memory_device: str
    prefetch_factor: int | None
    persistent_workers: bool
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: object
    timeout: float
    in_order: bool


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """The options that are left when torch's have been answered. `gdsload.DataLoader` says what they mean."""

    fields: Sequence[str] | None = None
    with_index: bool = False
    transform: Callable[[dict[str, Any]], Any] | None = None
    device_transform: Any = ()
    reuse_buffers: bool = False
    ragged: RaggedForm = "jagged"
    padding_value: float | Mapping[str, float] = 0
    backend: str = "auto"
    gds_engine: str = "cufile"
    gds_compat: bool = False
    pinned_bytes: int | str = "96MiB"
    register_bytes: int | str | None = None
    cache: str = "none"
    vram_bytes: int | str | None = None
    block: int | None = None
    window: int | None = None
    lanes: int | None = None
    sampler: Any = None
    batch_sampler: Any = None
    rank: int | None = None
    world_size: int | None = None
    prefetch_bytes: int | str = "256MiB"
    arena_bytes: int | str = "1GiB"
    mmap: bool | None = None
    read_threads: int | None = None
    tuned: bool = True

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                supported = f"Supported are {', '.join(map(repr, known))}."
                raise OptionError(f"{name} is {getattr(self, name)!r}", remedy=supported)
        if self.cache == "pagecache" and self.backend not in ("auto", "host"):
            raise OptionError(
                f'cache="pagecache" and backend={self.backend!r} exclude each other',
                remedy='Leave backend= out: "auto" reads shards from the page cache that are there.',
            )
        given = self.padding_value
        for value in given.values() if isinstance(given, Mapping) else [given]:
            if not isinstance(value, numbers.Number):
                raise OptionError(f"padding_value is {given!r}, which is no number")
        if self.mmap not in (None, False, True):
            raise OptionError(f"mmap is {self.mmap!r}", remedy="Pass True or False, or None for what the dataset does.")
        if self.transform is not None and not callable(self.transform):
            raise OptionError(f"transform is {self.transform!r}, which cannot be called")
        if self.read_threads is not None:
            object.__setattr__(self, "read_threads", _thread_count(self.read_threads))
        object.__setattr__(self, "device_transform", _several(self.device_transform))
        object.__setattr__(self, "prefetch_bytes", parse_bytes(self.prefetch_bytes, "prefetch_bytes", at_least=1))
        object.__setattr__(self, "pinned_bytes", parse_bytes(self.pinned_bytes, "pinned_bytes", at_least=2**20))
        for name in ("register_bytes", "vram_bytes"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, parse_bytes(getattr(self, name), name))
        object.__setattr__(self, "arena_bytes", parse_bytes(self.arena_bytes, "arena_bytes", at_least=1))


def _several(transforms: Any) -> tuple[Callable[..., Any], ...]:
    """Transforms as they are given: none, one, or several in a list or tuple."""
    if transforms is None:
        return ()
    found = tuple(transforms) if isinstance(transforms, list | tuple) else (transforms,)
    for transform in found:
        if not callable(transform):
            raise OptionError(f"device_transform is {transforms!r}: {transform!r} cannot be called")
    return found


def parse_options(given: Mapping[str, object]) -> LoaderOptions:
    """Check the keywords that a loader was made with.

    Raises:
        OptionError: if one is refused, unknown, or has a value that cannot be used.
    """
    for name, remedy in _REFUSED.items():
        if given.get(name) is not None:
            raise OptionError(f"{name} is not supported", remedy=remedy)
    known = {field.name for field in fields(LoaderOptions)}
    unneeded = sorted(given.keys() & _UNNEEDED)
    check_names("DataLoader", sorted(given.keys() - _UNNEEDED - _REFUSED.keys()), {*known, *_NAMED})
    if unneeded:
        warnings.warn(
            f"gdsload.DataLoader does not need {', '.join(unneeded)}: it reads ahead in threads of its own",
            UserWarning,
            stacklevel=3,
        )
    return LoaderOptions(**cast("dict[str, Any]", {name: value for name, value in given.items() if name in known}))


def padding_of(options: LoaderOptions, schema: Schema, fields: Sequence[str]) -> dict[str, NDArray[np.uint8]]:
    """For each field that is padded, the bytes of the element that it is filled up with; shape ``[itemsize]``.

    Raises:
        OptionError: if a field's element type cannot hold its value, or a field is named that there is not.
    """
    if options.ragged != "padded":
        return {}
    given, ragged = options.padding_value, [name for name in schema if schema[name].kind == "ragged"]
    values = given if isinstance(given, Mapping) else dict.fromkeys(ragged, given)
    unknown = [name for name in values if name not in ragged]
    if unknown:
        raise OptionError(
            f"padding_value names {unknown[0]!r}, which is no field that is padded",
            remedy=f"Those are {', '.join(map(repr, ragged)) or 'none'}.",
        )
    return {name: _element(name, schema[name].dtype, values.get(name, 0)) for name in ragged if name in fields}


def _element(name: str, dtype: DType, value: float) -> NDArray[np.uint8]:
    """The bytes of a number, by the rule that `ShardWriter.write` has."""
    try:
        return as_bytes(value.item() if isinstance(value, np.generic) else value, dtype, name)
    except SchemaError:
        raise OptionError(
            f"padding_value is {value!r}, which {dtype.name} cannot hold: it holds {held(dtype)}",
            field=name,
            remedy="Pass another one, or one for each field: padding_value={'tokens': 0, 'labels': -100}. To have this "
            "one, convert the field to an element type that holds it.",
        ) from None


def _thread_count(value: int) -> int:
    count = check_whole(value, "read_threads", 1)
    if count > MOST_READ_THREADS:
        raise OptionError(f"read_threads is {count}", remedy=f"At most {MOST_READ_THREADS} can be had.")
    return count


def resolve_device(device: str | torch.device | int | None) -> torch.device:
    """The device that batches go to: as given, else the current accelerator, else the CPU.

    Raises:
        OptionError: if there is no such device here.
    """
    if device is None:
        if not torch.accelerator.is_available():
            return torch.device("cpu")
        kind = cast("torch.device", torch.accelerator.current_accelerator())
        return torch.device(kind.type, _current_index())
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
        if found.type == "meta":
            raise TypeError("it has no memory")
        if found.type == "cuda" and found.index is None:
            found = torch.device("cuda", torch.cuda.current_device())
    except (RuntimeError, AssertionError, TypeError) as error:
        raise OptionError(
            f"device {device!r} cannot be used here: {(str(error).splitlines() or [type(error).__name__])[0]}",
            remedy='Pass device="cpu", or None for the accelerator if there is one.',
        ) from None
    return found


def _current_index() -> int:
    """That of the current accelerator; where a launcher has said LOCAL_RANK and nobody has chosen since, that one."""
    index, rank = torch.accelerator.current_device_index(), os.environ.get("LOCAL_RANK", "")
    if index == 0 and rank.isdecimal() and int(rank) < torch.accelerator.device_count():
        return int(rank)
    return index
