"""The decoding of encoded images, for a loader's `decode`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch

from gdsload.errors import OptionError
from gdsload.transforms.fields import element_type, height_and_width, numbers, refused


@dataclass(frozen=True, kw_only=True)
class DecodeImage:
    """The decoding of a field of encoded images: JPEG, PNG and WebP, of any size.

    An image is turned upright as its EXIF data say, and becomes RGB as Pillow's ``convert("RGB")`` has it: grey is
    repeated, a palette looked up, alpha dropped. Of 16 bits the upper 8 count. It is then cropped, resized (bilinear,
    antialiased) and flipped as torchvision does it for uint8, with random numbers that depend on the loader's seed, the
    epoch and the sample's place in it alone, and at last normalized.

    Args:
        size: height and width of the result; one number: of a square. None, for ``crop="none"`` alone: each image keeps
            its own size.
        crop: ``"random-resized"``: a rectangle of random area and shape, resized; ``"center"``: the image is resized so
            that its short side has `resize` pixels, and its middle is cut out; ``"none"``: the whole image is resized,
            whatever its shape.
        resize: pixels of the short side for ``"center"``; None: `size` (the larger one) by 0.875, as 256 for 224.
        scale: least and most share of the image's area, for ``"random-resized"``.
        ratio: least and most width by height of the rectangle, for ``"random-resized"``.
        flip: probability that an image is flipped horizontally.
        mean: of each of the three channels, where 255 counts as 1; None with `std`: values are not normalized.
        std: standard deviations, likewise.
        dtype: of the result, as torch's or by its name: uint8 without `mean`, or a floating type, for which 255 counts
            as 1. None: uint8 without `mean`, float32 with it.
        channels_last: whether a pixel's channels are together in memory. The shape does not change.
        max_pixels: an image with more pixels, by its header, is not decoded. Pillow, which decodes all except JPEGs,
            has another limit, of twice this default: ``PIL.Image.MAX_IMAGE_PIXELS``.
        on_error: the treatment of an image that cannot be decoded. ``"raise"``: `FormatError`, which names sample and
            shard; ``"zeros"``: it is all zeros (one pixel where sizes differ), and the batch has a bool tensor
            ``NAME.decoded``, shape ``[batch]``, on the CPU, which is False there. No other sample moves.

    Raises:
        OptionError: if values do not fit together.
    """

    size: int | tuple[int, int] | None = None
    crop: Literal["random-resized", "center", "none"] = "none"
    resize: int | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    dtype: torch.dtype | str | None = None
    channels_last: bool = False
    max_pixels: int = 89_478_485
    on_error: Literal["raise", "zeros"] = "raise"

    def __post_init__(self) -> None:
        for name, known in (("crop", ("random-resized", "center", "none")), ("on_error", ("raise", "zeros"))):
            if getattr(self, name) not in known:
                raise refused(self, name, f"none of {', '.join(map(repr, known))}")
        if self.rows_and_columns is None:
            if self.crop != "none":
                raise refused(self, "crop", "which needs a `size`")
        elif min(self.rows_and_columns) < 1:
            raise refused(self, "size", "which is no height and width")
        elif self.crop == "center" and self.short_side < max(self.rows_and_columns):
            raise refused(self, "resize", f"less than {self.size}, which is cut out")
        for name in ("scale", "ratio"):
            low, high = getattr(self, name)
            if not 0 < low <= high < math.inf:
                raise refused(self, name, "which is no range of positive numbers")
        if self.scale[1] > 1:
            raise refused(self, "scale", "which goes beyond 1, all of an image")
        if not 0 <= self.flip <= 1:
            raise refused(self, "flip", "which is no probability")
        self._check_values()

    def _check_values(self) -> None:
        if self.dtype is not None:
            object.__setattr__(self, "dtype", element_type(self, self.dtype))
        if (self.mean is None) != (self.std is None):
            raise OptionError("DecodeImage takes `mean` and `std` together")
        if self.mean is not None and self.std is not None:
            object.__setattr__(self, "mean", numbers(self, "mean", self.mean))
            object.__setattr__(self, "std", numbers(self, "std", self.std))
        if self.mean is not None and not (len(self.mean) == 3 == len(self.std or ()) and all(self.std or ())):
            raise OptionError("DecodeImage takes a `mean` and a `std` for each of 3 channels, and no `std` is 0")
        if self.result == torch.uint8:
            if self.mean is not None:
                raise refused(self, "dtype", "but normalized values are no whole numbers")
        elif self.result not in (torch.float32, torch.float16, torch.bfloat16):
            raise refused(self, "dtype", "neither uint8, float32, float16 nor bfloat16")
        if self.max_pixels < 1:
            raise refused(self, "max_pixels", "less than 1")

    @property
    def rows_and_columns(self) -> tuple[int, int] | None:
        """Height and width of the result; None if images keep theirs."""
        return None if self.size is None else height_and_width(self, self.size)

    @property
    def short_side(self) -> int:
        """Pixels of the short side before the middle is cut out."""
        return self.resize if self.resize is not None else round(max(self.rows_and_columns or (0,)) / 0.875)

    @property
    def result(self) -> torch.dtype:
        """Element type of the result."""
        if self.dtype is None:
            return torch.uint8 if self.mean is None else torch.float32
        return cast("torch.dtype", self.dtype)

    @property
    def repeatable(self) -> bool:
        """True if an image is the same in each epoch, but for a flip, so that it can be kept."""
        return self.crop != "random-resized"

    def table(self) -> torch.Tensor | None:
        """Means and standard deviations for values up to 255, float32 ``[2, 3]`` on the CPU; None: values stay."""
        if self.result == torch.uint8:
            return None
        table = [self.mean or (0.0,) * 3, self.std or (1.0,) * 3]
        return torch.tensor(table, dtype=torch.float32, device="cpu").mul_(255)
