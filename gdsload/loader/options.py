"""The values of `gdsload.DataLoader`'s keywords, checked and made plain; those of torch's loader have an answer, too.

Which keywords there are, their types, defaults and meaning is declared by the signature and docstring of that class.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict, cast

import torch

from gdsload.backends.names import BACKEND_CHOICES
from gdsload.backends.request import BackendRow, Placement
from gdsload.engine.sample_transform import PerSample
from gdsload.errors import OptionError
from gdsload.order import Tail
from gdsload.order.checks import check_whole
from gdsload.system.names import check_list, check_names
from gdsload.system.share import processors
from gdsload.system.units import parse_bytes

__all__ = [
    "MOST_READ_THREADS",
    "REFUSED",
    "SEVERAL",
    "TOLD",
    "TorchKeywords",
    "budgets",
    "byte_count",
    "check_choices",
    "check_torch_keywords",
    "dataset_path",
    "default_budgets",
    "per_sample",
    "resolve_device",
    "seed_of",
    "share",
    "tail",
    "thread_count",
    "transforms",
    "tuple_names",
]

MOST_READ_THREADS = 512
_PREFETCH_BYTES, _ARENA_BYTES = 2**28, 2**30
"""Bytes of batches ahead of the consumer, and of an arena, if nothing is said of them and batches go to no GPU."""
_SHARE_OF_GPU, _AHEAD_ON_GPU = 64, (2**29, 2**30)
"""Of a GPU's memory a 64th may be ahead, as larger groups of batches cost less: at least and at most so many bytes."""
_CHOICES: dict[str, tuple[object, ...]] = {
    "ragged": ("jagged", "offsets", "padded", "varlen"),
    "backend": BACKEND_CHOICES,
    "gds_engine": ("cufile", "kvikio"),
    "cache": ("pagecache", "none", "auto", "vram", "ram"),
    "reuse_buffers": (False, True),
    "tail": (None, "share", "pad", "drop"),
}
REFUSED = {
    "collate_fn": "Batches are gathered whole: nothing is left to collate. Pass sample_transform= for what is done to "
    "each sample, and transform= for what is done to each batch.",
}
"""Keywords that are refused, and what to do instead."""


_TORCHS: dict[str, object] = {
    "num_workers": 0, "pin_memory": False, "pin_memory_device": "", "prefetch_factor": None, "timeout": 0,
    "persistent_workers": False, "worker_init_fn": None, "multiprocessing_context": None, "in_order": True,
}  # fmt: skip
"""torch's defaults: who writes them out wants nothing of them."""
SEVERAL = (
    "Several datasets are read as torch.utils.data.ConcatDataset([gdsload.ShardDataset(path) for path in paths]), or "
    "made one by gdsload.merge(paths, out)."
)
"""What to do with paths of several datasets."""
TOLD: set[str] = set()
"""The keywords that a warning has spoken of in this process."""


class TorchKeywords(TypedDict, total=False):
    """Keywords of torch's loader that have no meaning here."""

    num_workers: int
    pin_memory: bool
    pin_memory_device: str
    prefetch_factor: int | None
    persistent_workers: bool
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: object
    timeout: float
    in_order: bool


def check_torch_keywords(given: Mapping[str, object], known: Iterable[str]) -> None:
    """Answer the keywords that the loader does not have: with a warning, once, for those that it does not need.

    Args:
        given: the keywords.
        known: those that the loader has.

    Raises:
        OptionError: if one is refused, or unknown.
    """
    for name, remedy in REFUSED.items():
        if given.get(name) is not None:
            raise OptionError(f"{name} is not supported", remedy=remedy)
    unneeded = TorchKeywords.__annotations__.keys()
    check_names("DataLoader", sorted(given.keys() - unneeded - REFUSED.keys()), known)
    found = sorted(name for name in given.keys() & unneeded if given[name] != _TORCHS[name])
    if not TOLD.issuperset(found):
        TOLD.update(found)
        warnings.warn(
            f"gdsload.DataLoader does not need {', '.join(found)}: it reads ahead in threads of its own",
            UserWarning,
            stacklevel=3,
        )


def check_choices(given: Mapping[str, object]) -> None:
    """Refuse what is none of the values that an option may have."""
    for name, known in _CHOICES.items():
        if given[name] not in known and not (name == "backend" and isinstance(given[name], BackendRow)):
            more = ", or a BackendRow" if name == "backend" else ""
            raise OptionError(
                f"{name} is {given[name]!r}", remedy=f"Supported are {', '.join(map(repr, known))}{more}."
            )
    if given["mmap"] not in (None, False, True):
        remedy = "Pass True or False, or None for what the dataset does."
        raise OptionError(f"mmap is {given['mmap']!r}", remedy=remedy)


def byte_count(given: Mapping[str, Any], name: str, *, at_least: int = 0) -> int:
    """A number of bytes, from a number or a text."""
    return parse_bytes(given[name], name, at_least=at_least)


def budgets(given: Mapping[str, Any], placement: Placement, device: torch.device) -> dict[str, int]:
    """Bytes of batches ahead of the consumer, and of an arena: as given, or what suits where batches are built."""
    default = default_budgets(placement, device)
    asked = {name: default[name] if given[name] is None else given[name] for name in default}
    return {name: byte_count(asked, name, at_least=1) for name in asked}


def default_budgets(placement: Placement, device: torch.device) -> dict[str, int]:
    """The same if nothing is said of them."""
    if device.type != "cuda":
        return {"prefetch_bytes": _PREFETCH_BYTES, "arena_bytes": _ARENA_BYTES}
    least, most = _AHEAD_ON_GPU
    memory = torch.cuda.get_device_properties(device).total_memory if torch.cuda.is_available() else 0
    ahead = min(max(memory // _SHARE_OF_GPU, least), most)
    if placement == "host":  # and copied to the GPU: what is ahead is there
        return {"prefetch_bytes": ahead, "arena_bytes": _ARENA_BYTES}
    # A block shuffle holds its windows, of 512 MiB at most, and reads as much ahead as any other order.
    return {"prefetch_bytes": ahead, "arena_bytes": 2 * ahead}


def thread_count(given: Mapping[str, Any], name: str, *, at_least: int = 1) -> int | None:
    """A number of threads; None for what suits."""
    if given[name] is None:
        return None
    count = check_whole(given[name], name, at_least)
    if count > MOST_READ_THREADS:
        raise OptionError(f"{name} is {count}", remedy=f"At most {MOST_READ_THREADS} can be had.")
    return count


def transforms(given: Mapping[str, Any], name: str) -> tuple[Callable[..., Any], ...]:
    """Transforms as they are given: none, one, or several in a list or tuple."""
    value = given[name]
    if value is None:
        return ()
    found = tuple(value) if isinstance(value, list | tuple) else (value,)
    for transform in found:
        if not callable(transform):
            raise OptionError(f"{name} is {value!r}: {transform!r} cannot be called")
    return found


def per_sample(given: Mapping[str, Any]) -> PerSample | None:
    """The transforms of samples, and the number and kind of their workers; None: there are no such transforms."""
    found, workers = transforms(given, "sample_transform"), thread_count(given, "sample_workers", at_least=0)
    if workers == 0 and given["sample_processes"]:
        raise OptionError(
            "sample_workers=0 has all work done in the thread that asks for batches, and sample_processes=True in "
            "processes",
            remedy="Leave one of them out.",
        )
    if not found:
        if workers or given["sample_processes"]:
            raise OptionError(
                "sample_workers and sample_processes are for sample_transform, which is not given",
                remedy="Leave them out; sample_workers=0 alone has batches made in the thread that asks for them.",
            )
        return None
    others = {"backend": ("auto", "host"), "cache": ("none", "ram", "pagecache"), "ragged": ("jagged",)}
    for name, possible in others.items():
        if given[name] not in possible:
            raise OptionError(
                f"{name}={given[name]!r} cannot be had with sample_transform, which gets samples in CPU memory, ragged "
                "fields as tensors, and whose results are put together by torch's default_collate",
                remedy=f"Leave {name} out.",
            )
    made = PerSample(found, processors() if workers is None else workers, bool(given["sample_processes"]))
    if made.processes:
        made.payload()
    return made


def seed_of(given: Mapping[str, Any]) -> int | None:
    """The seed: as given, or that of a generator; None if it is still to be drawn."""
    generator, seed = given["generator"], given["seed"]
    if generator is None:
        return None if seed is None else check_whole(seed, "seed", 0, 2**64 - 1)
    if not isinstance(generator, torch.Generator):
        raise OptionError(f"generator is {generator!r}, which is no torch.Generator")
    if seed != 0:
        raise OptionError("generator and seed exclude each other", remedy="The generator's initial_seed() is the seed.")
    return int(generator.initial_seed())


def tuple_names(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of batches that are handed out as tuples; none: batches are as they are."""
    names = given["as_tuple"]
    check_list("as_tuple", names)
    if names is None:
        return ()
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise OptionError(
            f"as_tuple is {names!r}", remedy='Name the fields in their order: as_tuple=("image", "label").'
        )
    return tuple(names)


def share(given: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rank and world size as they are given; None if they are torch.distributed's."""
    rank, world_size = given["rank"], given["world_size"]
    if (rank is None) != (world_size is None):
        raise OptionError("rank and world_size go together", remedy="Pass both, or neither.")
    return None if rank is None else (check_whole(rank, "rank", 0), check_whole(world_size, "world_size", 1))


def tail(given: Mapping[str, Any]) -> Tail:
    """The treatment of a last global batch that is not full: as `tail` or `drop_last` says, else it is shared out.

    Raises:
        OptionError: if both say different things, or a sampler decides it.
    """
    wanted: Tail | None = given["tail"]
    if wanted is None:
        return "drop" if given["drop_last"] else "share"
    if given["drop_last"] and wanted != "drop":
        raise OptionError(
            f"drop_last=True leaves out a last batch that is not full, and tail={wanted!r} hands it out",
            remedy="Pass one of them.",
        )
    if given["batch_sampler"] is not None or (given["sampler"] is not None and wanted != "drop"):
        name = "sampler" if given["batch_sampler"] is None else "batch_sampler"
        raise OptionError(
            f"tail={wanted!r} cannot be used together with {name}, which alone says what samples this rank gets",
            remedy="Leave it out; torch's DistributedSampler pads by itself.",
        )
    return wanted


def dataset_path(path: object) -> str:
    """The path of a dataset.

    Raises:
        OptionError: if it is none, but several perhaps.
    """
    if isinstance(path, str | os.PathLike):
        return os.fspath(path)
    raise OptionError(f"a dataset's path is a text or an os.PathLike, not {path!r:.200}", remedy=SEVERAL)


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
