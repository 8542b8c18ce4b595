"""Crop, resize, cut and flip of one image by torch: what a batch has on a CPU, and what the kernel is measured by."""

from __future__ import annotations

import torch
from torch.nn import functional

from gdsload.engine.images.frames import Frame


def resampled(image: torch.Tensor, frame: Frame, size: tuple[int, int] | None) -> torch.Tensor:
    """The part of an image that a frame shows, as torchvision makes it for uint8: bilinear, antialiased, rounded.

    The image is uint8 ``[3, height, width]``, in any layout. So is the result, ``[3, *size]``, which may be a view of
    the image; without a size it is all that was resized.
    """
    part = image[:, frame.top : frame.top + frame.height, frame.left : frame.left + frame.width]
    if (frame.rows, frame.columns) != (frame.height, frame.width):
        part = _resized(part, frame.rows, frame.columns)
    if size is not None:
        part = part[:, frame.cut_top : frame.cut_top + size[0], frame.cut_left : frame.cut_left + size[1]]
    return part.flip(-1) if frame.flip else part


def _resized(image: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    # On a CPU torch resizes uint8 by whole numbers, several times as fast; elsewhere it takes floats alone.
    exact = image if image.device.type == "cpu" else image.float()
    found = functional.interpolate(exact[None], (rows, columns), mode="bilinear", antialias=True)[0]
    return found if found.dtype == torch.uint8 else found.round_().clamp_(0, 255).to(torch.uint8)


def put_normalized(image: torch.Tensor, table: torch.Tensor | None, out: torch.Tensor) -> None:
    """Write an image ``[3, height, width]`` as a result has it; for the table see `DecodeImage.table`."""
    if table is None:
        out.copy_(image)
        return
    mean, std = table[..., None, None]
    out.copy_(image.to(torch.float32).sub_(mean).div_(std))
