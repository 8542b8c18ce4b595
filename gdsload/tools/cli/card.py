"""The dataset card: `gdsload inspect --html`."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from gdsload.errors import FormatError, OptionError
from gdsload.shards.format.metadata import class_names
from gdsload.tools.cli.card_facts import cached_share, classes_of, field_facts
from gdsload.tools.cli.card_page import card_page
from gdsload.tools.cli.picks import drawn
from gdsload.tools.cli.samples import caption
from gdsload.tools.cli.sheet import as_picture, channels_first, pixels, value_limits

if TYPE_CHECKING:
    from gdsload.loader.dataset import ShardDataset

_PICTURES, _SMALL, _LARGE, _LEAST = 24, 64, 192, 8
"""Number of images per field; the longer side in pixels up to which images are enlarged, and above which they are
reduced; and the least shorter side of an image."""
_FIELDS_OF_PICTURES = 2


def make_card(dataset: ShardDataset) -> str:
    """The card of a dataset, as one HTML page.

    Raises:
        GdsloadError: if samples cannot be read.
    """
    cached = cached_share(dataset)  # first, since the rest reads samples
    fields, looked_at = field_facts(dataset)
    names = [name for name in dataset.schema if _has_pictures(dataset, name)][:_FIELDS_OF_PICTURES]
    found = [(name, list(_thumbnails(dataset, name))) for name in names]
    return card_page(
        dataset, fields, classes_of(dataset), looked_at=looked_at, cached=cached,
        pictures=[(name, some) for name, some in found if some],
    )  # fmt: skip


def _has_pictures(dataset: ShardDataset, name: str) -> bool:
    """Return whether a field probably contains images, and not other matrices."""
    field = dataset.schema[name]
    try:
        first = channels_first(name, field)
    except OptionError:
        return False
    if field.kind == "image":
        return True
    sides = field.shape if first is None else field.shape[1:] if first else field.shape[:2]
    numbers = field.dtype.name in ("uint8", "bool") or "float" in field.dtype.name
    return numbers and None not in sides and min(side or 0 for side in sides) >= _LEAST


def _thumbnails(dataset: ShardDataset, name: str) -> Iterator[tuple[str, str, bool]]:
    """Images of random samples as data addresses, with their captions; none without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        return
    first = channels_first(name, dataset.schema[name])
    wanted = list(dict.fromkeys([name, *(one for one in class_names(dataset.metadata) if one in dataset.schema)]))
    found = []
    for number in drawn(len(dataset), _PICTURES):
        # Not the whole sample, which may be large. The first item of a ragged field is its values.
        sample = {one: values[0] for one, values in dataset.read_batch([number], fields=wanted).items()}
        try:
            found.append((pixels(sample[name], dataset.path), caption(dataset.metadata, sample, number)))
        except FormatError:  # a damaged image is left out; `gdsload verify --deep` names it
            continue
    limits = value_limits([image for image, _ in found if image.dtype != torch.uint8])
    for image, said in found:
        if image.numel():
            picture = Image.fromarray(as_picture(image, limits, first=first))
            yield _address(Image, picture), said, max(picture.size) <= _SMALL


def _address(pillow: Any, picture: Any) -> str:
    """A picture, reduced, as an address: a JPEG if it is a photo, else a PNG."""
    reduced = picture.copy()
    reduced.thumbnail((_LARGE, _LARGE), pillow.Resampling.BOX)
    kind = "jpeg" if picture.mode == "RGB" and max(picture.size) > _SMALL else "png"
    stream = io.BytesIO()
    reduced.save(stream, kind, quality=85)
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"
