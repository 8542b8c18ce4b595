"""The agreement of all ranks on one loader, and on the seed that they run it with.

Ranks of a mesh, of a process group, or with seed=None begin the first epoch together, and agree then. Other ranks must
not wait for each other: they compare their seeds with those of ranks that have begun before. docs/design/0014-ranks.md
has the reasons.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gdsload.errors import OptionError
from gdsload.loader.rank_groups import gather_texts

__all__ = ["agree", "drawn_seed", "warn_of_others"]

_begun: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
"""Numbers of the loaders of one kind that this process has begun."""


def drawn_seed() -> int:
    """A seed from torch's global generator, as torch's samplers draw theirs."""
    return int(torch.empty((), dtype=torch.int64).random_().item())


def agree(state: Mapping[str, Any], groups: Sequence[Any]) -> int:
    """Make sure that all ranks have the same state, and agree on a seed if none has one.

    All of them have to call it.

    Args:
        state: this rank's, as `DataLoader.state_dict` gives it; its seed is None if it has none yet.
        groups: process groups that reach all ranks; none if this is the only one.

    Returns:
        The seed.

    Raises:
        OptionError: if ranks differ; all of them raise it.
    """
    # Each rank draws one, so that their generators stay alike, and that of the first rank counts.
    drawn = drawn_seed() if state["seed"] is None else 0
    rank = torch.distributed.get_rank() if groups else 0
    answers = gather_texts({"rank": rank, "state": dict(state), "drawn": drawn}, groups)
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
    """Warn if another rank has begun the same loader with another seed, or with other indices.

    No rank waits: the first one to begin leaves its seed in the store of torch.distributed, where the others find it.
    Without such a store, nothing is compared.

    Args:
        kind: what the loader's order depends on besides: plain values.
        name: the name of a value that must be the same in all ranks.
        value: this rank's.
        remedy: what to do if they differ.
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
