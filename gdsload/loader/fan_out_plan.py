"""Which part of each batch is this process's to read, where ranks that get the same batches share that out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gdsload.engine.assemble import BatchForm
from gdsload.engine.codecs import FieldCodec
from gdsload.engine.parts import PartCodec
from gdsload.errors import OptionError
from gdsload.loader.rank_groups import RankGroups
from gdsload.system.probe.tree import Tree
from gdsload.system.ram import total_memory

__all__ = ["FanOutPlan", "pays", "shared_out"]

_LEAST_BYTES = 2**24
"""Of a batch whose exchange may pay: telling each other that parts are there takes most of a millisecond whatever they
have, in which a GPU reads as much through pinned memory."""


@dataclass(frozen=True, slots=True)
class FanOutPlan:
    """Who reads which part of each batch.

    Attributes:
        ranks: the peers, by their ranks in torch.distributed's default group.
        part: this process's number among them.
        codecs: of ragged fields, what makes them of the whole batch's rows.
    """

    ranks: tuple[int, ...]
    part: int
    codecs: Mapping[str, FieldCodec]

    @property
    def parts(self) -> int:
        """How many they are."""
        return len(self.ranks)


def shared_out(
    form: BatchForm, groups: RankGroups | None, given: Mapping[str, Any], *, worth: Callable[[], bool]
) -> tuple[BatchForm, FanOutPlan | None]:
    """How what this process reads of a batch looks, and who reads the rest; without `fan_out` it reads all.

    Args:
        form: how a batch looks.
        groups: the ranks; with `fan_out=True`, with peers.
        given: the loader's keywords.
        worth: whether it pays, for ``fan_out="auto"``; the same at all peers.

    Raises:
        OptionError: if parts of batches cannot be exchanged, and are to be.
    """
    ranks = groups.peer_ranks() if given["fan_out"] and groups is not None else ()
    if len(ranks) < 2:
        return form, None
    trouble = _trouble(form, given)
    if given["fan_out"] == "auto" and (trouble is not None or not worth()):
        return form, None
    if trouble is not None:
        raise trouble
    ragged = {name: codec for name, codec in form.codecs.items() if codec.stored.ragged and name not in form.decode}
    parts = {name: PartCodec(codec) if name in ragged else codec for name, codec in form.codecs.items()}
    from torch.distributed import get_rank

    return replace(form, codecs=parts), FanOutPlan(ranks, ranks.index(get_rank()), ragged)


def pays(*, batch_bytes: float, dataset_bytes: float, decodes: bool, off_drives: bool) -> bool:
    """Whether an exchange takes less than the reading that it saves, as measured by benchmarks.gpu.fan_out.

    Args:
        batch_bytes: of a whole batch.
        dataset_bytes: of all samples.
        decodes: whether images are decoded.
        off_drives: whether what is read comes off drives whatever the page cache has.
    """
    return batch_bytes >= _LEAST_BYTES and (decodes or off_drives or dataset_bytes > (total_memory(Tree()) or 2**63))


def _trouble(form: BatchForm, given: Mapping[str, Any]) -> OptionError | None:
    """Why parts of batches cannot be exchanged; None if they can."""
    if given["per_sample"] is not None:
        return OptionError(
            "fan_out=True exchanges fields as they are stored or decoded, and sample_transform may make anything of "
            "them",
            remedy="Leave one of them out, or do it to whole batches, as device_transform.",
        )
    for name, image in form.decode.items():
        if image.rows_and_columns is None:
            return OptionError(
                f"fan_out=True exchanges images of one size, and those of {name!r} are decoded in sizes of their own",
                field=name,
                remedy="Pass a size to DecodeImage, or leave the field encoded.",
            )
    return None
