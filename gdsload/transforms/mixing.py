"""Transforms that mix samples of a batch, and their labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from gdsload.errors import OptionError
from gdsload.transforms.fields import Batch, refused, tensor_field


@dataclass(frozen=True)
class _Mixing:
    """The base of transforms that mix samples and labels; see `MixUp`."""

    field: str
    label: str
    num_classes: int | None = None
    alpha: float = 1.0
    p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf or not 0 <= self.p <= 1:
            raise OptionError(f"{self}: `alpha` must be more than 0 and finite, and `p` a probability")

    def draw(self, value: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Draw the share of each sample that is kept: float32 ``[batch]``."""
        count, device = len(value), value.device
        chosen = torch.rand(count, generator=generator, dtype=torch.float32, device=device) < self.p
        alphas = torch.full((count, 2), self.alpha, dtype=torch.float32, device=device)
        # As torch.distributions does it, which takes no generator.
        both = torch._sample_dirichlet(alphas, generator)  # noqa: SLF001
        return torch.where(chosen, both[:, 0], 1)

    def _probabilities(self, batch: Batch) -> torch.Tensor:
        """The labels of a batch as probabilities: float32 ``[batch, classes]``.

        Raises OptionError if there are none, or the number of classes is not known.
        """
        labels = batch.get(self.label)
        if not isinstance(labels, torch.Tensor):
            raise refused(self, "label", "which is no tensor of the batch", remedy="Name the labels' field.")
        if labels.dim() == 2 and labels.dtype.is_floating_point:
            return labels
        if labels.dim() != 1 or labels.dtype.is_floating_point:
            raise OptionError(
                f"{self}: the labels are {labels.dtype} {tuple(labels.shape)}, neither whole numbers [batch] nor "
                "probabilities [batch, classes]"
            )
        if self.num_classes is None:
            raise refused(self, "num_classes", "but labels are numbers of classes")
        labels = labels.long()
        if labels.device.type == "cpu" and not ((labels >= 0) & (labels < self.num_classes)).all():
            raise OptionError(
                f"{self}: the batch has the labels {labels.min()} to {labels.max()}, "
                f"and {self.num_classes} classes are 0 to {self.num_classes - 1}",
                remedy="Pass the `num_classes` that the dataset has.",
            )
        return functional.one_hot(labels, self.num_classes).to(torch.float32)


def _mean(value: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """The mix of each sample, of which a share is kept, and the one before it."""
    share = kept.to(value.dtype).view(-1, *[1] * (value.dim() - 1))
    # Nothing is added to samples that are kept whole: a neighbour may hold infinities or NaN.
    return torch.where(share == 1, value, value.roll(1, 0).mul_(1 - share).add_(value * share))


@dataclass(frozen=True)
class MixUp(_Mixing):
    """Mixes each sample with the one before it in the batch, the first with the last, by a share that is drawn for it.

    As torchvision's, but with a share for each sample, of the distribution Beta(alpha, alpha). Labels become
    probabilities of the classes, float32 ``[batch, classes]``, which `torch.nn.functional.cross_entropy` takes.

    Args:
        field: its name; floating-point numbers, ``[batch, ...]``.
        label: name of the field of the labels: whole numbers ``[batch]``, or probabilities ``[batch, classes]``, as
            another such transform has made them.
        num_classes: number of classes; None where labels are probabilities.
        alpha: of the distribution; 1: all shares are equally likely, less: those near 0 and 1 more.
        p: probability that a sample is mixed.
    """

    def __call__(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """The batch with samples and labels mixed."""
        value = tensor_field(self, batch, 1)
        if not value.dtype.is_floating_point or value.dtype.itemsize == 1:
            raise OptionError(
                f"{self}: the field is {value.dtype}, which cannot hold mixtures",
                remedy="Put Normalize or Cast before it.",
            )
        labels = self._probabilities(batch)
        kept = self.draw(value, generator)
        return {**batch, self.field: _mean(value, kept), self.label: _mean(labels, kept)}


@dataclass(frozen=True)
class CutMix(_Mixing):
    """Puts a rectangle of the sample before it, of the last one into the first, into each sample.

    As torchvision's, but with a rectangle for each sample. Its share of the area is of the distribution
    Beta(alpha, alpha), as far as it is within the image. Labels become probabilities, in proportion to the areas; see
    `MixUp`.

    Args:
        field: its name; ``[batch, ..., height, width]``, of any element type.
        label: see `MixUp`.
        num_classes: see `MixUp`.
        alpha: see `MixUp`.
        p: probability that a sample gets a rectangle.
    """

    def __call__(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """The batch with rectangles exchanged, and labels mixed."""
        value = tensor_field(self, batch, 3)
        labels = self._probabilities(batch)
        top, left, bottom, right = self.draw(value, generator).unbind(1)
        height, width = value.shape[-2:]
        row = torch.arange(height, device=value.device)
        column = torch.arange(width, device=value.device)
        rows = (row >= top[:, None]) & (row < bottom[:, None])
        columns = (column >= left[:, None]) & (column < right[:, None])
        inside = (rows[:, :, None] & columns[:, None]).view(len(value), *[1] * (value.dim() - 3), height, width)
        kept = 1 - ((bottom - top) * (right - left)).to(torch.float32) / max(height * width, 1)
        cut = torch.where(inside, value.roll(1, 0), value)
        return {**batch, self.field: cut, self.label: _mean(labels, kept)}

    def draw(self, value: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Each sample's rectangle: first row and column, and those after the last; int64 ``[batch, 4]``."""
        size = torch.tensor(value.shape[-2:], device="cpu").to(value.device, non_blocking=True)
        half = 0.5 * (1 - super().draw(value, generator)).sqrt()
        middle = torch.rand(len(value), 2, generator=generator, dtype=torch.float32, device=value.device)
        middle = torch.minimum((middle * size).long(), size - 1)
        reach = (half[:, None] * size).long()
        return torch.cat([(middle - reach).clamp_(min=0), torch.minimum(middle + reach, size)], 1)
