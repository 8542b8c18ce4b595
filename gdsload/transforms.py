"""Transforms of whole batches, for a loader's `device_transform`.

Each is called with a batch and gives a new one, in which a field is replaced; the batch that it got stays as it was.
What is random is drawn for each sample by itself, from the `generator` that is passed, or else from torch's global one.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from gdsload.errors import OptionError

__all__ = ["Cast", "CenterCrop", "ChannelsLast", "Compose", "Normalize", "RandomCrop", "RandomFlip"]

Batch = dict[str, Any]
_NOTE_CHARACTERS = 1000
_AS_BITS = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
    torch.float8_e8m0fnu: torch.uint8,
}
_SPATIAL_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class Cast:
    """Gives a field another element type, by torch's rules: values are not scaled.

    Args:
        field: its name; a tensor of any shape, also a jagged one.
        dtype: the new type.
    """

    field: str
    dtype: torch.dtype

    def __call__(self, batch: Batch) -> Batch:
        """The batch with the field cast."""
        return {**batch, self.field: _tensor(self, batch, 0).to(self.dtype)}


@dataclass(frozen=True)
class Normalize:
    """Subtracts a mean from each channel and divides it by a standard deviation. uint8 counts as value / 255.

    It is computed in float32; in float64, if that is what comes.

    Args:
        field: its name; ``[..., channels, height, width]``.
        mean: of each channel, or one for all.
        std: likewise.
        dtype: type of the result.
    """

    field: str
    mean: Sequence[float]
    std: Sequence[float]
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(self.std):
            raise OptionError(f"{self}: mean and std must be of one length, and no std 0")

    def __call__(self, batch: Batch) -> Batch:
        """The batch with the field normalized."""
        value = _tensor(self, batch, 3)
        if value.shape[-3] != len(self.mean) != 1:
            raise OptionError(
                f"{self}: the field has {value.shape[-3]} channels", remedy="Pass a mean and std for each."
            )
        table = self.table(value.dtype)
        # From ordinary memory this is safe, and no stream is waited for.
        mean, std = table[..., None, None].to(value.device, non_blocking=True)
        return {**batch, self.field: value.to(table.dtype).sub(mean).div_(std).to(self.dtype)}

    def table(self, dtype: torch.dtype) -> torch.Tensor:
        """Means and standard deviations for values of a type, ``[2, channels]``, in the type of the computation."""
        unit = 255 if dtype == torch.uint8 else 1
        floating = torch.float64 if dtype == torch.float64 else torch.float32
        return torch.tensor([self.mean, self.std], dtype=floating, device="cpu").mul_(unit)


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
            raise OptionError(f"{self}: p is no probability")

    def __call__(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """The batch with some samples of the field flipped."""
        value = _tensor(self, batch, 2)
        dims = (self.dims,) if isinstance(self.dims, int) else self.dims
        if not all(-value.dim() < dim < value.dim() and dim for dim in dims):
            raise OptionError(
                f"{self}: dims are not all of a sample's own, as the field has shape {tuple(value.shape)}"
            )
        # torch flips neither wide unsigned integers nor fp8; it flips integers of their size.
        bits = value.view(_AS_BITS.get(value.dtype, value.dtype))
        chosen = self.draw(value, generator)
        flipped = torch.where(chosen.view(-1, *[1] * (value.dim() - 1)), bits.flip(dims), bits)
        return {**batch, self.field: flipped.view(value.dtype)}

    def draw(self, value: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Which samples are flipped: bool ``[batch]``."""
        return torch.rand(len(value), generator=generator, device=value.device) < self.p


@dataclass(frozen=True)
class RandomCrop:
    """Cuts a rectangle out of each sample, at a place of its own.

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
        value = _tensor(self, batch, 3)
        if self.padding:
            value = functional.pad(value, [self.padding] * 4)
        count, device = len(value), value.device
        (height, width), (rows, columns) = value.shape[-2:], _fitting(self, self.size, value)
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
        value = _tensor(self, batch, 3)
        rows, columns = _fitting(self, self.size, value)
        top, left = round((value.shape[-2] - rows) / 2), round((value.shape[-1] - columns) / 2)
        return {**batch, self.field: value[..., top : top + rows, left : left + columns]}


@dataclass(frozen=True)
class ChannelsLast:
    """Lays a field out as ``torch.channels_last``: the shape stays, and a pixel's channels lie together.

    Args:
        field: its name; ``[batch, channels, height, width]``, or with a depth before the height.
    """

    field: str

    def __call__(self, batch: Batch) -> Batch:
        """The batch with the field laid out so."""
        value = _tensor(self, batch, 0)
        if value.dim() not in _SPATIAL_FORMATS:
            raise OptionError(f"{self}: the field has {value.dim()} dimensions, not 4 or 5")
        return {**batch, self.field: value.contiguous(memory_format=_SPATIAL_FORMATS[value.dim()])}


class Compose:
    """Transforms one behind the other; those that take a `generator` share one.

    Args:
        transforms: what is called with a batch, or with what the one before it made of it.

    Raises:
        OptionError: if one cannot be called.
    """

    def __init__(self, transforms: Sequence[Callable[..., Any]]) -> None:
        self.transforms = tuple(transforms)
        for transform in self.transforms:
            if not callable(transform):
                raise OptionError(f"{transform!r} is no transform: it cannot be called")
        self._takes = tuple(map(_takes_generator, self.transforms))

    @property
    def random(self) -> bool:
        """Whether one of them takes a generator."""
        return any(self._takes)

    def __call__(self, batch: Any, generator: torch.Generator | None = None) -> Any:
        """What the last one makes of it."""
        for transform, takes in zip(self.transforms, self._takes, strict=True):
            try:
                batch = transform(batch, generator=generator) if takes else transform(batch)
            except Exception as error:
                with suppress(Exception):  # it is the transform's that is to be seen
                    error.add_note(f"raised by the transform {repr(transform)[:_NOTE_CHARACTERS]}")
                raise
        return batch

    def __repr__(self) -> str:
        return f"Compose({list(self.transforms)!r})"


def _takes_generator(transform: Callable[..., Any]) -> bool:
    """Whether it takes a generator, and was not given one of its own."""
    called = getattr(transform, "_orig_mod", transform)  # of a module that torch.compile has wrapped
    called = called.forward if isinstance(called, torch.nn.Module) else called
    try:
        parameter = inspect.signature(called).parameters.get("generator")
    except (TypeError, ValueError):  # not known of some that are written in C
        return False
    return parameter is not None and not isinstance(parameter.default, torch.Generator)


def _tensor(transform: Any, batch: Batch, dimensions: int) -> torch.Tensor:
    """The field that a transform is for.

    Raises:
        OptionError: if there is none, or it is no tensor of so many dimensions at least.
    """
    if transform.field not in batch:
        raise OptionError(f"{transform}: the batch has no such field", remedy=f"It has {', '.join(map(repr, batch))}.")
    value = batch[transform.field]
    if not isinstance(value, torch.Tensor):
        raise OptionError(f"{transform}: the field is a {type(value).__name__}, no tensor")
    if value.dim() < dimensions:
        raise OptionError(f"{transform}: the field has shape {tuple(value.shape)}, less than {dimensions} dimensions")
    return value


def _fitting(transform: Any, size: int | tuple[int, int], value: torch.Tensor) -> tuple[int, int]:
    """Height and width that a transform is to cut out of `value`.

    Raises:
        OptionError: if it has not so many.
    """
    rows, columns = (size, size) if isinstance(size, int) else size
    height, width = value.shape[-2:]
    if not (0 < rows <= height and 0 < columns <= width):
        raise OptionError(f"{transform}: {rows} x {columns} cannot be cut out of {height} x {width}")
    return rows, columns
