"""Images of samples, and small ones as HTML for the dataset card."""

from __future__ import annotations

import base64
import io
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from gdsload.engine.images.host_decoders import decode_image
from gdsload.shards.format.image_header import read_image_header
from gdsload.shards.format.metadata import class_names
from gdsload.tools.cli.samples import caption, drawn, spread_of
from gdsload.tools.web_page import as_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gdsload.loader.dataset import ShardDataset
    from gdsload.shards.format.schema import Field

CHANNELS = (1, 3, 4)
_LEAST = 8
"""Pixels of the shorter side below which a field of arrays is no image, but some other matrix."""
_SMALL = 64
"""The longer side in pixels up to which images are enlarged, and kept without loss."""
_LIMITED = 24
"""Number of samples whose values become black and white."""


def has_pictures(field: Field) -> bool:
    """Return whether a field probably contains images: encoded, or ``[H, W]``, ``[C, H, W]`` or ``[H, W, C]``."""
    if field.kind == "image":
        return True
    sides = field.shape
    if len(sides) == 3:
        if sides[0] not in CHANNELS and sides[2] not in CHANNELS:
            return False
        sides = sides[1:] if sides[0] in CHANNELS else sides[:2]
    numbers = field.dtype.name in ("uint8", "bool") or "float" in field.dtype.name
    return numbers and len(sides) == 2 and min(side or 0 for side in sides) >= _LEAST


def thumbnails(dataset: ShardDataset, name: str, numbers: list[int], large: int) -> dict[int, tuple[str, str]]:
    """The image of each of these samples, with a longer side of at most `large` pixels, and its caption, both as HTML.

    Without Pillow there are none.
    """
    try:
        from PIL import Image
    except ImportError:
        return {}
    # Limits are of the same samples for all images of a field. An encoded image needs none.
    field, found = dataset.schema[name], dict[int, tuple[str, str]]()
    some = [] if field.kind == "image" else drawn(len(dataset), _LIMITED)
    limits = value_limits(dataset.read_batch(some, fields=[name])[name]) if some else (0.0, 1.0)
    for number in numbers:
        value, said = value_and_caption(dataset, name, number)
        text = as_text(said)
        with suppress(Exception):  # Pillow's decoders raise many; `gdsload verify --deep` names a damaged image
            picture = Image.fromarray(as_picture(image_of(value, field), limits))
            kind = ' class="small"' if max(picture.size) <= _SMALL else ""
            found[number] = f'<img{kind} src="{_address(Image, picture, large)}" alt="{text}" title="{text}"/>', text
    return found


def value_and_caption(dataset: ShardDataset, name: str, number: int) -> tuple[Any, str]:
    """A sample's value of a field, and the caption of its image."""
    classes = [one for one in class_names(dataset.metadata) if one in dataset.schema]
    # Not the whole sample, which may be large.
    batch = dataset.read_batch([number], fields=list(dict.fromkeys([name, *classes])))
    sample = {one: values[0] for one, values in batch.items()}
    return sample[name], caption(dataset.metadata, sample, number)


def image_of(value: Any, field: Field) -> torch.Tensor:
    """A value of a field as ``[H, W]`` or ``[H, W, C]``; channels come first where both ends could be.

    An encoded image becomes uint8, as a loader decodes it; any error of Pillow's decoders may be raised.
    """
    if field.kind == "image":
        return torch.from_numpy(decode_image(memoryview(value), read_image_header(value)))
    image: torch.Tensor = value
    return image.movedim(0, 2) if len(field.shape) == 3 and field.shape[0] in CHANNELS else image


def value_limits(values: torch.Tensor) -> tuple[float, float]:
    """The values that become black and white: 0 and 1 if all are between them, else the least and the greatest."""
    found = spread_of(values)
    if found is not None and (found.least < 0 or found.greatest > 1):  # neither is so of NaN, without a finite value
        return found.least, found.greatest
    return 0.0, 1.0


def as_picture(image: torch.Tensor, limits: tuple[float, float]) -> NDArray[np.uint8]:
    """An image of any element type, ``[H, W]`` or ``[H, W, C]``, as uint8; without an axis of one channel.

    `limits` are the values that become 0 and 255; uint8 is left as it is.
    """
    if image.dtype != torch.uint8:
        low, high = limits
        scaled = (image.to(torch.float64) - low) * (255 / (high - low) if high > low else 0)
        image = scaled.nan_to_num(0, 255, 0).round().clamp(0, 255).to(torch.uint8)
    values: NDArray[np.uint8] = image.numpy()
    return values[:, :, 0] if values.ndim == 3 and values.shape[2] == 1 else values


def _address(pillow: Any, picture: Any, large: int) -> str:
    """Reduce a picture, and return it as an address: a JPEG if it is a photo, else a PNG."""
    kind = "jpeg" if picture.mode == "RGB" and max(picture.size) > _SMALL else "png"
    picture.thumbnail((large, large), pillow.Resampling.BOX)
    stream = io.BytesIO()
    picture.save(stream, kind, quality=85)
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"
