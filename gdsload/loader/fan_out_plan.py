"""Which part of each batch is this process's to read, where ranks that get the same batches share that out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gdsload.engine.assemble import BatchForm
from gdsload.engine.codecs import FieldCodec
from gdsload.engine.parts import PartCodec
from gdsload.errors import OptionError
from gdsload.loader.rank_groups import RankGroups

__all__ = ["FanOutPlan", "shared_out"]


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
    form: BatchForm, groups: RankGroups | None, given: Mapping[str, Any]
) -> tuple[BatchForm, FanOutPlan | None]:
    """How what this process reads of a batch looks, and who reads the rest; without `fan_out` it reads all.

    Args:
        form: how a batch looks.
        groups: the ranks; with `fan_out`, with peers.
        given: the loader's keywords.

    Raises:
        OptionError: if parts of batches cannot be exchanged.
    """
    ranks = groups.peer_ranks() if given["fan_out"] and groups is not None else ()
    if len(ranks) < 2:
        return form, None
    if given["per_sample"] is not None:
        raise OptionError(
            "fan_out=True exchanges fields as they are stored or decoded, and sample_transform may make anything of "
            "them",
            remedy="Leave one of them out, or do it to whole batches, as device_transform.",
        )
    for name, image in form.decode.items():
        if image.rows_and_columns is None:
            raise OptionError(
                f"fan_out=True exchanges images of one size, and those of {name!r} are decoded in sizes of their own",
                field=name,
                remedy="Pass a size to DecodeImage, or leave the field encoded.",
            )
    ragged = {name: codec for name, codec in form.codecs.items() if codec.stored.ragged and name not in form.decode}
    parts = {name: PartCodec(codec) if name in ragged else codec for name, codec in form.codecs.items()}
    from torch.distributed import get_rank

    return replace(form, codecs=parts), FanOutPlan(ranks, ranks.index(get_rank()), ragged)
