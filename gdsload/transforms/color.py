"""Transforms of colors, for each sample by itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gdsload.errors import OptionError
from gdsload.transforms.fields import Batch, refused, tensor_field

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)
_GRAY = (0.2989, 0.587, 0.114)  # torchvision's shares of red, green and blue


@dataclass(frozen=True)
class ColorJitter:
    """Changes brightness, contrast, saturation and hue of each sample, by factors and in an order drawn for it.

    As torchvision's, but values are rounded once, at the end. A number `v` stands for factors from ``1 - v`` to ``1 +
    v``, 0 for none; for the hue, for shifts from ``-v`` to `v` of a whole turn. The hue costs by far the most. Of gray
    images only brightness and contrast change.

    Args:
        field: its name; ``[batch, 3, height, width]``: red, green and blue, or ``[batch, 1, height, width]``: gray; as
            uint8 or as floating-point numbers from 0 to 1.
        brightness: how much it varies, or the least and the largest factor.
        contrast: likewise.
        saturation: likewise.
        hue: likewise, at most 0.5.
    """

    field: str
    brightness: float | tuple[float, float] = 0.0
    contrast: float | tuple[float, float] = 0.0
    saturation: float | tuple[float, float] = 0.0
    hue: float | tuple[float, float] = 0.0

    def __post_init__(self) -> None:
        low, high = self._ranges()
        if not all(0 <= least <= most for least, most in zip(low[:_HUE], high[:_HUE], strict=True)):
            raise OptionError(f"{self}: factors must be at least 0, and go from a least to a largest one")
        if not -0.5 <= low[_HUE] <= high[_HUE] <= 0.5:
            raise refused(self, "hue", "which does not go from a least to a largest one within -0.5 and 0.5")

    def __call__(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """The batch with the colors of the field changed."""
        value = tensor_field(self, batch, 4)
        if value.dim() != 4 or value.shape[1] not in (1, 3):
            raise OptionError(f"{self}: the field has shape {tuple(value.shape)}, not [batch, 3 or 1, height, width]")
        if value.dtype != torch.uint8 and not value.dtype.is_floating_point:
            raise OptionError(f"{self}: the field is {value.dtype}, neither uint8 nor floating-point numbers")
        made = self.apply(value, *self.draw(value, generator))
        return {**batch, self.field: made}

    def draw(self, value: torch.Tensor, generator: torch.Generator | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The four factors of each sample, float32 ``[batch, 4]``, and their order, int64 ``[batch, 4]``.

        The order numbers brightness, contrast, saturation and hue from 0 to 3.
        """
        drawn = torch.rand(2, len(value), 4, generator=generator, dtype=torch.float32, device=value.device)
        low, high = (drawn.new_tensor(one) for one in self._ranges())
        return low + (high - low) * drawn[0], drawn[1].argsort(1)

    def apply(self, value: torch.Tensor, factors: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Apply these factors to images, in that order; see `draw`."""
        low, high = self._ranges()
        unused = [low[kind] == high[kind] == (kind != _HUE) for kind in range(4)]
        unused[_HUE] |= value.shape[1] == 1
        image = value.to(torch.float64 if value.dtype == torch.float64 else torch.float32)
        if value.dtype == torch.uint8:
            image = image / 255
        for turn in range(4):
            kind = order[:, turn].view(-1, 1, 1, 1)
            factor = factors.gather(1, order[:, turn : turn + 1]).to(image.dtype).view(-1, 1, 1, 1)
            if not all(unused[:_HUE]):
                image = _blended(image, kind, factor)
            if not unused[_HUE]:
                shift = torch.where(kind == _HUE, factor, 0)
                image = torch.where(shift == 0, image, _turned(image, shift))
        return (image * 255).round_().to(torch.uint8) if value.dtype == torch.uint8 else image.to(value.dtype)

    def _ranges(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        found = []
        for kind, one in enumerate((self.brightness, self.contrast, self.saturation, self.hue)):
            middle = 0.0 if kind == _HUE else 1.0
            if isinstance(one, tuple | list):
                found.append((float(one[0]), float(one[1])))
            else:
                found.append((middle - one if kind == _HUE else max(middle - one, 0.0), middle + one))
        low, high = zip(*found, strict=True)
        return low, high


def _blended(image: torch.Tensor, kind: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Images mixed with black, with their mean gray, or with their gray values; those whose turn is the hue's stay."""
    gray = image
    if image.shape[1] == 3:
        gray = (image * image.new_tensor(_GRAY).view(3, 1, 1)).sum(1, keepdim=True)
    other = torch.where(kind == _CONTRAST, gray.mean((1, 2, 3), keepdim=True), gray)
    other = torch.where(kind == _BRIGHTNESS, 0, other)
    return torch.where(kind == _HUE, image, (factor * image + (1 - factor) * other).clamp_(0, 1))


def _turned(image: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Images whose hue is shifted by so much of a turn, ``[batch, 1, 1, 1]``; saturation and value stay."""
    red, green, blue = image.unbind(1)
    most, least = image.amax(1), image.amin(1)
    chroma = most - least
    safe = torch.where(chroma == 0, 1, chroma)
    hue = torch.where(
        most == red,
        (green - blue) / safe,
        torch.where(most == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = (hue / 6 + shift[:, 0]) % 1
    # Each channel is `most` less a part of the chroma, which depends on how far the hue is from the channel's own.
    place = hue[:, None] * 6 + image.new_tensor([5.0, 3.0, 1.0]).view(3, 1, 1)
    place = place % 6
    part = torch.minimum(place, 4 - place).clamp_(0, 1)
    return most[:, None] - chroma[:, None] * part
