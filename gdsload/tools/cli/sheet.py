"""Contact sheets: several samples of an image field as one picture."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.conversion.sources.extras import need
from gdsload.engine.images.host_decoders import decode_image, refuse_without_decoder
from gdsload.errors import FormatError, OptionError
from gdsload.shards.format.image_header import read_image_header
from gdsload.shards.format.metadata import class_names
from gdsload.shards.format.schema import Field
from gdsload.tools.cli.samples import caption
from gdsload.tools.cli.whole_file import write_whole

if TYPE_CHECKING:
    from gdsload.loader.dataset import ShardDataset

_SMALLEST, _LARGEST = 96, 256
"""Pixels of a picture's longer side on the sheet; smaller ones are enlarged by whole numbers, larger ones reduced."""
_GAP, _CAPTION, _LETTER = 4, 12, 6


def channels_first(name: str, field: Field) -> bool | None:
    """Return whether the channels of an image field come first, as they do where both ends could be; None: it has none.

    Raises:
        OptionError: if the field cannot be seen as images.
    """
    shape = field.shape
    if field.kind == "image":
        return True
    if field.is_string or field.dtype.name == "complex64" or len(shape) not in (2, 3):
        raise OptionError(f"it is {field}, no image", field=name, remedy="Images are [H, W], [C, H, W] or [H, W, C].")
    if len(shape) == 2:
        return None
    if not {shape[0], shape[2]} & {1, 3, 4}:
        raise OptionError(f"its shape {list(shape)} has no 1, 3 or 4 channels, first or last", field=name)
    return shape[0] in (1, 3, 4)


def picture_of(dataset: ShardDataset, name: str, number: int) -> tuple[torch.Tensor, str]:
    """A sample's picture and its caption; of an encoded image uint8 ``[3, height, width]``, as a loader decodes it.

    Raises:
        FormatError: if that is damaged.
        OptionError: if Pillow is not installed.
    """
    classes = (one for one in class_names(dataset.metadata) if one in dataset.schema)
    # Not the whole sample, which may be large. Of a ragged field, too, the first item is the values.
    batch = dataset.read_batch([number], fields=list(dict.fromkeys([name, *classes])))
    sample = {one: values[0] for one, values in batch.items()}
    said, value = caption(dataset.metadata, sample, number), sample[name]
    if not isinstance(value, bytes):
        return cast("torch.Tensor", value), said
    refuse_without_decoder()
    try:
        found = decode_image(memoryview(value), read_image_header(value))
    except Exception as error:  # Pillow's decoders have many
        where = f"{dataset.path}, sample {number}"
        raise FormatError(f"the image cannot be decoded: {str(error)[:200]}", file=where) from None
    return torch.from_numpy(found).permute(2, 0, 1), said


def as_picture(image: torch.Tensor, limits: tuple[float, float], *, first: bool | None) -> NDArray[np.uint8]:
    """An image of any element type, in the layout that `channels_first` says, as uint8 ``[H, W]`` or ``[H, W, C]``.

    `limits` are the values that become 0 and 255; uint8 is left as it is.
    """
    if first:
        image = image.movedim(0, 2)
    if image.dtype == torch.uint8:
        values = image.numpy()
    else:
        low, high = limits
        scaled = (image.to(torch.float64) - low) * (255 / (high - low) if high > low else 0)
        values = scaled.nan_to_num(0, 255, 0).round().clamp(0, 255).to(torch.uint8).numpy()
    return values[:, :, 0] if values.ndim == 3 and values.shape[2] == 1 else values


def value_limits(images: Sequence[torch.Tensor]) -> tuple[float, float]:
    """The values that become black and white: 0 and 1 if all are between them, else the least and the greatest.

    Those of uint8 are left as they are, and do not count.
    """
    least, greatest = math.inf, -math.inf
    for image in images:
        if image.dtype == torch.uint8:
            continue
        numbers = image.to(torch.float64)
        finite = numbers[numbers.isfinite()]
        if finite.numel():
            least, greatest = min(least, finite.min().item()), max(greatest, finite.max().item())
    if (least >= 0 and greatest <= 1) or greatest < least:
        return 0.0, 1.0
    return least, greatest


def save_sheet(images: Sequence[torch.Tensor], captions: Sequence[str], out: str, *, first: bool | None) -> None:
    """Write a contact sheet of images, perhaps of different sizes; the file's name says of which format it is.

    Raises:
        OptionError: if Pillow is not installed, or writes no pictures of such a name.
        WriteError: if the file cannot be written.
    """
    pillow, draw = (need(module, purpose="a picture", package="pillow") for module in ("PIL.Image", "PIL.ImageDraw"))
    limits = value_limits(images)
    pictures = [_fitted(pillow, pillow.fromarray(as_picture(image, limits, first=first))) for image in images]
    width = max(picture.width for picture in pictures) + _GAP
    height = max(picture.height for picture in pictures) + _GAP + _CAPTION
    columns = math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    sheet = pillow.new("RGB", (columns * width + _GAP, rows * height + _GAP), (128, 128, 128))
    pen = draw.Draw(sheet)
    for place, (picture, said) in enumerate(zip(pictures, captions, strict=True)):
        left, top = _GAP + place % columns * width, _GAP + place // columns * height
        sheet.paste(picture.convert("RGB"), (left, top), picture if picture.mode == "RGBA" else None)
        pen.text((left, top + picture.height), _cut(said, width), fill=(255, 255, 255))
    file = io.BytesIO()
    try:
        sheet.save(file, pillow.registered_extensions()[os.path.splitext(out)[1].lower()])
    except (KeyError, ValueError):  # the end of the name is none that it knows, or can write
        raise OptionError(f"{out!r} has no name of a picture", remedy="Name it sheet.png or sheet.jpg, say.") from None
    write_whole(out, file.getvalue(), "sheet")


def _cut(text: str, width: int) -> str:
    """A caption cut to the width, in letters that every font of Pillow has."""
    most = max(width // _LETTER, 1)
    short = text if len(text) <= most else text[: most - 1] + "…"
    return short.replace("…", "...").encode("latin-1", "replace").decode("latin-1")[:most]


def _fitted(pillow: Any, picture: Any) -> Any:
    """A picture of a size that can be looked at."""
    longest = max(picture.size)
    if longest > _LARGEST:
        size = [max(side * _LARGEST // longest, 1) for side in picture.size]
        return picture.resize(size, pillow.Resampling.BOX)
    factor = -(-_SMALLEST // longest)
    return picture.resize([side * factor for side in picture.size], pillow.Resampling.NEAREST)
