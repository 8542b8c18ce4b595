"""Random rectangles of samples, scaled to one size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from gdsload.errors import OptionError
from gdsload.transforms.fields import Batch, height_and_width, refused, tensor_field

_TRIES = 10  # as torchvision


@dataclass(frozen=True)
class RandomResizedCrop:
    """Cuts a rectangle of random place, size and shape out of each sample, and scales it to one size.

    As torchvision's: area and ratio are drawn until they fit, ten times at most, else the middle is taken; then
    bilinear interpolation with antialiasing. Integers are rounded. On the CPU it is done sample by sample, elsewhere by
    two matrix products in float32.

    Args:
        field: its name; ``[batch, ..., height, width]``.
        size: height and width of the result; one number: of a square.
        scale: the least and the largest share of the area.
        ratio: the least and the largest quotient of width and height.
    """

    field: str
    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        if not (0 < self.scale[0] <= self.scale[1] <= 1 and 0 < self.ratio[0] <= self.ratio[1]):
            raise OptionError(
                f"{self}: `scale` and `ratio` must go from a least to a largest number, and `scale` up to 1"
            )
        if min(self._wanted()) < 1:
            raise refused(self, "size", "which is no size")

    def __call__(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """The batch with the field cropped and scaled."""
        value = tensor_field(self, batch, 3)
        if value.dtype != torch.uint8 and not value.dtype.is_floating_point:
            raise OptionError(f"{self}: the field is {value.dtype}, neither uint8 nor floating-point numbers")
        height, width = value.shape[-2:]
        if not height or not width:
            raise OptionError(f"{self}: nothing can be cut out of {height} x {width}")
        planes = value.reshape(len(value), math.prod(value.shape[1:-2]), height, width)
        # torch 2.13 repeats the first line where it makes more lines of one element each.
        one_by_one = value.device.type == "cpu" and self._wanted()[1] > 1
        made = (resized_one_by_one if one_by_one else resized_by_matrices)(
            planes, self.draw(value, generator), self._wanted()
        )
        return {**batch, self.field: made.view(*value.shape[:-2], *self._wanted())}

    def draw(self, value: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """The rectangles: first row, first column, height and width, int64 ``[batch, 4]`` on the device of `value`."""
        (height, width), count = value.shape[-2:], len(value)
        drawn = torch.rand(count, _TRIES, 4, generator=generator, dtype=torch.float32, device=value.device)
        area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * drawn[..., 0])
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratio = torch.exp(low + (high - low) * drawn[..., 1])
        wide, tall = (area * ratio).sqrt().round().long(), (area / ratio).sqrt().round().long()
        fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
        top = _upto(drawn[..., 2], height - tall + 1)
        left = _upto(drawn[..., 3], width - wide + 1)
        tried = torch.stack([top, left, tall, wide], -1)
        first = fits.int().argmax(1)
        chosen = tried[torch.arange(count, device=value.device), first]
        return torch.where(fits.any(1)[:, None], chosen, chosen.new_tensor(self._middle(height, width)))

    def _middle(self, height: int, width: int) -> tuple[int, int, int, int]:
        """The rectangle if none of those drawn fits."""
        tall, wide = height, width
        if width / height < self.ratio[0]:
            tall = max(round(width / self.ratio[0]), 1)
        elif width / height > self.ratio[1]:
            wide = max(round(height * self.ratio[1]), 1)
        return (height - tall) // 2, (width - wide) // 2, tall, wide

    def _wanted(self) -> tuple[int, int]:
        return height_and_width(self, self.size)


def _upto(drawn: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Whole numbers from 0 to ``count - 1``, made of numbers from 0 to 1."""
    # Rounded, a product may be `count` itself.
    return torch.minimum((drawn * count).long(), count - 1).clamp_(min=0)


def resized_one_by_one(planes: torch.Tensor, boxes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Rectangles of images ``[batch, channels, height, width]``, scaled by torch's own interpolation.

    `boxes` has the first row, first column, height and width of each, int64 ``[batch, 4]``.
    """
    computed = planes if planes.dtype in (torch.uint8, torch.float32, torch.float64) else planes.float()
    out = computed.new_empty(*planes.shape[:2], *size)
    if not out.numel():  # torch's interpolation takes no image without channels
        return out.to(planes.dtype)
    for number, (top, left, height, width) in enumerate(boxes.tolist()):
        part = computed[number : number + 1, :, top : top + height, left : left + width]
        if (height, width) != size:
            part = functional.interpolate(part, size, mode="bilinear", antialias=True)
        out[number] = part[0]
    return out.to(planes.dtype)


def resized_by_matrices(planes: torch.Tensor, boxes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """As `resized_one_by_one`, up to rounding, for all images at once and without waiting for their device."""
    top, left, tall, wide = boxes.unbind(1)
    rows = _weights(top, tall, planes.shape[2], size[0])
    columns = _weights(left, wide, planes.shape[3], size[1])
    computed = planes if planes.dtype == torch.float64 else planes.float()
    out = rows[:, None].to(computed.dtype) @ computed @ columns[:, None].mT.to(computed.dtype)
    return out.round_().clamp_(0, 255).to(planes.dtype) if planes.dtype == torch.uint8 else out.to(planes.dtype)


def _weights(begin: torch.Tensor, length: torch.Tensor, lines: int, wanted: int) -> torch.Tensor:
    """The share of each line of an image in each line of the result: float32 ``[batch, wanted, lines]``.

    The filter is a triangle as wide as two lines of the result, or of the image where that is larger; lines outside of
    the rectangle have no share.
    """
    scale = (length.float() / wanted)[:, None, None]
    centre = scale * (torch.arange(wanted, dtype=torch.float32, device=begin.device)[:, None] + 0.5)
    line = torch.arange(lines, dtype=torch.float32, device=begin.device) - begin[:, None, None]
    share = (1 - ((line + 0.5 - centre) / scale.clamp(min=1)).abs()).clamp_(min=0)
    share = share * ((line >= 0) & (line < length[:, None, None]))
    return share / share.sum(-1, keepdim=True)
