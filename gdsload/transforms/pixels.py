"""Transforms of the values or the layout of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from gdsload.errors import OptionError
from gdsload.transforms.fields import Batch, element_type, numbers, refused, tensor_field

_SPATIAL_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class Cast:
    """Gives a field another element type, by torch's rules: values are not scaled.

    Args:
        field: its name; a tensor of any shape, also a jagged one.
        dtype: the new type, as torch's or by its name: ``"int64"``.

    Raises:
        OptionError: if it is no element type.
    """

    field: str
    dtype: torch.dtype | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", element_type(self, self.dtype))

    def __call__(self, batch: Batch) -> Batch:
        """The batch with the field cast."""
        return {**batch, self.field: tensor_field(self, batch, 0).to(cast("torch.dtype", self.dtype))}


@dataclass(frozen=True)
class Normalize:
    """Subtracts a mean from each channel and divides it by a standard deviation. uint8 counts as value / 255.

    It is computed in float32, or in float64 if the field is float64.

    Args:
        field: its name; ``[..., channels, height, width]``.
        mean: of each channel, or one for all.
        std: likewise.
        dtype: type of the result, floating: torch's or its name.

    Raises:
        OptionError: if values do not fit together.
    """

    field: str
    mean: Sequence[float]
    std: Sequence[float]
    dtype: torch.dtype | str = torch.float32

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", element_type(self, self.dtype))
        if not self.result.is_floating_point:
            raise refused(self, "dtype", "but normalized values are no whole numbers")
        for name in ("mean", "std"):
            object.__setattr__(self, name, numbers(self, name, getattr(self, name)))
        if len(self.mean) != len(self.std) or not all(self.std):
            raise OptionError(f"{self}: `mean` and `std` must be of one length, and no `std` 0")

    def __call__(self, batch: Batch) -> Batch:
        """The batch with the field normalized."""
        value = tensor_field(self, batch, 3)
        if value.shape[-3] != len(self.mean) != 1:
            raise OptionError(
                f"{self}: the field has {value.shape[-3]} channels", remedy="Pass a `mean` and `std` for each."
            )
        table = self.table(value.dtype)
        # From ordinary memory this is safe, and no stream is waited for.
        mean, std = table[..., None, None].to(value.device, non_blocking=True)
        return {**batch, self.field: value.to(table.dtype).sub(mean).div_(std).to(self.result)}

    @property
    def result(self) -> torch.dtype:
        """Element type of the result."""
        return cast("torch.dtype", self.dtype)

    def table(self, dtype: torch.dtype) -> torch.Tensor:
        """Means and standard deviations for values of a type, ``[2, channels]``, in the type of the computation."""
        unit = 255 if dtype == torch.uint8 else 1
        floating = torch.float64 if dtype == torch.float64 else torch.float32
        return torch.tensor([self.mean, self.std], dtype=floating, device="cpu").mul_(unit)


@dataclass(frozen=True)
class ChannelsLast:
    """Lays a field out as ``torch.channels_last``: the shape stays, and a pixel's channels are together.

    Args:
        field: its name; ``[batch, channels, height, width]``, or with a depth before the height.
    """

    field: str

    def __call__(self, batch: Batch) -> Batch:
        """The batch with the field laid out so."""
        value = tensor_field(self, batch, 0)
        if value.dim() not in _SPATIAL_FORMATS:
            raise OptionError(f"{self}: the field has {value.dim()} dimensions, not 4 or 5")
        return {**batch, self.field: value.contiguous(memory_format=_SPATIAL_FORMATS[value.dim()])}
