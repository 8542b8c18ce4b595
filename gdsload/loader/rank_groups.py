"""The ranks that share a loader's samples out, from a mesh or process group, and their agreement on loader and seed.

Of a mesh, its dimensions of data parallelism share the samples out. Ranks that differ in other dimensions alone (of
tensor, context or pipeline parallelism) get the same batches.

Ranks of a mesh, of a process group, or with seed=None begin the first epoch together, and agree then. Other ranks must
not wait for each other: they compare their seeds with those of ranks that have begun before. docs/design/0014-ranks.md
has the reasons.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import warnings
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np
import torch

from gdsload.errors import OptionError
from gdsload.order.checks import check_whole

_DATA_DIMENSIONS = (
    "dp", "ddp", "fsdp", "hsdp", "data", "batch", "replicate", "shard", "data_parallel", "dp_replicate", "dp_shard",
    "dp_shard_mod_ep", "dp_shard_in_ep",
)  # fmt: skip
"""Names of a mesh's dimensions that share samples out: those of torch's, torchtitan's, Lightning's and Accelerate's."""
_SAME_DATA = (
    "tp", "cp", "sp", "pp", "mp", "tensor", "context", "sequence", "pipeline", "model", "tensor_parallel",
    "context_parallel", "sequence_parallel", "pipeline_parallel", "model_parallel",
)  # fmt: skip

_begun: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
"""Numbers of the loaders of one kind that this process has begun."""


@dataclass(frozen=True, slots=True, eq=False)
class RankGroups:
    """The ranks that a loader shares its samples out among.

    A process group is not held: torch keeps the store of a group that is referred to.

    Attributes:
        rank: this process's rank among them.
        world_size: how many there are; those that get the same batches count as one.
        mesh: the mesh; None if a group was given.
        group: the group; None if a mesh was given.
    """

    rank: int
    world_size: int
    mesh: Any = None
    group: weakref.ref[Any] | None = None

    @property
    def members(self) -> int:
        """Number of all processes, also of those that get the same batches."""
        return self.world_size if self.mesh is None else int(self.mesh.size())

    def everyone(self) -> list[Any]:
        """The process groups along which all processes are reached, one after the other; OptionError if one is gone."""
        try:
            if self.mesh is not None:
                return [self.mesh.get_group(dim) for dim in range(self.mesh.ndim)]
            group = None if self.group is None else self.group()
            if group is not None and torch.distributed.get_rank(group) >= 0:
                return [group]
        except (RuntimeError, ValueError):  # it was destroyed, and is still referred to
            pass
        raise OptionError(
            "names a process group that has been destroyed",
            option="ranks",
            remedy="Make a new loader with one that exists.",
        )

    def __deepcopy__(self, _memo: object) -> RankGroups:
        return self  # a copy of the loader, in this process, has the same ranks

    def __reduce__(self) -> NoReturn:
        raise OptionError(
            "has a mesh or process group, which only this process knows: the loader cannot be pickled",
            option="ranks",
            remedy="Make the loader in each rank's process, or pass `ranks=(rank, world_size)`.",
        )


def ranks_of(given: object) -> RankGroups | tuple[int, int] | None:
    """The ranks that share samples out, as the option `ranks` has them.

    Raises OptionError if it says no ranks, or none that are this process's.
    """
    if given is None:
        return None
    if isinstance(given, tuple | list) and len(given) == 2:
        return check_whole(given[0], "rank", 0), check_whole(given[1], "world_size", 1)
    if torch.distributed.is_available():
        from torch.distributed import GroupMember, ProcessGroup
        from torch.distributed.device_mesh import DeviceMesh

        if isinstance(given, DeviceMesh):
            return _of_mesh(given)
        if isinstance(given, ProcessGroup) or given is GroupMember.NON_GROUP_MEMBER:
            return _of_group(given)
    raise OptionError(
        f"is {given!r:.200}",
        option="ranks",
        remedy="Pass `ranks=(rank, world_size)`, a DeviceMesh that torch.distributed.init_device_mesh made, or a "
        "ProcessGroup.",
    )


def refuse_unagreed(seed: int | None, ranks: RankGroups | tuple[int, int] | None) -> None:
    """Raise OptionError if a seed that is to be drawn cannot be agreed upon by these ranks."""
    if seed is None and isinstance(ranks, tuple) and ranks[1] > 1:
        raise OptionError(
            "is None, so all ranks must agree upon one, but `ranks=(rank, world_size)` does not connect them",
            option="seed",
            remedy="Pass a seed, or a mesh or process group as `ranks`.",
        )
    if seed is None and isinstance(ranks, RankGroups) and ranks.members < torch.distributed.get_world_size():
        raise OptionError(
            f"is None, so the {ranks.members} ranks of the mesh or group agree upon one, but there are "
            f"{torch.distributed.get_world_size()}, and others may need the same batches",
            option="seed",
            remedy="Pass the whole mesh, or a seed.",
        )


def _of_group(group: Any) -> RankGroups:
    rank = torch.distributed.get_rank(group)
    if rank < 0:  # of what `new_group` gives a process that is not among its ranks
        raise OptionError(
            f"is a process group, {group!r}, which this process is no rank of",
            option="ranks",
            remedy="Pass what torch.distributed.new_group gave its members; other processes need no loader, or one "
            "with `ranks=(rank, world_size)`.",
        )
    return RankGroups(rank, group.size(), group=weakref.ref(group))


def _of_mesh(mesh: Any) -> RankGroups:
    place = mesh.get_coordinate()
    if place is None:
        raise OptionError(
            f"has no rank for this process: {mesh}", option="ranks", remedy="Make loaders in its ranks alone."
        )
    shape, names = tuple(mesh.shape), mesh.mesh_dim_names or ()
    data = [dim for dim in range(len(shape)) if not names or names[dim] not in _SAME_DATA]
    called = {dim: names[dim] if names else f"number {dim}" for dim in data}
    unknown = [name for name in called.values() if name not in _DATA_DIMENSIONS]
    # A mesh of one dimension was chosen or flattened for this, whatever its name.
    if unknown and len(shape) > 1:
        chosen = "`ranks=mesh['name']`" if names else "`mesh_dim_names=...` when the mesh is made"
        raise OptionError(
            f"is a mesh of {', '.join(map(repr, names)) or 'dimensions without names'}: ranks along "
            f"{', '.join(unknown)} may get the same samples, or others",
            option="ranks",
            remedy=f"Name the dimension along which they get others, {chosen}, or pass `ranks=(rank, world_size)`. "
            f"Known names are {', '.join(_DATA_DIMENSIONS)}; along {', '.join(_SAME_DATA[:5])} ranks get the same.",
        )
    rank = 0
    for dim in data:
        rank = rank * shape[dim] + place[dim]
    return RankGroups(rank, prod(shape[dim] for dim in data), mesh)


def everyone_there() -> list[Any]:
    """The process groups of all processes of torch.distributed; none if it is not initialised."""
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return [torch.distributed.group.WORLD] if there else []


def _gather(text: str, group: Any) -> list[str]:
    """The texts of all ranks of a group; all of them have to call it."""
    # On the CPU where the group can: a GPU may be busy for long.
    config = torch.distributed.get_backend_config(group)
    kinds = [one.partition(":")[0] for one in config.split(",")]
    device = torch.device("cpu" if "cpu" in kinds else kinds[0])
    if device.type != "cpu":
        device = torch.device(device.type, torch.accelerator.current_device_index())
    mine = torch.from_numpy(np.frombuffer(text.encode(), np.uint8).copy())
    lengths = torch.zeros(group.size(), dtype=torch.int64, device=device)
    torch.distributed.all_gather(list(lengths.split(1)), torch.tensor([len(mine)], device=device), group=group)
    counts = lengths.tolist()
    padded = torch.zeros(max(counts), dtype=torch.uint8, device=device)
    padded[: len(mine)] = mine.to(device)
    parts = [torch.empty_like(padded) for _ in counts]
    torch.distributed.all_gather(parts, padded, group=group)
    return [part[:count].cpu().numpy().tobytes().decode() for part, count in zip(parts, counts, strict=True)]


def agree(state: Mapping[str, Any], groups: Sequence[Any]) -> int:
    """Make sure that all ranks have the same state, and give their seed: a drawn one if they have none.

    All of them have to call it, and all raise OptionError if they differ. The groups reach them; there are none if this
    is the only rank. The state is that of `DataLoader.state_dict`.
    """
    # Each rank draws one, as torch's samplers do, so that their generators stay alike; that of the first rank counts.
    drawn = 0 if state["seed"] is not None else int(torch.empty((), dtype=torch.int64).random_().item())
    rank = torch.distributed.get_rank() if groups else 0
    answers: list[dict[str, Any]] = [{"rank": rank, "state": dict(state), "drawn": drawn}]
    for group in groups:  # along a mesh, one dimension after the other
        answers = [one for part in _gather(json.dumps(answers), group) for one in json.loads(part)]
    answers.sort(key=lambda one: one["rank"])
    names = list(dict.fromkeys(name for one in answers for name in one["state"]))
    differing = [
        name for name in names if any(one["state"].get(name) != answers[0]["state"].get(name) for one in answers)
    ]
    if differing:
        raise OptionError(
            "the ranks of this loader do not run the same one: "
            + "; ".join(f"{name} is {_by_rank(name, answers)}" for name in differing),
            remedy="Make it in all ranks with the same dataset and options, and resume it in all of them from the same "
            "state.",
        )
    seed = answers[0]["state"]["seed"]
    return int(answers[0]["drawn"] if seed is None else seed)


def _by_rank(name: str, answers: Sequence[Mapping[str, Any]]) -> str:
    """The values of `name`, each with the ranks that have it, in words."""
    ranks: dict[str, list[int]] = {}
    for one in answers:
        value = one["state"].get(name)
        shown = "not drawn yet" if name == "seed" and value is None else f"{value!r:.100}"
        ranks.setdefault(shown, []).append(one["rank"])
    return ", ".join(
        f"{value} on rank{'s' if len(those) > 1 else ''} {', '.join(map(str, those))}" for value, those in ranks.items()
    )


def warn_of_others(kind: Mapping[str, Any], name: str, value: int | str, *, remedy: str) -> None:
    """Warn if another rank has begun the same loader with another seed, or with other indices: with another `value`.

    No rank waits: the first one to begin leaves its seed in the store of torch.distributed, where the others find it,
    by `kind`, the plain values that the loader's order depends on besides. Without such a store, nothing is compared.
    """
    key = hashlib.sha256(json.dumps(kind, sort_keys=True).encode()).hexdigest()
    mine = json.dumps([torch.distributed.get_rank(), value])
    try:
        store = torch.distributed.distributed_c10d._get_default_store()  # noqa: SLF001 (a second one has no address)
        rank, other = json.loads(store.compare_set(f"gdsload/{key}/{next(_begun[key])}", "", mine))
    except (AttributeError, RuntimeError, ValueError):  # MPI has no store, and not all stores can do it
        return
    if other != value:
        warnings.warn(
            f"rank {rank} has begun this loader with {name} {other}, and rank {torch.distributed.get_rank()} with "
            f"{name} {value}: so some samples come several times in an epoch, and others never. {remedy}",
            UserWarning,
            stacklevel=2,
        )
