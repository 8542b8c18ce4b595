"""Contact sheets: several samples of an image field as one picture."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError, OptionError
from gdsload.tools.cli.samples import drawn, label_field, labels_of, spread_of
from gdsload.tools.cli.thumbnails import CHANNELS, as_picture, image_of, value_and_caption, value_limits
from gdsload.tools.cli.whole_file import write_whole

if TYPE_CHECKING:
    from gdsload.loader.dataset import ShardDataset
    from gdsload.shards.format.schema import Field

_SMALLEST, _LARGEST = 96, 256
"""Pixels of a picture's longer side on the sheet; smaller ones are enlarged by whole numbers, larger ones reduced."""
_GAP, _CAPTION, _LETTER = 4, 12, 6


def pick_samples(dataset: ShardDataset, how: str, count: int, *, first: int = 0) -> list[int]:
    """The numbers of at most `count` samples: random ones, those from `first` on, or as many random ones of each class.

    If there are more than `count` classes, it is one sample each of the first `count`.

    Raises:
        OptionError: if the dataset has no field of class numbers.
    """
    if how == "first":
        return list(range(len(dataset))[first:][:count])
    if how == "random":
        return drawn(len(dataset), count)
    name = label_field(dataset)
    if name is None:
        raise OptionError(
            "no field has class numbers: whole numbers in a field called label, or with class names in the metadata",
            file=dataset.path,
            remedy="Pass --pick random.",
        )
    labels = labels_of(dataset, name)
    classes = np.unique(labels)[:count]
    each = count // max(len(classes), 1)
    return [number for one in classes for number in drawn(np.flatnonzero(labels == one), each)]


def save_sheet(dataset: ShardDataset, name: str, numbers: Sequence[int], out: str) -> list[int]:
    """Write a contact sheet of samples' images, perhaps of different sizes; the file's name says of which format it is.

    Returns:
        The numbers of the samples on it: those whose images are not empty.

    Raises:
        FormatError: if an encoded image is damaged.
        OptionError: if the field has no images, Pillow is not installed, or it writes no pictures of such a name.
        WriteError: if the file cannot be written.
    """
    field = _image_field(dataset, name)
    pillow, draw = (need(module, purpose="a picture", package="pillow") for module in ("PIL.Image", "PIL.ImageDraw"))
    images, captions, shown = list[torch.Tensor](), list[str](), list[int]()
    for number in numbers:
        value, said = value_and_caption(dataset, name, number)
        try:
            image = image_of(value, field)
        except Exception as error:  # Pillow's decoders have many
            where = f"{dataset.path}, sample {number}"
            raise FormatError(f"the image cannot be decoded: {str(error)[:200]}", file=where) from None
        if image.numel():
            images.append(image)
            captions.append(said)
            shown.append(number)
    if not shown:
        raise OptionError("there is no image to show", file=dataset.path)
    spreads = [spread_of(image) for image in images if image.dtype != torch.uint8]  # which is shown as it is
    ends = [end for one in spreads if one for end in (one.least, one.greatest)]
    limits = value_limits(torch.tensor(ends, dtype=torch.float64))
    pictures = [_fitted(pillow, pillow.fromarray(as_picture(image, limits))) for image in images]
    sheet, file = _laid_out(pillow, draw, pictures, captions), io.BytesIO()
    try:
        sheet.save(file, pillow.registered_extensions()[os.path.splitext(out)[1].lower()])
    except (KeyError, ValueError):  # the end of the name is none that it knows, or can write
        raise OptionError(f"{out!r} has no name of a picture", remedy="Name it sheet.png or sheet.jpg, say.") from None
    write_whole(out, file.getvalue(), "sheet")
    return shown


def _image_field(dataset: ShardDataset, name: str) -> Field:
    """The field of this name, or an OptionError if there is none, or it cannot be seen as images."""
    field = dataset.schema.get(name)
    if field is None:
        names = ", ".join(map(repr, dataset.schema))
        raise OptionError(f"there is no field {name!r}", remedy=f"There are {names}.")
    shape = field.shape
    if field.kind == "image":
        return field
    if field.is_string or field.dtype.name == "complex64" or len(shape) not in (2, 3):
        raise OptionError(f"it is {field}, no image", field=name, remedy="Images are [H, W], [C, H, W] or [H, W, C].")
    if len(shape) == 3 and shape[0] not in CHANNELS and shape[2] not in CHANNELS:
        raise OptionError(f"its shape {list(shape)} has no 1, 3 or 4 channels, first or last", field=name)
    return field


def _laid_out(pillow: Any, draw: Any, pictures: Sequence[Any], captions: Sequence[str]) -> Any:
    """The sheet: pictures with captions, in about as many rows as columns."""
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
    return sheet


def _cut(text: str, width: int) -> str:
    """A caption cut to the width, in letters that every font of Pillow has."""
    most = max(width // _LETTER, 1)
    short = text if len(text) <= most else text[: most - 1] + "…"
    return short.replace("…", "...").encode("latin-1", "replace").decode("latin-1")[:most]


def _fitted(pillow: Any, picture: Any) -> Any:
    """A picture of a size that can be looked at."""
    picture.thumbnail((_LARGEST, _LARGEST), pillow.Resampling.BOX)
    factor = -(-_SMALLEST // max(picture.size))
    return picture.resize([side * factor for side in picture.size], pillow.Resampling.NEAREST)
