"""Crops and flips of samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from gdsload.transforms.fields import Batch, fitting, refused, tensor_field

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class RandomFlip:
    """Reverses samples along dimensions, each sample or not.

    Args:
        field: its name; ``[batch, ...]``.
        p: probability that a sample is flipped.
        dims: the dimension, or several that are reversed together; -1, the last, flips images horizontally.
    """

    field: str
    p: float = 0.5
    dims: int | tuple[int, ...] = -1

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise refused(self, "p", "which is no probability")

    def __call__(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """The batch with some samples of the field flipped."""
        value = tensor_field(self, batch, 2)
        dims = (self.dims,) if isinstance(self.dims, int) else self.dims
        if not all(-value.dim() < dim < value.dim() and dim for dim in dims):
            raise refused(self, "dims", f"not all in a sample, as the field has shape {tuple(value.shape)}")
        if len({dim % value.dim() for dim in dims}) < len(dims):
            raise refused(self, "dims", f"twice the same dimension, as the field has shape {tuple(value.shape)}")
        # torch flips neither wide unsigned integers nor fp8; it flips integers of their size.
        flips = value.dtype.is_complex or (value.dtype.is_floating_point and value.dtype.itemsize > 1)
        bits = value if flips else value.view(_INTEGERS[value.dtype.itemsize])
        chosen = self.draw(value, generator)
        flipped = torch.where(chosen.view(-1, *[1] * (value.dim() - 1)), bits.flip(dims), bits)
        return {**batch, self.field: flipped.view(value.dtype)}

    def draw(self, value: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Draw the samples that are flipped: bool ``[batch]``."""
        return torch.rand(len(value), generator=generator, dtype=torch.float32, device=value.device) < self.p


@dataclass(frozen=True)
class RandomCrop:
    """Cuts a rectangle out of each sample, at a place that is drawn for it.

    Args:
        field: its name; ``[batch, ..., height, width]``.
        size: height and width of the rectangle; one number: of a square.
        padding: rows and columns of zeros that are put on each side before.
    """

    field: str
    size: int | tuple[int, int]
    padding: int = 0

    def __call__(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """The batch with the field cropped."""
        value = tensor_field(self, batch, 3)
        if self.padding:
            value = functional.pad(value, [self.padding] * 4)
        count, device = len(value), value.device
        (height, width), (rows, columns) = value.shape[-2:], fitting(self, self.size, value)
        top, left = self.draw(value, (height, width), (rows, columns), generator)
        planes = value.reshape(count, math.prod(value.shape[1:-2]), height, width)
        cut = planes[
            torch.arange(count, device=device).view(-1, 1, 1, 1),
            torch.arange(planes.shape[1], device=device).view(-1, 1, 1),
            top + torch.arange(rows, device=device).view(-1, 1),
            left + torch.arange(columns, device=device),
        ]
        return {**batch, self.field: cut.view(*value.shape[:-2], rows, columns)}

    def draw(
        self,
        value: torch.Tensor,
        size: tuple[int, int],
        cut: tuple[int, int],
        generator: torch.Generator | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """First row and column of each sample's rectangle `cut` in one of `size`: int64 ``[batch, 1, 1, 1]``."""
        shape, device = (len(value), 1, 1, 1), value.device
        top = torch.randint(size[0] - cut[0] + 1, shape, generator=generator, device=device)
        return top, torch.randint(size[1] - cut[1] + 1, shape, generator=generator, device=device)


@dataclass(frozen=True)
class CenterCrop:
    """Cuts the middle out of each sample, to the pixel as torchvision does.

    Args:
        field: its name; ``[batch, ..., height, width]``.
        size: height and width of the middle; one number: of a square.
    """

    field: str
    size: int | tuple[int, int]

    def __call__(self, batch: Batch) -> Batch:
        """The batch with the field cropped; a view of the field as it was."""
        value = tensor_field(self, batch, 3)
        rows, columns = fitting(self, self.size, value)
        top, left = round((value.shape[-2] - rows) / 2), round((value.shape[-1] - columns) / 2)
        return {**batch, self.field: value[..., top : top + rows, left : left + columns]}
